package machines

import (
	"fmt"
	"slices"
	"strings"

	"pulley/agent"
	"pulley/environments"
)

// Health is whether all that should be alive is alive and converged.
type Health struct {
	Whole bool
	Roles []RoleHealth // in the order of the file
}

// RoleHealth is how many of a role's nodes, numbered ones and members, are what they should be.
type RoleHealth struct {
	Role       string `json:"role"`
	Wanted     int    `json:"wanted"`
	Registered int    `json:"registered"`
	Converged  int    `json:"converged"`

	lacking []string // "compute4 never joined", up to maxLacking
}

// maxLacking is how many nodes of a role are named that keep a fleet from being whole.
const maxLacking = 4

// Judge says whether a fleet is whole: each node that e calls for is registered and converged. Nodes that it does not call
// for don't count.
func Judge(e *environments.Environment, hosts map[string]agent.Host, views map[string]agent.View) Health {
	h := Health{Whole: true, Roles: []RoleHealth{}}
	for _, r := range e.Roles {
		one := RoleHealth{Role: r.Name}
		for num := 1; num <= r.Cardinality; num++ {
			one.add(environments.Node{Role: r.Name, Num: num, Stack: e.Stack}.String(), hosts, views)
		}
		for _, name := range r.Members {
			if n, err := environments.ParseNode(name); err != nil || !e.Has(n) {
				one.add(name, hosts, views)
			}
		}
		h.Whole = h.Whole && one.Converged == one.Wanted
		h.Roles = append(h.Roles, one)
	}
	return h
}

func (r *RoleHealth) add(node string, hosts map[string]agent.Host, views map[string]agent.View) {
	r.Wanted++
	_, registered := hosts[node]
	v, known := views[node]
	why := string(v.State)
	switch {
	case !registered:
		why = "never joined"
		if known {
			why = "not registered any more"
		}
	case known && v.State == agent.Converged:
		r.Registered++
		r.Converged++
		return
	default:
		r.Registered++
		if !known {
			why = "has not spoken"
		}
	}
	if len(r.lacking) < maxLacking {
		r.lacking = append(r.lacking, node+" "+why)
	}
}

// String is "whole", or what is lacking: "not whole: compute 3 of 5 converged (compute4 never joined, compute5 silent)".
func (h Health) String() string {
	if h.Whole {
		return "whole"
	}
	var parts []string
	for _, r := range h.Roles {
		if r.Converged == r.Wanted {
			continue
		}
		lacking := slices.Clone(r.lacking)
		if more := r.Wanted - r.Converged - len(lacking); more > 0 {
			lacking = append(lacking, fmt.Sprintf("and %d more", more))
		}
		parts = append(parts, fmt.Sprintf("%s %d of %d converged (%s)", r.Role, r.Converged, r.Wanted, strings.Join(lacking, ", ")))
	}
	return "not whole: " + strings.Join(parts, "; ")
}
