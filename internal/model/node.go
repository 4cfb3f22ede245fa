package model

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxNum is the highest number of a node.
const MaxNum = 9_999_999

// Node is the parsed name of a node.
type Node struct {
	Role  string
	Num   int    // from 1 to MaxNum
	Stack string // "" when the environment has no stacks
}

// String returns the name of the node: <role><num>[_<stack>], controller1_t42.
func (n Node) String() string { return n.join("_") }

// Hostname returns the hostname of the node: <role><num>[-<stack>], controller1-t42.
func (n Node) Hostname() string { return n.join("-") }

// MachineName returns the hostname, one label, of the machine that Pulley makes for a node or a member.
func MachineName(node string) string { return strings.NewReplacer("_", "-", ".", "-").Replace(node) }

func (n Node) join(sep string) string {
	name := n.Role + strconv.Itoa(n.Num)
	if n.Stack != "" {
		name += sep + n.Stack
	}
	return name
}

// ParseNode parses the format of String.
func ParseNode(s string) (Node, error) {
	head, stack, inStack := strings.Cut(s, "_")
	n, flaw := node(head, stack, inStack)
	if flaw != nil {
		// The text is a hostname instead of a node's name.
		if head, stack, inStack := cutHostname(s); inStack && !strings.ContainsAny(s, "_.") {
			if n, flaw := node(head, stack, true); flaw == nil {
				return Node{}, Cannot("parse node", Quoted(s), &Error{
					Problem: "that is a hostname", Advice: fmt.Sprintf("did you mean %s?", n)})
			}
		}
	}
	return n, Cannot("parse node", Quoted(s), flaw)
}

// ParseHostname parses the format of Hostname. It ignores all but the first label of a domain name.
func ParseHostname(s string) (Node, error) {
	label, _, _ := strings.Cut(s, ".")
	head, stack, inStack := cutHostname(label)
	n, flaw := node(head, stack, inStack)
	if flaw != nil {
		if n, err := ParseNode(label); err == nil {
			flaw.Advice = fmt.Sprintf("did you mean %s?", n.Hostname())
		}
	}
	return n, Cannot("parse hostname", Quoted(s), flaw)
}

// cutHostname cuts a label after its number: after the first digit before a dash or the end. A role has no such digit.
func cutHostname(label string) (head, stack string, inStack bool) {
	for i := range len(label) - 1 {
		if IsDigit(label[i]) && label[i+1] == '-' {
			return label[:i+1], label[i+2:], true
		}
	}
	return label, "", false
}

// node builds a Node from <role><num> and the stack. It ignores the stack unless inStack is true.
func node(head, stack string, inStack bool) (Node, *Error) {
	role := strings.TrimRight(head, "0123456789")
	if role == head {
		return Node{}, &Error{Problem: "it has no number", Advice: "nodes are called <role><number>, or <role><number>_<stack>"}
	}
	if flaw := RoleFlaw(role); flaw != nil {
		return Node{}, &Error{Problem: "its role " + Quoted(role) + " is not a role name: " + flaw.Problem, Advice: flaw.Advice}
	}
	num, flaw := nodeNum(head[len(role):])
	if flaw != nil {
		return Node{}, flaw
	}
	if inStack {
		if flaw := StackFlaw(stack); flaw != nil {
			return Node{}, &Error{Problem: "its stack " + Quoted(stack) + " is not a stack name: " + flaw.Problem, Advice: flaw.Advice}
		}
	}
	n := Node{Role: role, Num: num, Stack: stack}
	if size := len(n.Hostname()); size > MaxHostname {
		return Node{}, &Error{Problem: fmt.Sprintf("its hostname would be %d bytes long, at most %d are allowed", size, MaxHostname)}
	}
	return n, nil
}

func nodeNum(digits string) (int, *Error) {
	short := strings.TrimLeft(digits, "0")
	switch {
	case short == "":
		return 0, &Error{Problem: "nodes are numbered from 1"}
	case short != digits:
		return 0, &Error{Problem: "its number starts with 0", Advice: "write it without leading zeros"}
	}
	num, err := strconv.Atoi(digits)
	if err != nil || num > MaxNum {
		return 0, &Error{Problem: fmt.Sprintf("its number is above %d", MaxNum)}
	}
	return num, nil
}

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
	if flaw := EnvironmentFlaw(environment); flaw != nil {
		return Ref{}, Cannot("use environment", Quoted(s), flaw)
	}
	if inStack {
		if flaw := StackFlaw(stack); flaw != nil {
			flaw.Problem = "its stack " + Quoted(stack) + " is not a stack name: " + flaw.Problem
			return Ref{}, Cannot("use environment", Quoted(s), flaw)
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

// NodeOf returns the name of the node with this certname: a certname with a stack has a dash where the node's name has _.
func NodeOf(certname string) string {
	if n, err := ParseHostname(certname); err == nil && n.Hostname() == certname {
		return n.String()
	}
	return certname
}

// Certname returns the certname of a node: the opposite of NodeOf.
func Certname(node string) string {
	if n, err := ParseNode(node); err == nil {
		return n.Hostname()
	}
	return node
}
