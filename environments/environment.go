package environments

import "iter"

// The limits of an environment. With MaxRoles roles of the longest names its stored form stays below 512 KiB.
const (
	MaxNodes = 1_000_000
	MaxRoles = 1_000
)

// Environment is one fleet: its roles in the order of the file.
type Environment struct {
	Name  string
	Stack string // "" when the environment has no stacks
	Roles []Role
}

// Role is what some of an environment's nodes are for.
type Role struct {
	Name        string `json:"name"`
	Cardinality int    `json:"cardinality"`      // how many nodes, from 0 to MaxNodes
	Flavor      string `json:"flavor,omitempty"` // which kind of machine; "" leaves it to whoever makes them
}

// Ref returns the name of the fleet.
func (e *Environment) Ref() Ref { return Ref{Environment: e.Name, Stack: e.Stack} }

// Role returns the role called name.
func (e *Environment) Role(name string) (Role, bool) {
	for _, r := range e.Roles {
		if r.Name == name {
			return r, true
		}
	}
	return Role{}, false
}

// RoleNames returns the names of all roles, in the order of the file.
func (e *Environment) RoleNames() []string {
	names := make([]string, len(e.Roles))
	for i, r := range e.Roles {
		names[i] = r.Name
	}
	return names
}

// Count returns how many nodes the environment calls for.
func (e *Environment) Count() int {
	sum := 0
	for _, r := range e.Roles {
		sum += r.Cardinality
	}
	return sum
}

// Nodes yields all nodes that the environment calls for: role by role, numbers going up.
func (e *Environment) Nodes() iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for _, r := range e.Roles {
			for num := 1; num <= r.Cardinality; num++ {
				if !yield(Node{Role: r.Name, Num: num, Stack: e.Stack}) {
					return
				}
			}
		}
	}
}

// Has reports whether the environment calls for n.
func (e *Environment) Has(n Node) bool {
	r, ok := e.Role(n.Role)
	return ok && n.Stack == e.Stack && 1 <= n.Num && n.Num <= r.Cardinality
}
