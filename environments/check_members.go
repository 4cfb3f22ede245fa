package environments

import (
	"errors"
	"fmt"
	"strconv"
)

// checkMembers checks the existing machines of all roles. Names must be unique, and must not have the form of a node's
// name: the role in such a name could contradict the file.
func (c checker) checkMembers() {
	seen := map[string]string{}
	for i, r := range c.Roles {
		for j, name := range r.Members {
			at := spot{i, "members." + strconv.Itoa(j)}
			var bad *Error
			if err := CheckMember(name); errors.As(err, &bad) {
				c.tell(at, bad.Advice, "members of %s: %s", quoted(r.Name), bad.Problem)
				continue
			}
			if other, twice := seen[name]; twice {
				where := "role " + quoted(other) + " has it already"
				if other == r.Name {
					where = "it is there twice"
				}
				c.tell(at, "a machine is of one role", "member %s of role %s: %s", quoted(name), quoted(r.Name), where)
				continue
			}
			seen[name] = r.Name
			c.flaw(at, fmt.Sprintf("member %s of role %s", quoted(name), quoted(r.Name)), c.looksLikeNode(r, name))
		}
	}
}

// looksLikeNode returns an error if a member's name has the form of a node's name. A domain name never has it.
func (c checker) looksLikeNode(r Role, name string) *Error {
	n, err := ParseNode(name)
	if err != nil {
		if n, err = ParseHostname(name); err != nil || len(name) != len(n.Hostname()) {
			return nil
		}
	}
	of, has := c.Role(n.Role)
	switch {
	case !has:
		return nil
	case c.Has(n):
		return &Error{Problem: fmt.Sprintf("it is a node of role %s already, by its cardinality", quoted(of.Name)), Advice: "leave it out of members"}
	case of.Name != r.Name:
		return &Error{Problem: fmt.Sprintf("its name says that it is of role %s", quoted(of.Name)), Advice: "give it the role that its name says, or rename the machine"}
	case n.Stack != c.Stack:
		return &Error{Problem: fmt.Sprintf("its name says that it is a node of %s", Ref{c.Name, n.Stack}), Advice: "rename the machine, or give its full domain name"}
	}
	return &Error{
		Problem: fmt.Sprintf("its name says that it is node %d of role %s, which has %d", n.Num, quoted(r.Name), r.Cardinality),
		Advice:  fmt.Sprintf("write `cardinality: %d`, or give its full domain name", n.Num),
	}
}
