// Package fleet is the read side of a fleet: the state of each node and its reason, the health of an environment, and the
// known facts of one node. Its functions are pure, except FindEnvironment: their arguments are the values that the store
// has read, and the time. Its values contain codes with parameters; words.go renders them. It must never write.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/store"
)

// Status is the state of all nodes of an environment; `pulley status -o json` prints it.
type Status struct {
	Environment string                `json:"environment"`
	Revision    int64                 `json:"revision"`
	Healthy     bool                  `json:"healthy"`
	Roles       []machines.RoleHealth `json:"roles"`
	Nodes       []Node                `json:"nodes"`

	Contradictions []Contradiction `json:"contradictions"` // of Contradictions, where the caller read the history

	Health  machines.Health `json:"-"`
	Target  agent.Target    `json:"-"` // of nodes without one of their own
	Epoch   agent.Epoch     `json:"-"`
	Wanted  int             `json:"-"` // numbered nodes of the environment
	Missing int             `json:"-"` // of these, the nodes that are not registered
}

// Node is the state of one node.
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

	Signatures *agent.Signatures `json:"signatures"` // nil: not reported

	View agent.View `json:"-"`
}

// Look judges every node that is registered or has reported, in the order of CompareNatural.
func Look(f store.FleetState, ref environments.Ref, now time.Time) Status {
	out := Status{Contradictions: []Contradiction{}, Environment: ref.String(), Revision: f.Revision, Nodes: []Node{}, Target: f.Desires.Default, Epoch: f.Desires.Gate.Epoch}
	views := map[string]agent.View{}
	for _, name := range slices.SortedFunc(maps.Keys(f.Known()), CompareNatural) {
		n := lookAt(f, name, now)
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

// counts returns how many nodes are in each state.
func (s Status) counts() map[agent.NodeState]int {
	counts := map[agent.NodeState]int{}
	for _, n := range s.Nodes {
		counts[n.State]++
	}
	return counts
}

// lookAt judges one node.
func lookAt(f store.FleetState, name string, now time.Time) Node {
	role := f.Hosts[name].Role
	n := Node{Node: name, Role: role}
	var last *agent.Status
	if st, ok := f.Statuses[name]; ok {
		last = &st
		if role == "" {
			role, n.Role = st.Role, st.Role
		}
		seen := st.SeenAt
		n.Signatures = st.Signatures
		n.Release, n.Data, n.Outcome, n.LastRun, n.LastSeen = st.LastGood.Release, st.LastGood.Data, st.Outcome, st.LastRun, &seen
	}
	d := f.Desired(role, name)
	n.View = agent.Look(last, d, now)
	n.Desired, n.State, n.Cause = n.View.Wanted.Release, n.View.State, n.View.Cause
	if len(d.Holds) > 0 {
		n.Hold = &d.Holds[0]
	}
	if a := d.Assigned; a != nil && a.Epoch == d.Gate.Epoch {
		n.Rollout = a.Rollout
	}
	return n
}

// Explanation is the decision of a node's next tick, with its reasons; `pulley explain -o json` prints it.
type Explanation struct {
	Node        string          `json:"node"`
	State       agent.NodeState `json:"state"`
	Why         agent.Cause     `json:"why"`
	Desired     agent.Target    `json:"desired"`
	Has         agent.Target    `json:"has"`
	Action      agent.Action    `json:"action"` // of its next tick
	agent.Cause                 // of the action
	Ladder      []agent.Rung    `json:"ladder"`
	Status      *WholeStatus    `json:"status"`

	Environment string `json:"-"`

	View agent.View `json:"-"`
}

// WholeStatus is a node's last status with all its targets. In etcd, repeated targets are omitted.
type WholeStatus agent.Status

// Explain runs the node's own decision on its last status.
func Explain(f store.FleetState, ref environments.Ref, node string, now time.Time) Explanation {
	n := lookAt(f, node, now)
	if parsed, err := environments.ParseNode(node); err == nil && n.Role == "" {
		n.Role = parsed.Role
	}
	last := agent.Status{Node: node, Settings: agent.DefaultSettings()}
	x := Explanation{Environment: ref.String(), Node: node, State: n.State, Why: n.Cause, View: n.View}
	if st, ok := f.Statuses[node]; ok {
		last, x.Status = st, (*WholeStatus)(&st)
	}
	id := agent.Identity{Node: node, Role: n.Role, Environment: ref.String(), PuppetEnvironment: ref.Environment}
	desired := f.Desired(n.Role, node)
	d := agent.Decide(last.Observed(id), desired, now)
	x.Desired, x.Has, x.Action, x.Cause, x.Ladder = desired.Wanted(), last.LastGood, d.Action, d.Cause, d.Ladder
	return x
}

// CompareNatural compares names of nodes by role, stack and number. Any other name counts as a role: without one key for
// all names, the order would contain circles.
func CompareNatural(a, b string) int {
	na, err := environments.ParseNode(a)
	if err != nil {
		na = environments.Node{Role: a}
	}
	nb, err := environments.ParseNode(b)
	if err != nil {
		nb = environments.Node{Role: b}
	}
	return cmp.Or(strings.Compare(na.Role, nb.Role), strings.Compare(na.Stack, nb.Stack), na.Num-nb.Num, strings.Compare(a, b))
}

// FindEnvironment reads an environment that must exist. Its error suggests a similar name.
func FindEnvironment(ctx context.Context, s *store.Environments, ref environments.Ref) (*environments.Environment, error) {
	e, _, err := s.Spec(ctx, ref)
	if err != nil || e != nil {
		return e, err
	}
	hint := "store it first: pulley env apply environments/" + ref.Environment + ".yaml"
	if ref.Stack != "" {
		hint += " --stack " + ref.Stack
	}
	if known, err := s.List(ctx); err == nil {
		if near := environments.SuggestName(ref.String(), known); near != "" {
			hint = "did you mean " + near + "?"
		}
	}
	return nil, fmt.Errorf("cannot find environment %s: %w\n%s", ref, store.ErrNotFound, hint)
}

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
