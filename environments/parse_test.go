package environments

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"

	"pulley/internal/model"
)

const planFile = `roles:
  controller:
    cardinality: 2
    flavor: bare-metal
  compute:
    cardinality: 1
    flavor: bare-metal
`

func nodeNames(e *Environment) []string {
	var names []string
	for n := range e.Nodes() {
		names = append(names, n.String())
	}
	return names
}

// The example file of the plan must parse unchanged.
func TestParseThePlansFile(t *testing.T) {
	e, err := Parse("environments/dev.yaml", []byte(planFile))
	if err != nil {
		t.Fatal(err)
	}
	want := Environment{Name: "dev", Roles: []Role{{Name: "controller", Cardinality: 2, Flavor: "bare-metal"}, {Name: "compute", Cardinality: 1, Flavor: "bare-metal"}}}
	if !same(e, &want) {
		t.Errorf("got %+v, want %+v", *e, want)
	}
	if got := strings.Join(nodeNames(e), " "); got != "controller1 controller2 compute1" {
		t.Errorf("its nodes are %s", got)
	}
	if e.Ref().String() != "dev" || e.Count() != 3 {
		t.Errorf("fleet %s, count %d", e.Ref(), e.Count())
	}
	e, err = Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1, members: [old1.example.com]}\n"))
	if err != nil || e.Count() != 2 {
		t.Errorf("of one number and one member: %v, %v", e, err)
	}
}

func TestParseAcceptsEquivalentForms(t *testing.T) {
	for _, c := range []struct{ sentence, file, yaml, nodes string }{
		{"a stack", "dev.yaml", "stack: t42\n" + planFile, "controller1_t42 controller2_t42 compute1_t42"},
		{"a stack below the roles", "dev.yml", planFile + "stack: \"42\"\n", "controller1_42 controller2_42 compute1_42"},
		{"Windows line ends and a byte order mark", "dev.yaml", "\ufeff" + strings.ReplaceAll(planFile, "\n", "\r\n"), "controller1 controller2 compute1"},
		{"flow style, quotes, comments and a document marker", "dev.yaml", "---\n{\"roles\": {'web': {cardinality: 1}}} # one\n...\n", "web1"},
		{"a role without nodes", "dev.yaml", "roles: {web: {cardinality: 0}}", ""},
		{"no roles", "dev.yaml", "roles: {}", ""},
		{"tabs where they indent nothing", "dev.yaml", "roles:\t# \tx\n  web:\n    cardinality:\t1\t\n", "web1"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			e, err := Parse(c.file, []byte(c.yaml))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(nodeNames(e), " "); got != c.nodes {
				t.Errorf("got %q, want %q", got, c.nodes)
			}
		})
	}
}

// Each mistake must be reported with its position and, if there is one, a remedy. "|" separates the hint.
func TestParseRefuses(t *testing.T) {
	role := func(lines string) string { return "roles:\n  web:\n" + lines }
	for _, c := range []struct{ sentence, yaml, want string }{
		{"an empty file", "", "dev.yaml: the file is empty | it must contain `roles:`"},
		{"only comments", "# nothing\n", "dev.yaml: the file is empty | it must contain `roles:`"},
		{"an empty document", "---\n", "dev.yaml: the file is empty | it must contain `roles:`"},
		{"text instead of keys", "hello", `dev.yaml:1:1: an environment is the text "hello", it has to be keys with values`},
		{"a list instead of keys", "- roles", "dev.yaml:1:1: an environment is a list, it has to be keys with values"},
		{"roles are missing", "stack: t42", "dev.yaml:1:1: roles is missing | for an environment without nodes, write `roles: {}`"},
		{"roles without a value", "roles:\n", "dev.yaml:1:7: roles has no value, it has to be keys with values"},
		{"roles as a list", "roles:\n  - web", "dev.yaml:2:3: roles is a list, it has to be keys with values"},
		{"an unknown key that is near", "role:\n  web: {cardinality: 1}\n", `dev.yaml:1:1: an environment has no key "role" | did you mean roles?`},
		{"an unknown key", "roles: {}\ncolour: red\n", `dev.yaml:2:1: an environment has no key "colour" | its keys are stack, provider, flavors, images, networks, signatures, statement, silence, rollout, trusted, layers, nodes, enc, puppet, hosts, applications, userdata and roles`},
		{"an unknown key of a role that is near", role("    cardinalty: 1\n"), `dev.yaml:3:5: role "web" has no key "cardinalty" | did you mean cardinality?`},
		{"another word for cardinality", role("    replicas: 1\n"), `dev.yaml:3:5: role "web" has no key "replicas" | did you mean cardinality?`},
		{"an unknown key of a role, and cardinality missing", role("    colour: red\n"),
			`dev.yaml:2:3: role "web" has no cardinality | add the number of its nodes: ` + "`cardinality: 1`" + `
dev.yaml:3:5: role "web" has no key "colour" | its keys are cardinality, flavor, image, networks, labels, after, reacts_to, sees, protected, replace, userdata, trusted, attributes, enc and members`},
		{"no cardinality", role("    flavor: small\n"), `dev.yaml:2:3: role "web" has no cardinality | add the number of its nodes: ` + "`cardinality: 1`"},
		{"a role with nothing", role(""), `dev.yaml:2:7: role "web" has no value, it has to be keys with values`},
		{"no space after a colon", "roles:\n  web:\n    cardinality:1\n", `dev.yaml:3:5: role "web" is the text "cardinality:1", it has to be keys with values | put a space after the colon`},

		{"cardinality below 0", role("    cardinality: -1\n"), `dev.yaml:3:18: cardinality of "web": it is -1, below 0 | 0 keeps the role without nodes`},
		{"cardinality above the most", role("    cardinality: 1000001\n"), `dev.yaml:3:18: cardinality of "web": it is 1000001, an environment has at most 1000000 nodes`},
		{"cardinality beyond any integer", role("    cardinality: 99999999999999999999\n"), `dev.yaml:3:18: cardinality "99999999999999999999" is out of range`},
		{"cardinality without a value", role("    cardinality:\n"), "dev.yaml:3:17: cardinality has no value, it has to be an integer"},
		{"cardinality as a decimal number", role("    cardinality: 2.0\n"), `dev.yaml:3:18: cardinality is the decimal number "2.0", not an integer`},
		{"cardinality with an exponent", role("    cardinality: 1e3\n"), `dev.yaml:3:18: cardinality is the decimal number "1e3", not an integer`},
		{"cardinality as text", role("    cardinality: \"2\"\n"), "dev.yaml:3:18: cardinality is text, not an integer | write it without quotes: 2"},
		{"cardinality as a word", role("    cardinality: two\n"), `dev.yaml:3:18: cardinality is the text "two", not an integer`},
		{"cardinality as a boolean", role("    cardinality: true\n"), `dev.yaml:3:18: cardinality is the boolean "true", not an integer`},
		{"cardinality as a list", role("    cardinality: [2]\n"), "dev.yaml:3:18: cardinality is a list, it has to be an integer"},
		{"a leading zero", role("    cardinality: 017\n"), `dev.yaml:3:18: cardinality "017" is not written as a decimal integer | without the leading zero: readers of YAML disagree about what it means`},
		{"octal", role("    cardinality: 0o17\n"), `dev.yaml:3:18: cardinality "0o17" is not written as a decimal integer | write 15`},
		{"hexadecimal", role("    cardinality: 0x10\n"), `dev.yaml:3:18: cardinality "0x10" is not written as a decimal integer | write 16`},
		{"underscores", role("    cardinality: 1_000\n"), `dev.yaml:3:18: cardinality "1_000" is not written as a decimal integer | write 1000`},
		{"an integer beyond 64 bits, in hexadecimal", role("    cardinality: 0xffffffffffffffff\n"), `dev.yaml:3:18: cardinality "0xffffffffffffffff" is not written as a decimal integer | use the digits 0 to 9`},
		{"a plus sign", role("    cardinality: +3\n"), `dev.yaml:3:18: cardinality "+3" is not written as a decimal integer | write 3`},
		{"minus zero", role("    cardinality: -0\n"), `dev.yaml:3:18: cardinality "-0" is not written as a decimal integer | write 0`},

		{"a flavor that YAML takes for a number", role("    cardinality: 1\n    flavor: 4\n"), `dev.yaml:4:13: flavor is the integer "4", not text | put quotes around it: "4"`},
		{"a flavor that YAML takes for a boolean", role("    cardinality: 1\n    flavor: true\n"), `dev.yaml:4:13: flavor is the boolean "true", not text | put quotes around it: "true"`},
		{"a flavor without a value", role("    cardinality: 1\n    flavor:\n"), "dev.yaml:4:12: flavor has no value, it has to be text"},
		{"an empty flavor", role("    cardinality: 1\n    flavor: ''\n"), "dev.yaml:4:13: flavor is empty | leave the line out if there is none"},
		{"a flavor of two words", role("    cardinality: 1\n    flavor: bare metal\n"), `dev.yaml:4:13: flavor "bare metal": ' ' can't be part of it`},

		{"a flavor that is too long", role("    cardinality: 1\n    flavor: " + strings.Repeat("f", 129) + "\n"),
			`dev.yaml:4:13: flavor "` + strings.Repeat("f", 67) + `…": it is 129 bytes long, at most 128 are allowed`},

		{"a role that no hostname bears", "roles:\n  web_db: {cardinality: 1}\n", `dev.yaml:2:3: role "web_db": '_' can't be part of it, only a-z, 0-9 and '-' can | did you mean web-db?`},
		{"a role that swallows its number", "roles:\n  web1: {cardinality: 1}\n", `dev.yaml:2:3: role "web1": each part between dashes has to end in a letter, to separate a node's number from its role | did you mean web?`},
		{"a role that YAML takes for a number", "roles:\n  7: {cardinality: 1}\n", `dev.yaml:2:3: a key of roles is the integer "7", not text | put quotes around it if it is meant as text`},
		{"a role that is a list", "roles:\n  [a, b]: {cardinality: 1}\n", "dev.yaml:2:3: a key of roles is a list, not text | put quotes around it if it is meant as text"},
		{"the last node's hostname is too long", "stack: t42\nroles:\n  " + strings.Repeat("w", 57) + ": {cardinality: 100}\n",
			"dev.yaml:3:3: role \"" + strings.Repeat("w", 57) + "\": the hostname of its node " + strings.Repeat("w", 57) +
				"100_t42 would be 64 bytes long, at most 63 are allowed | make the role's name shorter by 1"},
		{"a role whose nodes another role's pattern matches", "roles:\n  web: {cardinality: 1}\n  web2nd: {cardinality: 1}\n",
			`dev.yaml:3:3: role "web2nd": node /^web\d+/ of role "web" would match its nodes, too`},
		{"a role twice", planFile + "  controller:\n    cardinality: 3\n", `dev.yaml:8:3: "controller" appears twice, first in line 2, column 3 | keep one of them`},
		{"a key of a role twice", role("    cardinality: 1\n    cardinality: 2\n"), `dev.yaml:4:5: "cardinality" appears twice, first in line 3, column 5 | keep one of them`},
		{"a key twice", "roles: {}\nroles: {}\n", `dev.yaml:2:1: "roles" appears twice, first in line 1, column 1 | keep one of them`},
		{"too many nodes together", "roles:\n  a: {cardinality: 600000}\n  b: {cardinality: 600000}\n", `dev.yaml:3:20: with role "b" the environment has more than 1000000 nodes`},
		{"a stack that no hostname bears", "stack: T_42\nroles: {}\n", `dev.yaml:1:8: stack "T_42": 'T' can't be part of it, only a-z, 0-9 and '-' can | did you mean t-42?`},
		{"a stack that YAML takes for a number", "stack: 42\nroles: {}\n", `dev.yaml:1:8: stack is the integer "42", not text | put quotes around it: "42"`},

		{"an anchor and its alias", "roles:\n  web: &w {cardinality: 1}\n  db: *w\n",
			`dev.yaml:2:8: anchors ("&w") are not supported | leave it out
dev.yaml:3:7: aliases ("*w") are not supported | write the values out`},
		{"an alias of nothing", "roles:\n  web:\n    cardinality: 1\n  db: *w\n  c: {}\n", `dev.yaml:4:3: aliases ("*w") are not supported | write the values out`},
		{"a merge key", "roles:\n  web:\n    <<: {cardinality: 1}\n", "dev.yaml:3:5: merge keys (<<) are not supported | write the keys out"},
		{"a tag", "roles:\n  web:\n    cardinality: !!int \"1\"\n",
			`dev.yaml:3:18: tags ("!!int") are not supported | leave it out`},
		{"a second document", planFile + "---\nroles: {}\n", "dev.yaml:8:1: a second document begins here | an environment is one file"},

		{"a tab for indentation", "roles:\n\tweb:\n", "dev.yaml:2:1: tabs can't indent YAML | use spaces"},
		{"a tab after spaces", "roles:\n  web:\n  \tcardinality: 1\n    flavor: x\n", "dev.yaml:3:3: tabs can't indent YAML | use spaces"},
		{"a tab in the first line", "\troles: {}", "dev.yaml:1:1: tabs can't indent YAML | use spaces"},
		{"a key indented too little, three lines below its block", "roles:\n  web:\n    cardinality: 1\n   flavor: x\n",
			"dev.yaml:4:4: this is not YAML: did not find expected key | keys that belong together need the same indentation"},
		{"a key indented too much", "roles:\n  web:\n    cardinality: 1\n     flavor: x\n",
			"dev.yaml:4:6: this is not YAML: mapping values are not allowed in this context | a colon needs a space after it, and keys that belong together the same indentation"},
		{"a quote that never ends", "roles:\n  web:\n    cardinality: 1\n    flavor: \"x\n  db: {}\n", "dev.yaml:4:5: this is not YAML: found unexpected end of stream"},
		{"a control character", "roles: {}\n# \x01\n", "dev.yaml:2:1: this is not YAML: control characters are not allowed"},
		{"bytes that are not UTF-8", "roles: {}\n# ü \xfc\n", "dev.yaml:2:5: byte 0xfc is not UTF-8 | save the file as UTF-8"},
		{"UTF-16", "\xff\xfer\x00o\x00", "dev.yaml:1:1: byte 0xff is not UTF-8 | it looks like UTF-16: save the file as UTF-8"},
		{"a file that is too large", strings.Repeat("#", 4<<20+1), "dev.yaml: the file has 4194305 bytes, at most 4194304 are read"},

		{"several mistakes", "stck: t42\nroles:\n  Web: {cardinality: -1}\n  db: {cardinality: 1, flavour: small}\n",
			`dev.yaml:1:1: an environment has no key "stck" | did you mean stack?
dev.yaml:3:3: role "Web": 'W' can't be part of it, only a-z, 0-9 and '-' can | did you mean web?
dev.yaml:3:22: cardinality of "Web": it is -1, below 0 | 0 keeps the role without nodes
dev.yaml:4:24: role "db" has no key "flavour" | did you mean flavor?`},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := Parse("dev.yaml", []byte(c.yaml))
			if got := problemLines(t, err); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// problemLines returns one line per problem, with its hint.
func problemLines(t *testing.T, err error) string {
	t.Helper()
	var problems Errors
	if !errors.As(err, &problems) {
		t.Fatalf("the error is %v, not a list of problems", err)
	}
	var lines []string
	for _, p := range problems {
		line := p.Error()
		if p.Hint() != "" {
			line += " | " + p.Hint()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// The name of the file is the environment's name: an invalid one must be reported like any other mistake.
func TestParseRefusesFileNames(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"x/my-dev.yaml", `x/my-dev.yaml: the file's name is the environment's, and "my-dev" is not an environment name: '-' can't be part of it, only a-z, 0-9 and '_' can | did you mean my_dev?`},
		{".yaml", `.yaml: the file's name is the environment's, and "" is not an environment name: it is empty`},
		{"dev.json", "dev.json: the file has to be called <environment>.yaml, its name is the environment's"},
		{"-", "-: the file has to be called <environment>.yaml, its name is the environment's"},
	} {
		_, err := Parse(c.file, []byte(planFile))
		if got := problemLines(t, err); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

// Each of several problems has its hint beside it. The hint of a single problem is printed by the command.
func TestErrorsReadWell(t *testing.T) {
	_, err := Parse("dev.yaml", []byte("stck: t42\nroles:\n  Web: {cardinality: 1}\n"))
	says(t, err, `dev.yaml:1:1: an environment has no key "stck"
  did you mean stack?
dev.yaml:3:3: role "Web": 'W' can't be part of it, only a-z, 0-9 and '-' can
  did you mean web?`, "")
	_, err = Parse("dev.yaml", []byte("role: {}"))
	says(t, err, `dev.yaml:1:1: an environment has no key "role"`, "did you mean roles?")
	var one *model.Error
	if !errors.As(err, &one) || one.Line != 1 || one.Column != 1 {
		t.Errorf("errors.As finds no place in %v", err)
	}
}

// A file full of mistakes must not flood the terminal.
func TestParseReportsAtMostHundredProblems(t *testing.T) {
	_, err := Parse("dev.yaml", []byte("roles: {}\n"+strings.Repeat("x: 1\n", 5000)))
	lines := strings.Split(problemLines(t, err), "\n")
	if len(lines) != 101 || lines[100] != "dev.yaml: 4900 more problems" {
		t.Errorf("%d lines, the last one %q", len(lines), lines[len(lines)-1])
	}
}

type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("internal error: unexpected tail comment event") }

// A bug in the YAML library must not crash the command.
func TestDecodeNextSurvivesAPanic(t *testing.T) {
	err := decodeNext(yaml.NewDecoder(panicking{}), new(yaml.Node))
	says(t, err, "yaml: internal error: unexpected tail comment event", "")
}

// A file above maxLocateBytes must still get its message, quickly.
func TestParseLargeFileWithASyntaxError(t *testing.T) {
	text := "roles:\n" + strings.Repeat("  # comment\n", 50_000) + "  web: ]\n"
	_, err := Parse("dev.yaml", []byte(text))
	if got := problemLines(t, err); !strings.HasPrefix(got, "dev.yaml:5000") || !strings.Contains(got, "this is not YAML: did not find expected node content") {
		t.Errorf("got %s", got)
	}
}

func TestParseManyRoles(t *testing.T) {
	file := func(count int) []byte {
		var b strings.Builder
		b.WriteString("roles:\n")
		for i := range count {
			fmt.Fprintf(&b, "  r%s: {cardinality: 1}\n", strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprint(i)))
		}
		return []byte(b.String())
	}
	if _, err := Parse("dev.yaml", file(maxRoles)); err != nil {
		t.Error(err)
	}
	_, err := Parse("dev.yaml", file(maxRoles+1))
	says(t, err, "dev.yaml:1:1: there are 1001 roles, at most 1000 are allowed", "")
}

// An environment of a hundred thousand nodes must work like any other.
func TestHundredThousandNodes(t *testing.T) {
	e, err := Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 99999}\n  db: {cardinality: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[model.Node]bool{}
	for n := range e.Nodes() {
		if seen[n] || !e.Has(n) {
			t.Fatalf("%s appears twice, or is not a node", n)
		}
		seen[n] = true
	}
	if len(seen) != 100_000 || e.Count() != 100_000 {
		t.Errorf("%d nodes, counted %d", len(seen), e.Count())
	}
}

// Iterating over a few of many nodes must not cost as much as all of them, nor panic.
func TestNodesCanBeLeftEarly(t *testing.T) {
	e := &Environment{Name: "dev", Roles: []Role{{Name: "web", Cardinality: 2, Flavor: ""}, {Name: "db", Cardinality: maxNodes}}}
	var got []string
	for n := range e.Nodes() {
		if got = append(got, n.String()); len(got) == 3 {
			break
		}
	}
	if strings.Join(got, " ") != "web1 web2 db1" {
		t.Errorf("got %s", got)
	}
}

func BenchmarkHundredThousandNodes(b *testing.B) {
	data := []byte("roles:\n  web: {cardinality: 100000}\n")
	for b.Loop() {
		e, err := Parse("dev.yaml", data)
		if err != nil {
			b.Fatal(err)
		}
		for range e.Nodes() {
		}
	}
}

// A node that is not in the environment must not join.
func TestHas(t *testing.T) {
	e, err := Parse("dev.yaml", []byte("stack: t42\n"+planFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"controller1_t42": true, "controller2_t42": true, "controller3_t42": false, "controller1": false,
		"controller1_t43": false, "web1_t42": false, "compute1_t42": true,
	} {
		n, err := model.ParseNode(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Has(n); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if r, ok := e.Role("compute"); !ok || r.Cardinality != 1 {
		t.Errorf("compute is %+v, %v", r, ok)
	}
	if _, ok := e.Role("web"); ok {
		t.Error("there is no role web")
	}
}

// If the samples did not parse, the first command of a new user would fail.
func TestSamplesParse(t *testing.T) {
	counts := map[string]int{"dev.yaml": 3, "production.yaml": 43}
	entries, err := fs.ReadDir(Samples(), "environments")
	if err != nil || len(entries) != len(counts) {
		t.Fatalf("%d samples, %v", len(entries), err)
	}
	for _, entry := range entries {
		data, err := fs.ReadFile(Samples(), "environments/"+entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		e, err := Parse(entry.Name(), data)
		if err != nil {
			t.Fatal(err)
		}
		if e.Count() != counts[entry.Name()] {
			t.Errorf("%s has %d nodes", entry.Name(), e.Count())
		}
	}
}

func TestParseReadsEveryEnvironment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyEnvironment.Draw(t, "environment")
		got, err := Parse(want.Name+".yaml", render(want))
		if err != nil {
			t.Fatal(err)
		}
		if !same(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// hintOf returns the hint of err, as the commands print it.
func hintOf(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// says fails unless err has the text want and the hint; want "" means no error.
func says(t *testing.T, err error, want, hint string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want || hintOf(err) != hint {
		t.Errorf("got  %s\nhint %s\nwant %s\nhint %s", got, hintOf(err), want, hint)
	}
}
