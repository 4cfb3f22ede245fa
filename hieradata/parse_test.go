package hieradata

import (
	"errors"
	"strings"
	"testing"
)

// Without it, an operator's 42, "42" and yes would reach Puppet with other types than displayed.
func TestParseValueKeepsTypes(t *testing.T) {
	for _, c := range []struct{ text, kind, canonical string }{
		{`42`, "integer", `42`},
		{`+7`, "integer", `7`},
		{`-42`, "integer", `-42`},
		{`1_000`, "integer", `1000`},
		{`0777`, "integer", `511`},
		{`0x1F`, "integer", `31`},
		{`0b101`, "integer", `5`},
		{`9223372036854775807`, "integer", `9223372036854775807`},
		{`"42"`, "string", `"42"`},
		{`'0777'`, "string", `"0777"`},
		{`1.50`, "float", `1.5`},
		{`3.0`, "float", `3.0`},
		{`1.0e+30`, "float", `1.0e+30`},
		{`-0.0`, "float", `-0.0`},
		{`true`, "boolean", `true`},
		{`False`, "boolean", `false`},
		{`~`, "null", `null`},
		{`null`, "null", `null`},
		{`yes`, "string", `"yes"`},
		{`no`, "string", `"no"`},
		{`on`, "string", `"on"`},
		{`OFF`, "string", `"OFF"`},
		{`y`, "string", `"y"`},
		{`12:34:56`, "string", `"12:34:56"`},
		{`2024-01-01`, "string", `"2024-01-01"`},
		{`2001-12-14t21:59:43.10-05:00`, "string", `"2001-12-14t21:59:43.10-05:00"`},
		{`1,000`, "string", `"1,000"`},
		{`1e3`, "string", `"1e3"`},
		{`08`, "string", `"08"`},
		{`0o17`, "string", `"0o17"`},
		{`1__0`, "string", `"1__0"`},
		{`:sym`, "string", `":sym"`},
		{`10.0.0.1`, "string", `"10.0.0.1"`},
		{`ntp.example.org`, "string", `ntp.example.org`},
		{`profile::base`, "string", `profile::base`},
		{`hello world`, "string", `"hello world"`},
		{`''`, "string", `""`},
		{`'%{facts.os.name}'`, "string", `"%{facts.os.name}"`},
		{"|\n a\n b\n", "string", `"a\nb\n"`},
		{`[a, 1, "1"]`, "list", "- a\n- 1\n- \"1\""},
		{`{b: 1, a: [x, {c: d, e: []}]}`, "mapping", "a:\n  - x\n  - c: d\n    e: []\nb: 1"},
		{`{100: mgmt, "100": text}`, "mapping", "100: mgmt\n\"100\": text"},
		{"- - a\n  - b\n- {}\n", "list", "- - a\n  - b\n- {}"},
		{`[]`, "list", `[]`},
	} {
		t.Run(c.text, func(t *testing.T) {
			v, err := parseValue(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if v.kind() != c.kind || v.String() != c.canonical {
				t.Errorf("got %s %s, want %s %s", v.kind(), v, c.kind, c.canonical)
			}
			again, err := parseValue(v.String())
			if err != nil || again.String() != v.String() || again.kind() != v.kind() {
				t.Errorf("the canonical text reads as %s %s, %v", again.kind(), again, err)
			}
		})
	}
}

// Without it, Pulley would store YAML for a fleet that Puppet reads differently, or that grows without limit.
func TestParseValueRefuses(t *testing.T) {
	for _, c := range []struct{ text, problem string }{
		{``, "empty"},
		{`  `, "empty"},
		{`# only a comment`, "empty"},
		{`&a [1]`, "anchors"},
		{`[&a 1, *a]`, "anchors"},
		{`!ruby/object:Foo {}`, "tags"},
		{`!!binary aGk=`, "tags"},
		{`!!str 42`, "tags"},
		{`{a: 1, a: 2}`, "twice"},
		{`{a: 1, "a": 2}`, "twice"},
		{`{1: a, 01: b}`, "twice"},
		{`{<<: {a: 1}}`, "merge keys"},
		{`{"<<": []}`, "merge keys"}, // Psych drops it
		{`{~: 1}`, "can't be null"},
		{`{[a]: 1}`, "can't be list"},
		{`99999999999999999999`, "too large"},
		{`.inf`, "not a number"},
		{`.NaN`, "not a number"},
		{"a\n---\nb\n", "second YAML document"},
		{`a: b: c`, "mapping values"},
		{`[`, ""},
		{`%{x}`, ""},
		{"a:\n\t- b", ""},
		{strings.Repeat("[", 100) + strings.Repeat("]", 100), "nested"},
		{strings.Repeat("x", MaxInputBytes+1), "too many"},
		{"{" + strings.Repeat("k", 1001) + ": 1}", "key"},
	} {
		name := c.text[:min(len(c.text), 20)]
		t.Run(name, func(t *testing.T) {
			v, err := parseValue(c.text)
			if err == nil {
				t.Fatalf("accepted as %s %.60s", v.kind(), v)
			}
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Without it, "yes" would become text without a warning.
func TestRemarks(t *testing.T) {
	for text, want := range map[string]string{
		`yes`:                    "yes is kept as text; for a boolean write true or false",
		`{enabled: off}`:         "off is kept as text; for a boolean write true or false",
		`0644`:                   "0644 is the number 420; for text, such as a file's mode, write '0644'",
		`1e3`:                    "1e3 is kept as text; for a number write it with digits, and a point where it is a float",
		`[1, "1,000.00"]`:        "",
		`1,000`:                  "1,000 is kept as text; for a number write it with digits, and a point where it is a float",
		`12:34:56`:               "12:34:56 is kept as text",
		`'yes'`:                  "",
		`10.0.0.1`:               "",
		`2024-01-01`:             "",
		`true`:                   "",
		`[a`:                     "",
		`1.10`:                   "1.10 is the number 1.1; for text, such as a version, write '1.10'",
		`0.12345678901234567891`: "0.12345678901234567891 is the number 0.12345678901234568; for text, such as a version, write '0.12345678901234567891'",
		`3.0`:                    "",
		`1.5`:                    "",
		`.5`:                     "",
		`-0.25`:                  "",
		`1.5e-999999999`:         "",
		`1.0e+30`:                "",
		`'1.10'`:                 "",
	} {
		if got := strings.Join(Remarks(text), "|"); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// Without it, an error in an imported file would have no position.
func TestParseLayerSaysWhere(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a: 1\nb.c: 2\n", "line 2, column 1: "},
		{"a: 1\nb: &x 2\n", "line 2, column 4: "},
		{"a: 1\n7: 2\n", "line 2, column 1: the key 7 is not text (integer)"},
		{"- a\n", "line 1, column 1: a layer is a mapping"},
		{"a: 1\nlookup_options: 3\n", "line 2, column 1: lookup_options is a mapping"},
		{"a: 'x\n", "line "},
	} {
		_, err := parseLayer([]byte(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.text, err, c.want)
		}
	}
}

func FuzzParseLayer(f *testing.F) {
	for _, s := range []string{"", "a: 1", "a: [1, x, {b: ~}]\n", "a: &x 1\nb: *x\n", "a: 'yes'\n\"b\": \"\\x00\\u2028\\U0001F600\"\n", "---\n...\n", "? [a]\n: b", "lookup_options: {a: {merge: deep}}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		canonical, err := canonicalOf(data)
		if err != nil {
			return
		}
		again, err := canonicalOf(canonical)
		if err != nil || string(again) != string(canonical) {
			t.Fatalf("canonical bytes are not stable:\n%q\n%q\n%v", canonical, again, err)
		}
	})
}

func FuzzSetValue(f *testing.F) {
	for _, s := range []string{"42", "yes", "[a, b]", "{a: 1}", "~", "|\n a\n b", "0777", "12:34:56", "\"\\u0085\"", "1.0e+20", "{1: a, '1': b}", "- - - a"} {
		f.Add("ntp::servers", s)
	}
	f.Fuzz(func(t *testing.T, key, text string) {
		layer, err := Set(nil, key, text)
		if err != nil {
			return
		}
		want, err := parseValue(text)
		if err != nil {
			t.Fatalf("Set took what parseValue refuses: %v", err)
		}
		got, has, err := Get(layer, key)
		if err != nil || !has || got.String() != want.String() || got.kind() != want.kind() {
			t.Fatalf("set %s, got %s, %v, %v", want, got, has, err)
		}
		left, had, err := Unset(layer, key)
		if err != nil || !had || left != nil {
			t.Fatalf("unset left %q, %v, %v", left, had, err)
		}
	})
}
