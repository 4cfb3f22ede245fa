package environments

import (
	"fmt"
	"strconv"
	"strings"

	"pulley/internal/clip"
)

// Error is one problem of an environment or a name.
type Error struct {
	File    string // as the caller gave it; "" if the problem has no file
	Line    int    // from 1; 0 if the problem concerns the file itself
	Column  int    // from 1, in characters
	Problem string
	Advice  string // the remedy, one sentence; "" if there is none
}

// Error returns "file:line:column: problem", without the parts that are unknown.
func (e *Error) Error() string {
	switch {
	case e.File == "":
		return e.Problem
	case e.Line == 0:
		return e.File + ": " + e.Problem
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// Hint returns the remedy, or "".
func (e *Error) Hint() string { return e.Advice }

// Errors are all problems of one environment, in the order of the file. It is never empty.
type Errors []*Error

// Error returns one line per problem. If there are several, each hint follows its problem on its own, indented line.
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

// Hint returns the hint of a single problem. The hints of several problems are in Error, beside their problems.
func (es Errors) Hint() string {
	if len(es) == 1 {
		return es[0].Advice
	}
	return ""
}

// orNil returns the problems as an error; nil if there are none.
func (es Errors) orNil() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// Unwrap returns the problems for errors.As.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// cannot returns "cannot <verb> <object>: problem" with the problem's hint; nil if flaw is nil.
func cannot(verb, object string, flaw *Error) error {
	if flaw == nil {
		return nil // a nil *Error in an error is not nil
	}
	return &Error{Problem: fmt.Sprintf("cannot %s %s: %s", verb, object, flaw.Problem), Advice: flaw.Advice}
}

// quoted returns s quoted for a message, cut to a length that does not flood the terminal.
func quoted(s string) string { return strconv.Quote(clip.Text(s, 70)) }
