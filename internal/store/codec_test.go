package store

import (
	"strings"
	"testing"

	"pulley/agent"
)

// A name with a slash in it must not become a key of another environment.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"controller1", "a/b", "%2F", "ü", "", "%", "a%zz", "dev@t42", "..", "\x00\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := escape(s)
		if strings.Contains(e, "/") || unescape(e) != s {
			t.Errorf("%q becomes %q and comes back as %q", s, e, unescape(e))
		}
		for _, c := range e {
			if !strings.ContainsRune(plain+"%", c) {
				t.Errorf("%q becomes %q", s, e)
			}
		}
	})
}

// Whatever stands in etcd: an error that names the key, or a value; never a panic.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"v":1}`, `{"v":2}`, `{"v":1,"release":"1.0.0","tree":"x","data":3}`, `null`, `[]`, ``, `{"v":"1"}`, `{"v":1,"data":1e400}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, into := range []any{&agent.Target{}, &agent.Gate{}, &agent.Hold{}, &agent.Host{}, &agent.Status{}, &agent.Assignment{}, &Change{}, &Release{}} {
			if err := decode("k", b, into); err != nil && !strings.Contains(err.Error(), "cannot read key k") {
				t.Errorf("%T: %v", into, err)
			}
		}
	})
}

// What a value says must come back as it was written, behind its format.
func TestValuesRoundTripBehindTheirFormat(t *testing.T) {
	t.Parallel()
	in := agent.Target{Release: "1.0.0", Tree: "ab", Data: 3, DataDigest: "cd"}
	text, err := encode(in)
	if err != nil || !strings.HasPrefix(text, `{"v":1,"release"`) {
		t.Fatal(text, err)
	}
	var out agent.Target
	if err := decode("k", []byte(text), &out); err != nil || out != in {
		t.Errorf("%+v, %v", out, err)
	}
	if text, err := encode(agent.Target{}); err != nil || text != `{"v":1}` {
		t.Errorf("nothing becomes %s, %v", text, err)
	}
}
