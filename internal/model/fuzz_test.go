package model

import (
	"strings"
	"testing"
)

// An accepted name is formatted back exactly: no two spellings mean one node.
func FuzzParseNode(f *testing.F) {
	for _, s := range []string{"controller1_t42", "controller1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseNode(s)
		if err != nil {
			return
		}
		if n.String() != s || len(n.Hostname()) > MaxHostname {
			t.Errorf("%q reads as %s with hostname %s", s, n, n.Hostname())
		}
		if again, err := ParseHostname(n.Hostname()); err != nil || again != n {
			t.Errorf("%q: hostname %s reads as %+v (%v)", s, n.Hostname(), again, err)
		}
	})
}

func FuzzParseHostname(f *testing.F) {
	for _, s := range []string{"controller1-t42", "controller1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseHostname(s)
		if err != nil {
			return
		}
		if label, _, _ := strings.Cut(s, "."); n.Hostname() != label {
			t.Errorf("%q reads as %+v, whose hostname is %s", s, n, n.Hostname())
		}
		if again, err := ParseNode(n.String()); err != nil || again != n {
			t.Errorf("%q: node %s reads as %+v (%v)", s, n, again, err)
		}
	})
}
