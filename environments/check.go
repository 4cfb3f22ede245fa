package environments

import "fmt"

// spot is the part of an environment that a problem is about: a role by its place in Roles, or no role (noRole), and the
// field of it; "" is the role's name.
type spot struct {
	role  int
	field string
}

const noRole = -1

// check tells report everything that is wrong with e, wherever e came from.
func (e *Environment) check(report func(spot, *Error)) {
	tell := func(at spot, what string, flaw *Error) {
		if flaw != nil {
			report(at, &Error{Problem: what + ": " + flaw.Problem, Advice: flaw.Advice})
		}
	}
	tell(spot{noRole, "name"}, "environment name "+quoted(e.Name), environmentFlaw(e.Name))
	var badStack *Error
	if e.Stack != "" {
		badStack = stackFlaw(e.Stack)
		tell(spot{noRole, "stack"}, "stack "+quoted(e.Stack), badStack)
	}
	if len(e.Roles) > MaxRoles {
		report(spot{noRole, "roles"}, &Error{Problem: fmt.Sprintf("there are %d roles, at most %d are allowed", len(e.Roles), MaxRoles)})
		return
	}
	sum, places := 0, map[string]int{}
	for i, r := range e.Roles {
		if _, twice := places[r.Name]; twice {
			report(spot{i, ""}, &Error{Problem: fmt.Sprintf("role %s is there twice", quoted(r.Name))})
		}
		places[r.Name] = i
		badName := roleFlaw(r.Name)
		tell(spot{i, ""}, "role "+quoted(r.Name), badName)
		if badName == nil && badStack == nil {
			tell(spot{i, ""}, "role "+quoted(r.Name), hostnameFlaw(r, e.Stack))
		}
		tell(spot{i, "cardinality"}, "cardinality of "+quoted(r.Name), cardinalityFlaw(r.Cardinality))
		if r.Flavor != "" {
			tell(spot{i, "flavor"}, "flavor "+quoted(r.Flavor), flavorFlaw(r.Flavor))
		}
		before := sum
		sum += min(max(r.Cardinality, 0), MaxNodes)
		if before <= MaxNodes && sum > MaxNodes {
			report(spot{i, "cardinality"}, &Error{Problem: fmt.Sprintf(
				"with role %s the environment has more than %d nodes", quoted(r.Name), MaxNodes)})
		}
	}
	for i, r := range e.Roles {
		tell(spot{i, ""}, "role "+quoted(r.Name), overlapFlaw(r.Name, places))
	}
}

func cardinalityFlaw(n int) *Error {
	switch {
	case n < 0:
		return &Error{Problem: fmt.Sprintf("it is %d, below 0", n), Advice: "0 keeps the role without nodes"}
	case n > MaxNodes:
		return &Error{Problem: fmt.Sprintf("it is %d, an environment has at most %d nodes", n, MaxNodes)}
	}
	return nil
}

// hostnameFlaw makes sure that the role's last node still has a hostname.
func hostnameFlaw(r Role, stack string) *Error {
	last := Node{Role: r.Name, Num: max(1, min(r.Cardinality, MaxNodes)), Stack: stack}
	size := len(last.Hostname())
	if size <= maxHostname {
		return nil
	}
	return &Error{
		Problem: fmt.Sprintf("the hostname of its node %s would be %d bytes long, at most %d are allowed", last, size, maxHostname),
		Advice:  fmt.Sprintf("make the role's name shorter by %d", size-maxHostname),
	}
}

// overlapFlaw keeps two roles apart that site.pp can't: `node /^a\d+/` would match a1b1, too.
func overlapFlaw(name string, places map[string]int) *Error {
	for i := 1; i < len(name) && len(name) <= maxRole; i++ {
		if _, other := places[name[:i]]; other && isDigit(name[i]) {
			return &Error{Problem: fmt.Sprintf("node /^%s\\d+/ of role %s would match its nodes, too", name[:i], quoted(name[:i]))}
		}
	}
	return nil
}
