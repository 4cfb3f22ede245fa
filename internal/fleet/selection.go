package fleet

import (
	"slices"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store"
)

// Selection selects nodes: by role or by name, and by state. Without any of one kind it selects all.
type Selection struct {
	Roles  []string
	Nodes  []string
	States []agent.NodeState
}

// has reports whether the selection has a node of any state.
func (s Selection) has(role, node string) bool {
	return (len(s.Roles) == 0 || slices.Contains(s.Roles, role)) && (len(s.Nodes) == 0 || slices.Contains(s.Nodes, node))
}

func (s Selection) hasState(state agent.NodeState) bool {
	return len(s.States) == 0 || slices.Contains(s.States, state)
}

// Concerns reports whether a change of a scope is one of the selected nodes or roles. A change of all nodes is one of
// every selection. Any state counts.
func (s Selection) Concerns(scope store.Scope, roleOf func(node string) string) bool {
	switch {
	case scope == (store.Scope{}):
		return true
	case scope.Node != "":
		return s.has(roleOf(scope.Node), scope.Node)
	case len(s.Nodes) > 0:
		return slices.ContainsFunc(s.Nodes, func(node string) bool { return roleOf(node) == scope.Role })
	}
	return len(s.Roles) == 0 || slices.Contains(s.Roles, scope.Role)
}

// Check refuses a role that the environment does not have, and a node that is neither called for nor known.
func (s Selection) Check(e *environments.Environment, known map[string]bool) error {
	for _, role := range s.Roles {
		if err := CheckRole(e, role); err != nil {
			return err
		}
	}
	for _, node := range s.Nodes {
		if err := CheckNode(e, known, node); err != nil {
			return err
		}
	}
	return nil
}

// only returns the part of an environment that the selection has, to judge its health.
func (s Selection) only(e *environments.Environment) *environments.Environment {
	if len(s.Roles) == 0 && len(s.Nodes) == 0 {
		return e
	}
	part := *e
	part.Roles = nil
	for _, r := range e.Roles {
		switch {
		case len(s.Roles) > 0 && !slices.Contains(s.Roles, r.Name):
			continue
		case len(s.Nodes) > 0: // Judge counts members as it counts numbered nodes
			r.Members = slices.DeleteFunc(slices.Clone(s.Nodes), func(node string) bool {
				of, called := e.RoleOf(node)
				return !called || of.Name != r.Name
			})
			r.Cardinality = 0
			if len(r.Members) == 0 {
				continue
			}
		}
		part.Roles = append(part.Roles, r)
	}
	return &part
}
