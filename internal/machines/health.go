package machines

import (
	"pulley/agent"
	"pulley/environments"
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

// Lack is a node that is not converged, and the cause.
type Lack struct {
	Node  string
	State Lacking
	View  agent.NodeState // where State is Unconverged
}

// Lacking is the cause for which a node is not converged.
type Lacking string

// The causes.
const (
	LacksJoin         Lacking = "never_joined"
	LacksRegistration Lacking = "not_registered" // the node was registered before
	LacksReport       Lacking = "not_reported"
	Unconverged       Lacking = "not_converged"
)

// maxLacking is the maximum number of named nodes per role.
const maxLacking = 4

// Judge reports the health of an environment. It ignores nodes that are not in e.
func Judge(e *environments.Environment, hosts map[string]agent.Host, views map[string]agent.View) Health {
	h := Health{Healthy: true, Roles: []RoleHealth{}}
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
		h.Healthy = h.Healthy && one.Converged == one.Wanted
		h.Roles = append(h.Roles, one)
	}
	return h
}

func (r *RoleHealth) add(node string, hosts map[string]agent.Host, views map[string]agent.View) {
	r.Wanted++
	_, registered := hosts[node]
	v, reported := views[node]
	lack := Lack{Node: node, State: Unconverged, View: v.State}
	if registered {
		r.Registered++
	}
	switch {
	case !registered && reported:
		lack.State = LacksRegistration
	case !registered:
		lack.State = LacksJoin
	case !reported:
		lack.State = LacksReport
	case v.State == agent.Converged:
		r.Converged++
		return
	}
	if len(r.Lacking) < maxLacking {
		r.Lacking = append(r.Lacking, lack)
	}
}
