package environments

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// checkOrder checks the dependencies and reactions between roles.
func (c checker) checkOrder() {
	known := map[string]bool{}
	for _, r := range c.Roles {
		known[r.Name] = true
	}
	for i, r := range c.Roles {
		c.others(i, r, "after", "comes after", r.After, known)
		c.others(i, r, "reacts_to", "reacts to", r.ReactsTo, known)
	}
	for _, cycle := range c.cycles() {
		first := cycle[0]
		at := slices.IndexFunc(c.Roles, func(r Role) bool { return r.Name == first })
		c.tell(spot{at, "after"}, "a role's machines are made when those of the roles in its `after` are there: leave one of them out",
			"after makes a cycle: %s → %s", strings.Join(cycle, " → "), first)
	}
}

// others checks the names of other roles in a list of a role.
func (c checker) others(i int, r Role, key, verb string, names []string, known map[string]bool) {
	seen := map[string]bool{}
	for j, name := range names {
		at := spot{i, key + "." + strconv.Itoa(j)}
		switch {
		case name == r.Name:
			c.tell(at, "leave it out", "role %s %s itself", quoted(r.Name), verb)
		case !known[name]:
			c.tell(at, noRoleHint(name, c.RoleNames()), "role %s %s %s, and there is no such role", quoted(r.Name), verb, quoted(name))
		case seen[name]:
			c.tell(at, "keep one of them", "role %s %s %s twice", quoted(r.Name), verb, quoted(name))
		default:
			seen[name] = true
		}
	}
}

func noRoleHint(name string, known []string) string {
	if near := SuggestName(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	return fmt.Sprintf("the roles are %s; where %s was removed, leave it out here", listed(known[:min(len(known), 20)]), quoted(name))
}
