// Package model has what all of Pulley speaks of: names of nodes and environments, targets, statuses and runs, a node's own state, what
// a tick does with it (Decide), and the codes of reasons with their sentences. It must never read a file, a clock, etcd or the network.
package model

import (
	"errors"
	"fmt"
	"strconv"

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

// Cannot returns "cannot <verb> <object>: problem" with the problem's hint; nil if flaw is nil.
func Cannot(verb, object string, flaw *Error) error {
	if flaw == nil {
		return nil // a nil *Error in an error is not nil
	}
	return &Error{Problem: fmt.Sprintf("cannot %s %s: %s", verb, object, flaw.Problem), Advice: flaw.Advice}
}

// Quoted returns s quoted for a message, cut to a length that does not flood the terminal.
func Quoted(s string) string { return strconv.Quote(clip.Text(s, 70)) }

// The sentinel errors that errors of agent.Control wrap.
var (
	ErrUnreachable = errors.New("etcd is unreachable")
	ErrClock       = errors.New("a clock contradicts a certificate") // always together with ErrUnreachable
	ErrRevoked     = errors.New("etcd has no such user (any more)")
	ErrNoHosts     = errors.New("the host list was never read")
	ErrChanged     = errors.New("the desired state changed meanwhile")
)
