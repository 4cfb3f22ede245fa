package pki

import (
	"strings"
	"testing"
)

// A name that parses as another node's name gives a machine foreign permissions.
func TestNamesReadBack(t *testing.T) {
	for _, n := range []Name{
		{"pulley", KindNode, "dev", "controller1", "0123456789abcdef"},
		{"pulley", KindNode, "dev@t42", "compute1_t42", "0123456789abcdef"},
		{"fleets/north", KindNode, "dev", "db.example.com", "0123456789abcdef"},
		{"pulley", KindOperator, "", "ann", "0123456789abcdef"},
		{"a/b/c", KindServe, "", "host-1", "0123456789abcdef"},
		{"pulley", KindNode, "node", "operator", "0123456789abcdef"},
		{"serve", KindOperator, "", "node", "0123456789abcdef"},
	} {
		if err := n.Check(); err != nil {
			t.Error(err)
		}
		if back, err := ParseName(n.String()); err != nil || back != n {
			t.Errorf("%s is read as %+v, %v", n, back, err)
		}
	}
	role := Name{"pulley", KindNode, "dev", "controller1", "0123456789abcdef"}.Role()
	if role != "pulley/node/dev/controller1" {
		t.Errorf("the role is %s", role)
	}
}

// A name with a slash in a part, or with a prefix that ends like a kind, could stand for another user.
func TestInvalidNamesAreRejected(t *testing.T) {
	good := Name{"pulley", KindNode, "dev", "controller1", "0123456789abcdef"}
	for what, spoil := range map[string]func(*Name){
		"no prefix":           func(n *Name) { n.Prefix = "" },
		"slash around":        func(n *Name) { n.Prefix = "/pulley" },
		"no kind":             func(n *Name) { n.Kind = "" },
		"other kind":          func(n *Name) { n.Kind = "root" },
		"no environment":      func(n *Name) { n.Environment = "" },
		"no node":             func(n *Name) { n.Subject = "" },
		"slash in node":       func(n *Name) { n.Subject = "a/b" },
		"slash in stack":      func(n *Name) { n.Environment = "dev@a/b" },
		"NUL":                 func(n *Name) { n.Subject = "a\x00" },
		"space":               func(n *Name) { n.Subject = "a b" },
		"long":                func(n *Name) { n.Subject = strings.Repeat("a", 254) },
		"no incarnation":      func(n *Name) { n.Incarnation = "" },
		"short incarnation":   func(n *Name) { n.Incarnation = "0123" },
		"capital incarnation": func(n *Name) { n.Incarnation = "0123456789ABCDEF" },
		"environment of serve": func(n *Name) {
			n.Kind = KindServe
		},
		"reads as a node": func(n *Name) {
			*n = Name{"pulley/node", KindOperator, "", "ann", "0123456789abcdef"}
		},
	} {
		n := good
		spoil(&n)
		if err := n.Check(); err == nil {
			t.Errorf("%s: %s is taken", what, n)
		}
	}
}

// Two joins of one name with the same incarnation would make a revoked certificate valid again.
func TestIncarnationsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		i := NewIncarnation()
		if !isIncarnation(i) || seen[i] {
			t.Fatalf("incarnation %q", i)
		}
		seen[i] = true
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{
		"pulley/node/dev/controller1/0123456789abcdef", "a/b/operator/ann/0123456789abcdef", "pulley/serve/h/0123456789abcdef",
		"pulley/node/operator/ann/0123456789abcdef", "root", "", "/////", "pulley/node//x/0123456789abcdef",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseName(s)
		if err != nil {
			return
		}
		if n.String() != s || n.Check() != nil {
			t.Errorf("%q is read as %+v, which is written %q (%v)", s, n, n, n.Check())
		}
	})
}
