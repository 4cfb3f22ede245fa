package environments

import (
	"fmt"
	"strings"
)

// Error is one thing that is wrong with an environment or a name.
type Error struct {
	File    string // as the caller gave it; "" when the problem has no file
	Line    int    // from 1; 0 when the problem is the file as a whole
	Column  int    // from 1, in characters
	Problem string
	Advice  string // what to do about it, one sentence; "" when there is nothing to add
}

// Error returns "file:line:column: problem", without what is not known.
func (e *Error) Error() string {
	switch {
	case e.File == "":
		return e.Problem
	case e.Line == 0:
		return e.File + ": " + e.Problem
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// Hint returns what to do about the problem, or "".
func (e *Error) Hint() string { return e.Advice }

// Errors is everything that is wrong with one environment, in the order of the file; it is never empty.
type Errors []*Error

// Error returns one line a problem. Where there are several, each hint follows its problem, indented, on its own line.
func (es Errors) Error() string {
	if len(es) == 1 {
		return es[0].Error()
	}
	var lines []string
	for _, e := range es {
		lines = append(lines, e.Error())
		if e.Advice != "" {
			lines = append(lines, "  "+e.Advice)
		}
	}
	return strings.Join(lines, "\n")
}

// Hint returns the hint of a single problem; those of several stand in Error, beside what they are about.
func (es Errors) Hint() string {
	if len(es) == 1 {
		return es[0].Advice
	}
	return ""
}

// Unwrap gives errors.As each problem.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// cannot returns "cannot <verb> <object>: problem" with the problem's hint, or nil when there is no problem.
func cannot(verb, object string, flaw *Error) error {
	if flaw == nil {
		return nil // a nil *Error in an error would not be nil
	}
	return &Error{Problem: fmt.Sprintf("cannot %s %s: %s", verb, object, flaw.Problem), Advice: flaw.Advice}
}

// quoted returns s for a message: quoted, and cut where it would flood the terminal.
func quoted(s string) string {
	const most = 70
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
