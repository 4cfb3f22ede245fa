package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"pulley/environments"
	"pulley/internal/model"
)

// Health shows whether all nodes of an environment are registered and converged.
type Health struct {
	Healthy bool
	Roles   []RoleHealth // in the order of the file
}

// RoleHealth counts a role's nodes, numbered ones and members.
type RoleHealth struct {
	Role       string `json:"role"`
	Wanted     int    `json:"wanted"`
	Registered int    `json:"registered"`
	Converged  int    `json:"converged"`

	Lacking []Lack `json:"-"` // the first nodes that are not converged
}

// Lack is a node that is not converged, and its state; "" for one that is not registered and never reported.
type Lack struct {
	Node  string
	State model.NodeState
}

// maxLacking is the maximum number of named nodes per role.
const maxLacking = 4

// Judge reports the health of an environment. It ignores nodes that are not in e. Each registered node has a view.
func Judge(e *environments.Environment, hosts map[string]model.Host, views map[string]model.View) Health {
	h := Health{Healthy: true, Roles: []RoleHealth{}}
	for _, r := range e.Roles {
		one := RoleHealth{Role: r.Name}
		for num := 1; num <= r.Cardinality; num++ {
			one.add(model.Node{Role: r.Name, Num: num, Stack: e.Stack}.String(), hosts, views)
		}
		for _, name := range r.Members {
			if n, err := model.ParseNode(name); err != nil || !e.Has(n) {
				one.add(name, hosts, views)
			}
		}
		h.Healthy = h.Healthy && one.Converged == one.Wanted
		h.Roles = append(h.Roles, one)
	}
	return h
}

func (r *RoleHealth) add(node string, hosts map[string]model.Host, views map[string]model.View) {
	r.Wanted++
	_, registered := hosts[node]
	view := views[node]
	if registered {
		r.Registered++
	}
	switch {
	case registered && view.Settled():
		r.Converged++
	case len(r.Lacking) < maxLacking:
		r.Lacking = append(r.Lacking, Lack{node, view.State})
	}
}

// Sentence returns "healthy", or the lacking nodes: "degraded: compute 3 of 5 converged (compute4 not registered, compute5
// silent)".
func (h Health) Sentence() string {
	if h.Healthy {
		return "healthy"
	}
	var parts []string
	for _, r := range h.Roles {
		if r.Converged == r.Wanted {
			continue
		}
		var lacking []string
		for _, l := range r.Lacking {
			lacking = append(lacking, l.Node+" "+cmp.Or(string(l.State), "not registered"))
		}
		if more := r.Wanted - r.Converged - len(lacking); more > 0 {
			lacking = append(lacking, fmt.Sprintf("and %d more", more))
		}
		parts = append(parts, fmt.Sprintf("%s %d of %d converged (%s)", r.Role, r.Converged, r.Wanted, strings.Join(lacking, ", ")))
	}
	return "degraded: " + strings.Join(parts, "; ")
}

// ErrNotListed is a node that is not on the host list.
var ErrNotListed = errors.New("it is not in the host list")
