package facts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

var at = time.Date(2026, 11, 20, 22, 23, 30, 0, time.UTC)

// debian are facts like those of a real machine.
func debian() map[string]json.RawMessage {
	return map[string]json.RawMessage{
		"os":            json.RawMessage(`{"family": "Debian", "release": {"full": "12.7", "major": "12"}, "name":"Debian"}`),
		"system_uptime": json.RawMessage(`{"seconds":12}`), "load_averages": json.RawMessage(`{"1m":0.5}`),
		"memory":      json.RawMessage(`{"system":{"total_bytes":12345678901234567890,"available":"1 GiB","used_bytes":7,"capacity":"3%"},"swap":{"total":"0","used":"0"}}`),
		"mountpoints": json.RawMessage(`{"/":{"size":"9 GiB","used":"1 GiB","capacity":"11%"},"/srv/a.b":{"size":"1 GiB"}}`),
		"pulley":      json.RawMessage(`{"data":"/var/lib/pulley/x"}`), "clientnoop": json.RawMessage(`false`),
		"processors": json.RawMessage(`{"count":2,"models":["a","b"],"speed":"2.1 GHz"}`),
		"name":       json.RawMessage(`"\"; rm -rf / #$(reboot)<>&"`),
	}
}

func published(t testing.TB, facts map[string]json.RawMessage, volatile ...string) Published {
	t.Helper()
	p, err := Source{Facts: facts}.From(volatile, at)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A fact that always changes would make every run of every node write to etcd.
func TestVolatileFactsAreLeftOut(t *testing.T) {
	p := published(t, debian(), "processors.models", "mountpoints.*.size")
	got, err := p.encode(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"v":1,"at":"0001-01-01T00:00:00Z"}
"memory":{"swap":{"total":"0"},"system":{"total_bytes":12345678901234567890}}
"mountpoints":{"/":{},"/srv/a.b":{}}
"name":"\"; rm -rf / #$(reboot)<>&"
"os":{"family":"Debian","name":"Debian","release":{"full":"12.7","major":"12"}}
"processors":{"count":2}`
	if string(got) != want {
		t.Errorf("published\n%s, want\n%s", got, want)
	}
	for _, bad := range []string{"", ".", "a.", "a..b"} {
		if CheckPattern(bad) == nil {
			t.Errorf("pattern %q is accepted", bad)
		}
	}
}

// Facts in another order, or an hour later, are the same facts: they must not be published again.
func TestSameFactsHaveTheSameForm(t *testing.T) {
	p, q := published(t, debian()), published(t, debian())
	q.At = at.Add(time.Hour)
	if !p.Same(q) {
		t.Error("the same facts differ")
	}
	changed := debian()
	changed["kernel"] = json.RawMessage(`"Linux"`)
	if p.Same(published(t, changed)) {
		t.Error("other facts are the same")
	}
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(b)
	if err != nil || !back.Same(p) || !back.At.Equal(at) {
		t.Errorf("%+v, %v", back, err)
	}
}

// hostile are facts of a machine whose owner wants to harm etcd, operators or other nodes.
func hostile() map[string]map[string]json.RawMessage {
	keys := debian()
	for i := range 100_000 {
		keys[fmt.Sprintf("k%06d", i)] = json.RawMessage(fmt.Sprint(i * 7919 % 100_003))
	}
	nested := debian()
	inner := map[string]int{}
	for i := range 100_000 {
		inner[fmt.Sprintf("key-%d", i*7919)] = i
	}
	nested["inner"], _ = json.Marshal(inner)
	long := debian()
	long["same"] = json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	long[strings.Repeat("\x1b", 100_000)] = json.RawMessage(`"` + strings.Repeat("y", 300<<10) + `"`)
	return map[string]map[string]json.RawMessage{"100,000 keys": keys, "one fact of 100,000 keys": nested, "1 MB": long}
}

// A hostile machine must not fill etcd, and what is useful of its facts must arrive.
func TestHostileFactsAreCut(t *testing.T) {
	for what, all := range hostile() {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			p := published(t, all)
			b, err := p.Encode()
			if err != nil || len(b) > MaxBytes {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
			if string(p.Find("os.release.full")) != `"12.7"` || len(p.Cut) == 0 {
				t.Errorf("os is lost, or nothing was cut: %q", p.Cut)
			}
			names, _ := json.Marshal(p.Cut)
			if len(names) > 40<<10 || len(p.Cut) > maxNames {
				t.Errorf("%d names of cut facts have %d bytes", len(p.Cut), len(names))
			}
			if what == "100,000 keys" && p.More+len(p.Cut)+len(p.Facts) < 100_000 {
				t.Errorf("of 100,000 facts, %d are published and %d are left out", len(p.Facts), len(p.Cut)+p.More)
			}
			t.Logf("%d bytes, %d facts, %d cut, %s", len(b), len(p.Facts), len(p.Cut)+p.More, time.Since(began))
		})
	}
}

// A node that writes any bytes must not stop an operator's command, nor fill its memory.
func TestDecodeIsBounded(t *testing.T) {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := z.EncodeAll(bytes.Repeat([]byte(" "), 64<<20), nil)
	for what, b := range map[string][]byte{
		"nothing": nil, "text": []byte("hello"), "a bomb": bomb, "too long": make([]byte, MaxBytes+1),
		"no object": z.EncodeAll([]byte("[1]"), nil), "deep": z.EncodeAll([]byte("{\"v\":1}\n\"a\":"+strings.Repeat("[", 100_000)), nil),
		"newer": z.EncodeAll([]byte(`{"v":2,"cut":7}`), nil), "wrong": z.EncodeAll([]byte(`{"v":1,"cut":{}}`), nil), "no format": z.EncodeAll([]byte(`{}`), nil),
		"no pair": z.EncodeAll([]byte("{\"v\":1}\n\"a\""), nil), "no name": z.EncodeAll([]byte("{\"v\":1}\n7:7"), nil), "no value": z.EncodeAll([]byte("{\"v\":1}\n\"a\":x"), nil),
		"an empty line": z.EncodeAll([]byte("{\"v\":1}\n\n"), nil),
	} {
		if p, err := Decode(b); err == nil {
			t.Errorf("%s is accepted: %+v", what, p)
		} else if what == "newer" != strings.Contains(err.Error(), "upgrade pulley") {
			t.Errorf("%s: %v", what, err)
		}
	}
	p, err := Decode(z.EncodeAll([]byte(`{"v":1}`), nil))
	if err != nil || p.Facts == nil || p.Cut == nil {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestFindFollowsPaths(t *testing.T) {
	p := published(t, debian())
	p.Trusted = json.RawMessage(`{"certname":"a"}`)
	packed, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"os.family": `"Debian"`, "processors.models.1": `"b"`, "mountpoints./srv/a.b.size": `"1 GiB"`, "trusted.certname": `"a"`, "memory.system.total_bytes": "12345678901234567890",
		"os.none": "", "none": "", "": "", ".": "", "processors.models.2": "", "processors.models.-1": "", "os.family.x": "", "processors.count.x": "",
	} {
		if got := string(p.Find(path)); got != want {
			t.Errorf("%q is %s, want %s", path, got, want)
		}
		if got := string(At(packed, path)); got != want {
			t.Errorf("%q of the stored value is %s, want %s", path, got, want)
		}
	}
	raw, _ := json.Marshal(p.Facts)
	if v, err := Value(json.RawMessage(`{"a":[1,1.5,123456789012345678901234567890,-3,1e400]}`)); err != nil || fmt.Sprint(v) != "map[a:[1 1.5 1.2345678901234568e+29 -3 +Inf]]" {
		t.Errorf("%v, %v", v, err)
	}
	lines, more := Lines("", raw, 100)
	names := map[string]string{}
	for _, l := range lines {
		names[l.Path] = l.Value
	}
	if more || names["processors.models.0"] != "a" || names["name"] != `"; rm -rf / #$(reboot)<>&` {
		t.Errorf("%v: %v", more, names)
	}
	if !slices.IsSortedFunc(lines, func(a, b Line) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("lines are not in order: %v", slices.Sorted(maps.Keys(names)))
	}
	if lines, more = Lines("", raw, 3); !more || len(lines) != 3 {
		t.Errorf("%d lines, more: %v", len(lines), more)
	}
}

// A fleet's selection must not take the value of another fact, nor a part of one.
func TestPickFindsCompleteFacts(t *testing.T) {
	p := published(t, map[string]json.RawMessage{
		"a": json.RawMessage(`"\n\"os\":7"`), "os": json.RawMessage(`{"family":"x"}`), "osfamily": json.RawMessage(`"y"`), "z\n\"os\":8": json.RawMessage(`1`), "<&>": json.RawMessage(`2`), "nul": json.RawMessage("null"),
	})
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := Pick(b, []string{"os", "a", "family", "<&>", "z\n\"os\":8", "nul", "", "o"})
	want := map[string]string{"os": `{"family":"x"}`, "a": `"\n\"os\":7"`, "<&>": "2", "z\n\"os\":8": "1", "nul": "null"}
	if err != nil || len(found) != len(want) {
		t.Fatalf("%q, %v", found, err)
	}
	for name, value := range want {
		if string(found[name]) != value {
			t.Errorf("%q is %s, want %s", name, found[name], value)
		}
	}
}

func FuzzDecode(f *testing.F) {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{`{"v":1}`, "{\"v\":1,\"cut\":[\"x\"]}\n\"a\":[1,{\"b\":null}]\n\"b\":7", `[`, ``} {
		f.Add(z.EncodeAll([]byte(text), nil), "a.0.b")
	}
	f.Fuzz(func(t *testing.T, b []byte, path string) {
		_, _, _ = Pick(b, []string{path, "a", ""})
		p, err := Decode(b)
		if err != nil {
			return
		}
		if raw := p.Find(path); raw != nil {
			Lines(path, raw, 10)
		}
	})
}

func FuzzSource(f *testing.F) {
	f.Add([]byte(`{"facts":{"os":{"family":"x"},"memory":{"a":{"used":1}}},"trusted":{},"cut":["a"]}`), "os.*")
	f.Fuzz(func(t *testing.T, b []byte, volatile string) {
		s, err := ParseSource(b)
		if err != nil || CheckPattern(volatile) != nil {
			return
		}
		p, err := s.From([]string{volatile}, at)
		if err != nil {
			return
		}
		packed, err := p.Encode()
		if err != nil || len(packed) > MaxBytes {
			t.Fatalf("%d bytes, %v", len(packed), err)
		}
		if back, err := Decode(packed); err != nil || !back.Same(p) {
			t.Fatalf("%+v became %+v, %v", p, back, err)
		}
		names := slices.Collect(maps.Keys(p.Facts))
		if found, _, err := Pick(packed, names); err != nil || !maps.EqualFunc(found, p.Facts, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Fatalf("%+v, picked %+v, %v", p.Facts, found, err)
		}
	})
}
