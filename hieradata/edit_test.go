package hieradata

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// Without it, the order of changes would affect the digest, and every node would see changed data.
func TestSetIsCanonical(t *testing.T) {
	set := func(layer []byte, key, value string) []byte {
		t.Helper()
		layer, err := Set(layer, key, value)
		if err != nil {
			t.Fatal(err)
		}
		return layer
	}
	a := set(set(nil, "ntp::servers", "[a, b]"), "motd", "{z: 1, x: '2'}")
	b := set(set(set(nil, "motd", "old"), "ntp::servers", "- a\n- b"), "motd", "x: \"2\"\nz: 1")
	if string(a) != string(b) || Digest(a) != Digest(b) {
		t.Errorf("the same data has two forms:\n%s\n%s", a, b)
	}
	want := "motd:\n  x: \"2\"\n  z: 1\nntp::servers:\n  - a\n  - b\n"
	if string(a) != want {
		t.Errorf("got\n%s\nwant\n%s", a, want)
	}
	keys, err := Keys(a)
	if err != nil || strings.Join(keys, " ") != "motd ntp::servers" {
		t.Errorf("keys are %v, %v", keys, err)
	}
	left, had, err := Unset(a, "motd")
	if err != nil || !had || string(left) != "ntp::servers:\n  - a\n  - b\n" {
		t.Errorf("got %q, %v, %v", left, had, err)
	}
	if left, had, err = Unset(left, "missing"); err != nil || had || len(left) == 0 {
		t.Errorf("got %q, %v, %v", left, had, err)
	}
	if left, had, err = Unset(left, "ntp::servers"); err != nil || !had || left != nil {
		t.Errorf("an empty layer is %q, %v, %v", left, had, err)
	}
}

// Without it, Pulley would store a key that lookup() cannot find, and no node would use it.
func TestSetRefusesKeys(t *testing.T) {
	for key, hint := range map[string]string{
		"":                       "write it as <class>::<parameter>",
		"a b":                    "write it as <class>::<parameter>",
		"a\n":                    "write it as <class>::<parameter>",
		"%{x}":                   "keys are not interpolated; write the name itself",
		"a.b.c":                  "set all of a, as a mapping",
		"a'b":                    "leave them out",
		strings.Repeat("a", 256): "",
		"a\xff":                  "",
	} {
		_, err := Set(nil, key, "1")
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || syntax.Hint() != hint {
			t.Errorf("%.20q: got %v with hint %q", key, err, syntax.Hint())
		}
		if checkKey(key) == nil {
			t.Errorf("checkKey accepts %.20q", key)
		}
	}
	if err := checkKey("profile::base::message"); err != nil {
		t.Error(err)
	}
}

// Without it, lookup_options of a wrong type would fail every catalog of the environment.
func TestSetChecksLookupOptions(t *testing.T) {
	for value, ok := range map[string]bool{
		"{'ntp::servers': {merge: unique}}":                      true,
		"{'^a': {merge: {strategy: deep, knockout_prefix: --}}}": true,
		"{'a': {convert_to: Sensitive}}":                         true,
		"{}":                                                     true,
		"yes":                                                    false,
		"{'^a(?=b)[c]\\h': {merge: unique}}":                     true,
		"{'^a[': {merge: unique}}":                               false,
		"{'^a(': {}}":                                            false,
		"{'^a)': {}}":                                            false,
		"{'^a\\': {}}":                                           false,
		"{a: {merge: {strategy: deep, knockout: --}}}": false,
		"{a: unique}":                        false,
		"{a: {merge: reverse}}":              false,
		"{a: {merge: {knockout_prefix: x}}}": false,
		"{a: {merge: [unique]}}":             false,
		"[{a: {merge: unique}}]":             false,
		"{a: {merge: hash}, b: {merge: {strategy: first}}, c: {merge: deep}}": true,
	} {
		if _, err := Set(nil, "lookup_options", value); (err == nil) != ok {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// Without it, `data get -o json` would lose the difference between 1 and 1.0, or fail on numeric keys.
func TestValueAsJSON(t *testing.T) {
	v, err := parseValue(`{f: 1.0, i: 1, n: ~, l: [], m: {100: x}, e: 1.0e+30, t: "<&\u2028"}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"e":1.0e+30,"f":1.0,"i":1,"l":[],"m":{"100":"x"},"n":null,"t":"\u003c\u0026\u2028"}`
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A whole layer that a person wrote must be judged as single keys are.
func TestParseJudgesALayer(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte("# comment\nb: [1, 2]\na: yes\n"))
	if want := "a: \"yes\"\nb:\n  - 1\n  - 2\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := Parse([]byte("# nothing\n")); got != nil || err != nil {
		t.Errorf("an empty layer: %q, %v", got, err)
	}
	for text, want := range map[string]string{
		"a: 1\na: 2\n": "line 2, column 1: the key a appears twice, first in line 1", "a: 1\n\tb: 2\n": "line 2", "a: &x 1\nb: *x\n": "anchor", "a.b: 1\n": "line 1, column 1", "ok: 1\na: \"%{lookup('x'}\"\n": "line 2, column 1: a: every lookup",
		"a: \x00\n": "", "a: \xff\n": "", "a b: 1\n": "white space", "a: 99999999999999999999\n": "", "a: !!binary x\n": "", "[1]\n": "mapping", "a: 1\n---\nb: 2\n": "second",
		"a: " + strings.Repeat("x", MaxInputBytes): "too many",
	} {
		if got, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %q, %v", text, got, err)
		}
	}
}

// An operator decides by what a change shows: each key that differs, and no other.
func TestDifferencesAreComplete(t *testing.T) {
	t.Parallel()
	from, to := []byte("a: 1\nb: 1\nd: [1]\n"), []byte("b: 1.0\nc: ~\nd: [1]\n")
	diffs, err := Differences(from, to)
	var got []string
	for _, d := range diffs {
		text := d.Key
		for _, v := range []*Value{d.From, d.To} {
			if v == nil {
				text += " none"
			} else {
				text += " " + v.String()
			}
		}
		got = append(got, text)
	}
	if want := "a 1 none,b 1 1.0,c none null"; err != nil || strings.Join(got, ",") != want {
		t.Errorf("%q, %v", got, err)
	}
}
