package model

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

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

// A role that is invalid in a hostname, or that hides a node's number, would give machines without a usable name.
func TestCheckRole(t *testing.T) {
	const parts = "each part between dashes has to end in a letter, to separate a node's number from its role"
	for _, c := range []struct{ sentence, name, problem, hint string }{
		{"a word is a role", "controller", "", ""},
		{"digits may stand inside a part", "k8s-web", "", ""},
		{"a part may start with a digit, except the first", "web-2nd", "", ""},
		{"one letter is enough", "a", "", ""},
		{"62 bytes leave room for a digit", strings.Repeat("a", 62), "", ""},
		{"63 bytes leave none", strings.Repeat("a", 63), "it is 63 bytes long, at most 62 are allowed", ""},
		{"a role has a name", "", "it is empty", ""},
		{"a hostname has no underscore", "web_db", "'_' can't be part of it, only a-z, 0-9 and '-' can", "did you mean web-db?"},
		{"hostnames are written in lower case", "Web", "'W' can't be part of it, only a-z, 0-9 and '-' can", "did you mean web?"},
		{"no letters beyond ASCII", "büro", "'ü' can't be part of it, only a-z, 0-9 and '-' can", ""},
		{"bytes that are no characters", "a\xff", "'�' can't be part of it, only a-z, 0-9 and '-' can", ""},
		{"a digit at the end would run into the number", "web2", parts, "did you mean web?"},
		{"a digit before a dash would look like the number", "web2-db", parts, ""},
		{"a dash at the end", "web-", parts, "did you mean web?"},
		{"two dashes", "web--db", parts, ""},
		{"a dash at the start", "-web", "it has to start with a letter", "did you mean web?"},
		{"a digit at the start", "3par", "it has to start with a letter", ""},
		{"a node's name is not its role", "web1_t42", "'_' can't be part of it, only a-z, 0-9 and '-' can", ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			want := ""
			if c.problem != "" {
				want = "cannot use role name " + Quoted(c.name) + ": " + c.problem
			}
			says(t, CheckRole(c.name), want, c.hint)
		})
	}
}

// A name that Puppet refuses as an environment would fail on every node, long after an operator chose it.
func TestCheckEnvironment(t *testing.T) {
	for _, c := range []struct{ sentence, name, problem, hint string }{
		{"a word", "dev", "", ""},
		{"an underscore", "eu_west_1", "", ""},
		{"63 bytes", strings.Repeat("e", 63), "", ""},
		{"64 bytes", strings.Repeat("e", 64), "it is 64 bytes long, at most 63 are allowed", ""},
		{"Puppet knows no dash", "eu-west", "'-' can't be part of it, only a-z, 0-9 and '_' can", "did you mean eu_west?"},
		{"Puppet knows no upper case", "Dev", "'D' can't be part of it, only a-z, 0-9 and '_' can", "did you mean dev?"},
		{"a digit at the start", "1st", "it has to start with a letter", ""},
		{"an underscore at the start", "_dev", "it has to start with a letter", "did you mean dev?"},
		{"a path", "../dev", "'.' can't be part of it, only a-z, 0-9 and '_' can", ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			want := ""
			if c.problem != "" {
				want = "cannot use environment name " + Quoted(c.name) + ": " + c.problem
			}
			says(t, Cannot("use environment name", Quoted(c.name), EnvironmentFlaw(c.name)), want, c.hint)
		})
	}
}

// A stack is the end of a hostname: it must be valid there.
func TestCheckStack(t *testing.T) {
	checkStack := func(name string) error { return Cannot("use stack name", Quoted(name), StackFlaw(name)) }
	for _, good := range []string{"t42", "42", "a", "a-b--c", strings.Repeat("s", 60)} {
		says(t, checkStack(good), "", "")
	}
	says(t, checkStack("t_42"), `cannot use stack name "t_42": '_' can't be part of it, only a-z, 0-9 and '-' can`, "did you mean t-42?")
	says(t, checkStack("t42-"), `cannot use stack name "t42-": it can't start or end with a dash`, "did you mean t42?")
	says(t, checkStack(""), `cannot use stack name "": it is empty`, "")
	says(t, checkStack(strings.Repeat("s", 61)), `cannot use stack name "`+strings.Repeat("s", 61)+`": it is 61 bytes long, at most 60 are allowed`, "")
}

func TestParseNode(t *testing.T) {
	for _, c := range []struct {
		sentence, name string
		want           Node
		problem, hint  string
	}{
		{"a role and a number", "controller1", Node{"controller", 1, ""}, "", ""},
		{"a number above 9", "controller10", Node{"controller", 10, ""}, "", ""},
		{"a stack", "controller1_t42", Node{"controller", 1, "t42"}, "", ""},
		{"a stack of digits and dashes", "k8s-web12_4-2", Node{"k8s-web", 12, "4-2"}, "", ""},
		{"the highest number", "a9999999", Node{"a", 9999999, ""}, "", ""},
		{"one more", "a10000000", Node{}, "its number is above 9999999", ""},
		{"far more", "a99999999999999999999", Node{}, "its number is above 9999999", ""},
		{"no number", "controller", Node{}, "it has no number", "nodes are called <role><number>, or <role><number>_<stack>"},
		{"nothing", "", Node{}, "it has no number", "nodes are called <role><number>, or <role><number>_<stack>"},
		{"number 0", "controller0", Node{}, "nodes are numbered from 1", ""},
		{"a leading zero", "controller01", Node{}, "its number starts with 0", "write it without leading zeros"},
		{"no role", "42", Node{}, `its role "" is not a role name: it is empty`, ""},
		{"a hostname", "controller1-t42", Node{}, "that is a hostname", "did you mean controller1_t42?"},
		{"a dash before the number", "web-1", Node{}, `its role "web-" is not a role name: each part between dashes has to end in a letter, to separate a node's number from its role`, "did you mean web?"},
		{"an empty stack", "controller1_", Node{}, `its stack "" is not a stack name: it is empty`, ""},
		{"two stacks", "controller1_a_b", Node{}, `its stack "a_b" is not a stack name: '_' can't be part of it, only a-z, 0-9 and '-' can`, "did you mean a-b?"},
		{"too long for a hostname", "a1_" + strings.Repeat("s", 60), Node{"a", 1, strings.Repeat("s", 60)}, "", ""},
		{"one byte too long for a hostname", "a12_" + strings.Repeat("s", 60), Node{}, "its hostname would be 64 bytes long, at most 63 are allowed", ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := ParseNode(c.name)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			want := ""
			if c.problem != "" {
				want = "cannot parse node " + Quoted(c.name) + ": " + c.problem
			}
			says(t, err, want, c.hint)
		})
	}
}

func TestParseHostname(t *testing.T) {
	for _, c := range []struct {
		sentence, name string
		want           Node
		problem, hint  string
	}{
		{"a role and a number", "compute11", Node{"compute", 11, ""}, "", ""},
		{"a stack", "compute1-t42", Node{"compute", 1, "t42"}, "", ""},
		{"a stack that looks like a node", "compute1-web-2-x3", Node{"compute", 1, "web-2-x3"}, "", ""},
		{"a role with dashes", "k8s-web12-4-2", Node{"k8s-web", 12, "4-2"}, "", ""},
		{"a domain name", "compute1-t42.example.com", Node{"compute", 1, "t42"}, "", ""},
		{"a node's name", "compute1_t42", Node{}, `its role "compute1_t" is not a role name: '_' can't be part of it, only a-z, 0-9 and '-' can`, "did you mean compute1-t42?"},
		{"a machine of another name", "localhost", Node{}, "it has no number", "nodes are called <role><number>, or <role><number>_<stack>"},
		{"a number that is a part of its own", "web-1", Node{}, `its role "web-" is not a role name: each part between dashes has to end in a letter, to separate a node's number from its role`, "did you mean web?"},
		{"an empty stack", "web1-", Node{}, `its stack "" is not a stack name: it is empty`, ""},
		{"an address", "192.0.2.1", Node{}, `its role "" is not a role name: it is empty`, ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := ParseHostname(c.name)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			want := ""
			if c.problem != "" {
				want = "cannot parse hostname " + Quoted(c.name) + ": " + c.problem
			}
			says(t, err, want, c.hint)
		})
	}
}

var (
	anyRole  = rapid.StringMatching(`[a-z]([a-z0-9]{0,6}[a-z])?(-[a-z0-9]{0,6}[a-z]){0,2}`)
	anyStack = rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?`))
	anyEnv   = rapid.StringMatching(`[a-z][a-z0-9_]{0,20}`)
)

// A name that parses as another node would send one machine's target to another.
func TestNodeNamesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := Node{
			Role:  anyRole.Draw(t, "role"),
			Num:   rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, MaxNum)).Draw(t, "num"),
			Stack: anyStack.Draw(t, "stack"),
		}
		if got, err := ParseNode(n.String()); err != nil || got != n {
			t.Fatalf("%+v is called %s, which reads as %+v (%v)", n, n, got, err)
		}
		if got, err := ParseHostname(n.Hostname()); err != nil || got != n {
			t.Fatalf("%+v has hostname %s, which reads as %+v (%v)", n, n.Hostname(), got, err)
		}
	})
}

// Two fleets that share a key would overwrite each other.
func TestRefsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Ref{Environment: anyEnv.Draw(t, "environment"), Stack: anyStack.Draw(t, "stack")}
		if got, err := ParseRef(r.String()); err != nil || got != r {
			t.Fatalf("%+v is called %s, which reads as %+v (%v)", r, r, got, err)
		}
	})
}

func TestParseRefRefuses(t *testing.T) {
	for _, c := range []struct{ ref, problem, hint string }{
		{"", "it is empty", ""},
		{"@t42", "it is empty", ""},
		{"dev@", `its stack "" is not a stack name: it is empty`, ""},
		{"dev@t_42", `its stack "t_42" is not a stack name: '_' can't be part of it, only a-z, 0-9 and '-' can`, "did you mean t-42?"},
		{"dev@a@b", `its stack "a@b" is not a stack name: '@' can't be part of it, only a-z, 0-9 and '-' can`, ""},
		{"dev/x", "'/' can't be part of it, only a-z, 0-9 and '_' can", ""},
	} {
		_, err := ParseRef(c.ref)
		says(t, err, "cannot use environment "+Quoted(c.ref)+": "+c.problem, c.hint)
	}
}

// An operator may give a node and its environment, and means the node's fleet. A contradiction must be an error.
func TestRefOfNode(t *testing.T) {
	for _, c := range []struct{ ref, node, want, problem, hint string }{
		{"dev", "web1", "dev", "", ""},
		{"dev", "web1_t42", "dev@t42", "", ""},
		{"dev@t42", "web1_t42", "dev@t42", "", ""},
		{"dev@t42", "web1_t43", "", "cannot find node web1_t43 in dev@t42: it is not of stack t42", "did you mean web1_t42, or dev@t43?"},
		{"dev@t42", "web1", "", "cannot find node web1 in dev@t42: it is not of stack t42", "did you mean web1_t42, or dev?"},
	} {
		r, errRef := ParseRef(c.ref)
		n, errNode := ParseNode(c.node)
		if errRef != nil || errNode != nil {
			t.Fatal(errRef, errNode)
		}
		got, err := r.Of(n)
		if got.String() != c.want {
			t.Errorf("%s of %s is %s, want %s", c.node, c.ref, got, c.want)
		}
		says(t, err, c.problem, c.hint)
	}
}

// A suggestion must be the name that the user meant.
func TestSuggestName(t *testing.T) {
	known := []string{"controller", "compute", "web", "db"}
	for _, c := range []struct{ sentence, got, want string }{
		{"a byte too few", "controler", "controller"},
		{"two swapped", "contorller", "controller"},
		{"upper case is no slip", "CONTROLLER", "controller"},
		{"two others", "komputa", "compute"},
		{"three are too many", "komputah", ""},
		{"a short name with one slip", "wep", "web"},
		{"a short name with two slips is another name", "wxy", ""},
		{"nothing", "", ""},
		{"a flood", strings.Repeat("x", 1<<20), ""},
		{"the nearest, not the first", "wb", "web"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			if got := SuggestName(c.got, known); got != c.want {
				t.Errorf("%s: got %q, want %q", c.got[:min(len(c.got), 20)], got, c.want)
			}
		})
	}
}
