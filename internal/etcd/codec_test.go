package etcd

import (
	"strings"
	"testing"

	"pulley/internal/model"
)

// A name with a slash must not become a key of another environment.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"controller1", "a/b", "%2F", "ü", "", "%", "a%zz", "dev@t42", "..", "\x00\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := escape(s)
		if strings.Contains(e, "/") || Unescape(e) != s {
			t.Errorf("%q becomes %q and comes back as %q", s, e, Unescape(e))
		}
		for _, c := range e {
			if !strings.ContainsRune(plain+"%", c) {
				t.Errorf("%q becomes %q", s, e)
			}
		}
	})
}

// A value must be read back as it was written, after its format.
func TestValuesRoundTripBehindTheirFormat(t *testing.T) {
	t.Parallel()
	in := model.Target{Release: "1.0.0", Tree: "ab", Data: 3, DataDigest: "cd"}
	text, err := Encode(in)
	if err != nil || !strings.HasPrefix(text, `{"v":1,"release"`) {
		t.Fatal(text, err)
	}
	var out model.Target
	if err := Decode("k", []byte(text), &out); err != nil || out != in {
		t.Errorf("%+v, %v", out, err)
	}
	if text, err := Encode(model.Target{}); err != nil || text != `{"v":1}` {
		t.Errorf("nothing becomes %s, %v", text, err)
	}
}
