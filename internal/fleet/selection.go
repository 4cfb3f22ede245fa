package fleet

import (
	"slices"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/where"
)

// Selection selects nodes: by role or by name, by state, and by an expression. Without any of one kind it selects all.
type Selection struct {
	Roles  []string
	Nodes  []string
	States []model.NodeState
	Where  *where.Expression // Narrow evaluates it; before that it selects all

	matched map[string]bool // nodes for which Where is true; nil: not evaluated
}

// All reports whether the selection leaves out no node, whatever its state.
func (s Selection) All() bool { return len(s.Roles)+len(s.Nodes) == 0 && s.Where == nil }

// Empty reports whether the expression was evaluated, and is true for no node.
func (s Selection) Empty() bool { return s.matched != nil && len(s.matched) == 0 }

// named returns the nodes that the selection names, itself or by an expression. listed is false if it names none.
func (s Selection) named() (nodes []string, listed bool) {
	if s.matched == nil {
		return s.Nodes, len(s.Nodes) > 0
	}
	for node := range s.matched {
		if len(s.Nodes) == 0 || slices.Contains(s.Nodes, node) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes, true
}

// Has reports whether the selection has a node of any state.
func (s Selection) Has(role, node string) bool {
	return (len(s.Roles) == 0 || slices.Contains(s.Roles, role)) && (len(s.Nodes) == 0 || slices.Contains(s.Nodes, node)) &&
		(s.matched == nil || s.matched[node])
}

func (s Selection) hasState(state model.NodeState) bool {
	return len(s.States) == 0 || slices.Contains(s.States, state)
}

// Concerns reports whether a change of a scope is one of the selected nodes or roles. A change of all nodes is one of
// every selection. Any state counts.
func (s Selection) Concerns(scope etcd.Scope, roleOf func(node string) string) bool {
	nodes, listed := s.named()
	switch {
	case scope == (etcd.Scope{}):
		return true
	case scope.Node != "":
		return s.Has(roleOf(scope.Node), scope.Node)
	case listed:
		return slices.ContainsFunc(nodes, func(node string) bool { return roleOf(node) == scope.Role })
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
	nodes, listed := s.named()
	if len(s.Roles) == 0 && !listed {
		return e
	}
	part := *e
	part.Roles = nil
	for _, r := range e.Roles {
		switch {
		case len(s.Roles) > 0 && !slices.Contains(s.Roles, r.Name):
			continue
		case listed: // Judge counts members as it counts numbered nodes
			r.Members = slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
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
