package environments

import (
	"errors"
	"strings"
	"testing"
)

// For any input, Parse returns an environment that can be stored, or problems with positions.
func FuzzParse(f *testing.F) {
	for _, s := range []string{planFile, "", "stack: t42\nroles: {}\n"} { // testdata has the difficult ones
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Parse("dev.yaml", data)
		if err == nil {
			if stored, err := Encode(e); err != nil {
				t.Fatalf("what was read can't be stored: %v (%s)", err, stored)
			}
			return
		}
		var problems Errors
		if !errors.As(err, &problems) || len(problems) == 0 || e != nil {
			t.Fatalf("error %v, environment %v", err, e)
		}
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") +
			strings.Count(string(data), "\u0085") + strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 1
		for _, p := range problems {
			// YAML reports a missing value at the end on the line after the last one.
			if p.Problem == "" || p.Line < 0 || p.Line > lines+1 || (p.Line > 0) != (p.Column > 0) {
				t.Errorf("%d:%d: %q in %d lines", p.Line, p.Column, p.Problem, lines)
			}
		}
	})
}
