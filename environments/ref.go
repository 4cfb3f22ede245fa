package environments

import (
	"fmt"
	"strings"
)

// Ref names one fleet: an environment, or one stack of it. It is a segment of etcd keys and the value of -e.
type Ref struct {
	Environment string
	Stack       string // "" when the environment has no stacks
}

// String returns <environment>[@<stack>]: dev, dev@t42.
func (r Ref) String() string {
	if r.Stack == "" {
		return r.Environment
	}
	return r.Environment + "@" + r.Stack
}

// MarshalText formats r as String does.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// ParseRef parses the format of String.
func ParseRef(s string) (Ref, error) {
	environment, stack, inStack := strings.Cut(s, "@")
	if flaw := environmentFlaw(environment); flaw != nil {
		return Ref{}, cannot("use environment", quoted(s), flaw)
	}
	if inStack {
		if flaw := stackFlaw(stack); flaw != nil {
			flaw.Problem = "its stack " + quoted(stack) + " is no stack name: " + flaw.Problem
			return Ref{}, cannot("use environment", quoted(s), flaw)
		}
	}
	return Ref{Environment: environment, Stack: stack}, nil
}

// Of returns the fleet of n in the environment of r: dev and controller1_t42 give dev@t42. It is an error if r has a
// stack that is not the node's.
func (r Ref) Of(n Node) (Ref, error) {
	if r.Stack != "" && r.Stack != n.Stack {
		meant := Node{Role: n.Role, Num: n.Num, Stack: r.Stack}
		return Ref{}, &Error{
			Problem: fmt.Sprintf("cannot find node %s in %s: it is not of stack %s", n, r, r.Stack),
			Advice:  fmt.Sprintf("did you mean %s, or %s?", meant, Ref{r.Environment, n.Stack}),
		}
	}
	return Ref{Environment: r.Environment, Stack: n.Stack}, nil
}
