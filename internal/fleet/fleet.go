// Package fleet is the read side of a fleet: where each node stands and why, whether an environment is healthy, and what is
// known of one node. Its functions are pure: they take what the store has read, and the time. It must never write, and it
// holds codes with parameters; words.go renders them for people.
package fleet

import (
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/store"
)

// Status is where all nodes of an environment stand; `pulley status -o json` prints it.
type Status struct {
	Environment string                `json:"environment"`
	Revision    int64                 `json:"revision"`
	Healthy     bool                  `json:"healthy"`
	Roles       []machines.RoleHealth `json:"roles"`
	Nodes       []Node                `json:"nodes"`

	Health  machines.Health `json:"-"`
	Target  agent.Target    `json:"-"` // of nodes without one of their own
	Epoch   agent.Epoch     `json:"-"`
	Wanted  int             `json:"-"` // nodes that the environment calls for by number
	Missing int             `json:"-"` // those of them that are not registered
}

// Node is where one node stands.
type Node struct {
	Node        string           `json:"node"`
	Role        string           `json:"role"`
	Desired     string           `json:"desired"` // release
	Release     string           `json:"release"` // last good
	Data        agent.Generation `json:"data"`    // of the last good target
	State       agent.NodeState  `json:"state"`
	agent.Cause                  // of the state
	Outcome     agent.Outcome    `json:"outcome"`
	LastRun     string           `json:"last_run"`
	LastSeen    *time.Time       `json:"last_seen"`
	Hold        *agent.Hold      `json:"hold"`
	Rollout     string           `json:"rollout"`

	View agent.View `json:"-"`
}

// Look judges every node that is registered or has reported, in the natural order of names.
func Look(f store.FleetState, ref environments.Ref, now time.Time) Status {
	out := Status{Environment: ref.String(), Revision: f.Revision, Nodes: []Node{}, Target: f.Desires.Default, Epoch: f.Desires.Gate.Epoch}
	views := map[string]agent.View{}
	for _, name := range Natural(f.Known()) {
		n := LookAt(f, name, now)
		views[name] = n.View
		out.Nodes = append(out.Nodes, n)
	}
	wanted := f.Spec
	if wanted == nil { // it was removed a moment ago
		wanted = &environments.Environment{Name: ref.Environment, Stack: ref.Stack}
	}
	out.Wanted = wanted.Count()
	for n := range wanted.Nodes() {
		if _, ok := f.Hosts[n.String()]; !ok {
			out.Missing++
		}
	}
	out.Health = machines.Judge(wanted, f.Hosts, views)
	out.Healthy, out.Roles = out.Health.Healthy, out.Health.Roles
	return out
}

// Counts returns how many nodes are in each state.
func (s Status) Counts() map[agent.NodeState]int {
	counts := map[agent.NodeState]int{}
	for _, n := range s.Nodes {
		counts[n.State]++
	}
	return counts
}

// LookAt judges one node.
func LookAt(f store.FleetState, name string, now time.Time) Node {
	role := f.Hosts[name].Role
	n := Node{Node: name, Role: role}
	var said *agent.Status
	if st, ok := f.Statuses[name]; ok {
		said = &st
		if role == "" {
			role, n.Role = st.Role, st.Role
		}
		seen := st.SeenAt
		n.Release, n.Data, n.Outcome, n.LastRun, n.LastSeen = st.LastGood.Release, st.LastGood.Data, st.Outcome, st.LastRun, &seen
	}
	d := f.Desired(role, name)
	n.View = agent.Look(said, d, now)
	n.Desired, n.State, n.Cause = n.View.Wanted.Release, n.View.State, n.View.Cause
	if len(d.Holds) > 0 {
		n.Hold = &d.Holds[0]
	}
	if a := d.Assigned; a != nil && a.Epoch == d.Gate.Epoch {
		n.Rollout = a.Rollout
	}
	return n
}

// Explanation is what a node's next tick decides, and why; `pulley explain -o json` prints it.
type Explanation struct {
	Node        string          `json:"node"`
	State       agent.NodeState `json:"state"`
	Why         agent.Cause     `json:"why"`
	Desired     agent.Target    `json:"desired"`
	Has         agent.Target    `json:"has"`
	Action      agent.Action    `json:"action"` // of its next tick
	agent.Cause                 // of the action
	Ladder      []agent.Rung    `json:"ladder"`
	Said        *SaidStatus     `json:"said"`

	View agent.View `json:"-"`
}

// SaidStatus is a status printed whole; in etcd, targets that repeat each other are left out.
type SaidStatus agent.Status

// Explain runs the node's own decision on its last status.
func Explain(f store.FleetState, ref environments.Ref, node string, now time.Time) Explanation {
	n := LookAt(f, node, now)
	if parsed, err := environments.ParseNode(node); err == nil && n.Role == "" {
		n.Role = parsed.Role
	}
	said := agent.Status{Node: node, Settings: agent.DefaultSettings()}
	x := Explanation{Node: node, State: n.State, Why: n.Cause, View: n.View}
	if st, ok := f.Statuses[node]; ok {
		said, x.Said = st, (*SaidStatus)(&st)
	}
	id := agent.Identity{Node: node, Role: n.Role, Environment: ref.String(), PuppetEnvironment: ref.Environment}
	d := agent.Decide(said.Observed(id), f.Desired(n.Role, node), now)
	x.Desired, x.Has, x.Action, x.Cause, x.Ladder = d.Wanted, said.LastGood, d.Action, d.Cause, d.Ladder
	return x
}

// Natural sorts names such that compute2 stands before compute10.
func Natural(names map[string]bool) []string {
	all := make([]string, 0, len(names))
	for n := range names {
		all = append(all, n)
	}
	slices.SortFunc(all, CompareNatural)
	return all
}

// CompareNatural compares names of nodes by role, stack and number.
func CompareNatural(a, b string) int {
	na, errA := environments.ParseNode(a)
	nb, errB := environments.ParseNode(b)
	if errA != nil || errB != nil || na.Role != nb.Role || na.Stack != nb.Stack {
		return strings.Compare(a, b)
	}
	return na.Num - nb.Num
}
