package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/internal/cli"
)

// CheckRole refuses a role that the environment does not have.
func CheckRole(e *environments.Environment, role string) error {
	if _, ok := e.Role(role); ok {
		return nil
	}
	hint := "its roles are " + strings.Join(e.RoleNames(), ", ")
	if near := environments.SuggestName(role, e.RoleNames()); near != "" {
		hint = "did you mean " + near + "?"
	}
	return fmt.Errorf("cannot find role %s in %s\n%s", quoted(role), e.Ref(), hint)
}

// CheckNode refuses a node that is neither called for by the environment nor among the known ones.
func CheckNode(e *environments.Environment, known map[string]bool, node string) error {
	if known[node] {
		return nil
	}
	if _, ok := e.RoleOf(node); ok {
		return nil
	}
	n, err := environments.ParseNode(node)
	hint := "`pulley nodes -e " + e.Ref().String() + "` lists the nodes"
	if near := environments.SuggestName(node, slices.Collect(maps.Keys(known))); near != "" {
		hint = "did you mean " + near + "?"
	} else if err == nil {
		if r, ok := e.Role(n.Role); ok {
			hint = fmt.Sprintf("role %s has %d", r.Name, r.Cardinality)
			if n.Stack != e.Stack {
				hint = fmt.Sprintf("%s is of stack %q, and %s of %q", node, n.Stack, e.Ref(), e.Stack)
			}
		}
	}
	return fmt.Errorf("cannot find node %s in %s\n%s", quoted(node), e.Ref(), hint)
}

func quoted(s string) string { return `"` + cli.Clean(s) + `"` }
