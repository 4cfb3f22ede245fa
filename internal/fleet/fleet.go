// Package fleet is the nodes of an environment: where each stands and why, the health of the whole, and what operators want of nodes, which is
// the host list, holds, requests, agent versions and previews.
//
// What it shows is computed by pure functions of what state.go has read, and the time. Its values contain codes with parameters; words.go
// renders them. It must never decide in the place of a node.
package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/model"
)

// Status is the state of all nodes of an environment; `pulley status -o json` prints it.
type Status struct {
	Environment string       `json:"environment"`
	Revision    int64        `json:"revision"`
	Healthy     bool         `json:"healthy"`
	Roles       []RoleHealth `json:"roles"`
	Counts      Counts       `json:"counts"`
	Nodes       []Node       `json:"nodes"`

	Contradictions []Contradiction `json:"contradictions"` // of Contradictions, where the caller read the history

	Rollout string `json:"rollout,omitempty"` // in progress, for people; set by the caller

	Unclassified int `json:"unclassified"` // nodes whose catalog has no class
	NoopPending  int `json:"noop_pending"` // nodes with resources that noop in the code keeps out of sync

	Served []ServedCode `json:"served,omitempty"` // catalogs of Puppet servers; absent: the nodes have none

	Health Health       `json:"-"`
	Target model.Target `json:"-"` // of nodes without one of their own
	Epoch  model.Epoch  `json:"-"`
	ByRole []RoleCounts `json:"by_role"` // of Nodes, before any of them is left out
}

// Counts is the number of nodes in each state. A state without nodes is absent.
type Counts map[model.NodeState]int

// RoleCounts are the nodes of a role in one state, and the first of them.
type RoleCounts struct {
	Role  string          `json:"role"`
	State model.NodeState `json:"state"`
	Nodes int             `json:"nodes"`
	First []string        `json:"first"`
}

// ServedCode are the nodes whose last good catalog came from an environment of a Puppet server with the same code.
type ServedCode struct {
	Release     string   `json:"release"`
	Environment string   `json:"environment"` // of the server
	Code        string   `json:"code"`        // "": the server names none
	Nodes       int      `json:"nodes"`
	First       []string `json:"first"`
}

// Node is the state of one node.
type Node struct {
	Node        string           `json:"node"`
	Role        string           `json:"role"`
	Desired     string           `json:"desired"` // release
	Release     string           `json:"release"` // last good
	Data        model.Generation `json:"data"`    // of the last good target
	State       model.NodeState  `json:"state"`
	model.Cause                  // of the state
	Outcome     model.Outcome    `json:"outcome"`
	LastRun     string           `json:"last_run"`
	LastSeen    *time.Time       `json:"last_seen"`
	Hold        *model.Hold      `json:"hold"`
	Rollout     string           `json:"rollout"`

	Unclassified bool `json:"unclassified,omitempty"` // the catalog of the last good run has no class
	NoopPending  int  `json:"noop_pending,omitempty"` // resources that it left out of sync, because of noop in the code

	Rivals string `json:"rivals,omitempty"` // what starts another Puppet on its machine

	Unscheduled model.Prose `json:"unscheduled,omitempty"` // why cron does not start its agent, and the remedy

	Served *model.Served `json:"served,omitempty"` // source of the last good catalog; absent: the release

	Hook model.Prose `json:"hook,omitempty"` // why a hook of hosts.d/ failed

	Signatures *model.Signatures `json:"signatures"` // nil: not reported

	FirstBoot *FirstBoot `json:"first_boot,omitempty"` // of a node that has not reported, while it is unfinished; set by AddBoots

	View model.View `json:"-"`

	attempt  *model.Attempt // of its last report
	lastGood model.Target
}

// Look judges the selected nodes of those that the environment calls for, that are registered or that have reported, in
// the order of CompareNatural.
func Look(f FleetState, ref model.Ref, sel Selection, now time.Time) Status {
	out := Status{
		Contradictions: []Contradiction{}, Environment: ref.String(), Revision: f.Revision, Counts: Counts{}, Nodes: []Node{},
		Target: f.Desires.Default, Epoch: f.Desires.Gate.Epoch,
	}
	wanted := f.Spec
	if wanted == nil { // it was removed a moment ago
		wanted = &environments.Environment{Name: ref.Environment, Stack: ref.Stack}
	}
	called, known, views := calledFor(wanted), f.Known(), map[string]model.View{}
	names := maps.Clone(known)
	for name := range called {
		names[name] = true
	}
	if len(sel.Nodes) > 0 {
		maps.DeleteFunc(names, func(name string, _ bool) bool { return !slices.Contains(sel.Nodes, name) })
	}
	if len(sel.Nodes) == 0 {
		out.Nodes = make([]Node, 0, len(names))
	}
	for _, name := range natural(names) {
		n := lookAt(f, name, called[name], now)
		if !sel.Has(n.Role, name) {
			continue
		}
		if known[name] {
			views[name] = n.View
		}
		out.Counts[n.State]++
		if n.Unclassified {
			out.Unclassified++
		}
		if n.NoopPending > 0 {
			out.NoopPending++
		}
		out.Nodes = append(out.Nodes, n)
	}
	out.ByRole, out.Served = countRoles(out.Nodes), countServed(out.Nodes)
	out.Health = Judge(sel.only(wanted), f.Hosts, views)
	out.Healthy, out.Roles = out.Health.Healthy, out.Health.Roles
	if _, listed := sel.named(); listed && slices.ContainsFunc(out.Nodes, func(n Node) bool { return n.State != model.Converged }) {
		out.Healthy = false // also of a node that the environment does not call for
	}
	out.Nodes = slices.DeleteFunc(out.Nodes, func(n Node) bool { return !sel.hasState(n.State) })
	return out
}

// firstNodes is the number of nodes that a summary names for each role and state.
const firstNodes = 4

// countRoles counts nodes by role and state: roles in order of their names, states in the order of model.NodeStates.
func countRoles(nodes []Node) []RoleCounts {
	counts := map[string]map[model.NodeState]*RoleCounts{}
	for _, n := range nodes {
		if counts[n.Role] == nil {
			counts[n.Role] = map[model.NodeState]*RoleCounts{}
		}
		c := counts[n.Role][n.State]
		if c == nil {
			c = &RoleCounts{Role: n.Role, State: n.State}
			counts[n.Role][n.State] = c
		}
		if c.Nodes++; len(c.First) < firstNodes {
			c.First = append(c.First, n.Node)
		}
	}
	all := []RoleCounts{}
	for _, role := range slices.Sorted(maps.Keys(counts)) {
		for _, state := range model.NodeStates() {
			if c := counts[role][state]; c != nil {
				all = append(all, *c)
			}
		}
	}
	return all
}

// countServed counts nodes by release, environment of the server and code.
func countServed(nodes []Node) (all []ServedCode) {
	for _, n := range nodes {
		if n.Served == nil {
			continue
		}
		i := slices.IndexFunc(all, func(c ServedCode) bool {
			return c.Release == n.Release && c.Environment == n.Served.Environment && c.Code == n.Served.Code
		})
		if i < 0 {
			i = len(all)
			all = append(all, ServedCode{Release: n.Release, Environment: n.Served.Environment, Code: n.Served.Code})
		}
		if all[i].Nodes++; len(all[i].First) < firstNodes {
			all[i].First = append(all[i].First, n.Node)
		}
	}
	slices.SortStableFunc(all, func(a, b ServedCode) int {
		return cmp.Or(cmp.Compare(a.Release, b.Release), cmp.Compare(a.Environment, b.Environment), cmp.Compare(b.Nodes, a.Nodes))
	})
	return all
}

// Limit leaves out nodes beyond the first limit (0: none). Converged nodes are left out first. It returns the number of
// nodes that it left out.
func (s *Status) Limit(limit int) (left int) {
	if limit <= 0 || len(s.Nodes) <= limit {
		return 0
	}
	left = len(s.Nodes) - limit
	slices.SortStableFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(rank(a.State), rank(b.State)) })
	s.Nodes = s.Nodes[:limit]
	return left
}

func rank(s model.NodeState) int {
	if s == model.Converged {
		return 1
	}
	return 0
}

// lookAt judges one node. calledRole is its role in the environment; "" if the environment does not call for it.
func lookAt(f FleetState, name, calledRole string, now time.Time) Node {
	role := roleOf(f, name, calledRole)
	n := Node{Node: name, Role: role}
	var last *model.Status
	if st, ok := reportOf(f, name); ok {
		last = &st
		seen := st.SeenAt
		n.attempt, n.lastGood = st.Attempt, st.LastGood
		n.Signatures, n.Unclassified, n.NoopPending, n.Hook, n.Served = st.Signatures, st.Unclassified, st.NoopPending, st.Hook, st.Served
		n.Rivals, n.Unscheduled = st.Rivals, st.Unscheduled
		n.Release, n.Data, n.Outcome, n.LastRun, n.LastSeen = st.LastGood.Release, st.LastGood.Data, st.Outcome, st.LastRun, &seen
	}
	d := f.Desired(role, name)
	n.View = model.Look(last, d, now)
	n.Desired, n.State, n.Cause = n.View.Wanted.Release, n.View.State, n.View.Cause
	n.Hold = d.Held()
	if a := d.Assigned; a != nil && a.Epoch == d.Gate.Epoch {
		n.Rollout = a.Rollout
	}
	return n
}

// reportOf returns the last report of a node's machine.
func reportOf(f FleetState, name string) (model.Status, bool) {
	st, ok := f.Statuses[name]
	h, listed := f.Hosts[name]
	return st, ok && !(listed && st.OfFormer(&h))
}

// roleOf returns the role of a node. calledRole is its role in the environment, or "".
func roleOf(f FleetState, name, calledRole string) string {
	if role := cmp.Or(f.Hosts[name].Role, f.Statuses[name].Role, calledRole); role != "" {
		return role
	}
	return f.RoleOf(name)
}

// Explanation is the decision of a node's next tick, with its reasons; `pulley explain -o json` prints it.
type Explanation struct {
	Node        string          `json:"node"`
	State       model.NodeState `json:"state"`
	Why         model.Cause     `json:"why"`
	Desired     model.Target    `json:"desired"`
	Has         model.Target    `json:"has"`
	Action      model.Action    `json:"action"` // of its next tick
	model.Cause                 // of the action
	Ladder      []model.Rung    `json:"ladder"`
	Status      *WholeStatus    `json:"status"`
	Rollout     string          `json:"rollout,omitempty"`    // its place in the rollout in progress, for people
	FirstBoot   *FirstBoot      `json:"first_boot,omitempty"` // as in Node; set by the caller

	Environment string    `json:"-"`
	Made        bool      `json:"-"` // the environment's provider made its machine
	Next        time.Time `json:"-"` // end of the wait of the decision; zero: no wait

	View model.View `json:"-"`

	uncalled bool // the environment does not call for it, and the host list has no entry of it
}

// WholeStatus is a node's last status with all its targets. In etcd, repeated targets are omitted.
type WholeStatus model.Status

// Explain runs the node's own decision on its last status.
func Explain(f FleetState, ref model.Ref, node string, now time.Time) Explanation {
	n := lookAt(f, node, "", now)
	last := model.Status{Node: node, Settings: model.DefaultSettings()}
	x := Explanation{Environment: ref.String(), Made: made(f.Spec, node), Node: node, State: n.State, Why: n.Cause, View: n.View}
	if st, ok := reportOf(f, node); ok {
		last, x.Status = st, (*WholeStatus)(&st)
	}
	if f.Spec != nil && !f.Known()[node] {
		_, called := f.Spec.RoleOf(node)
		x.uncalled = !called
	}
	id := model.Identity{Node: node, Role: n.Role, Environment: ref.String(), PuppetEnvironment: ref.Environment}
	desired := f.Desired(n.Role, node)
	d := model.Decide(last.Observed(id), desired, now)
	x.Desired, x.Has, x.Action, x.Cause, x.Ladder, x.Next = desired.Wanted(), last.LastGood, d.Action, d.Cause, d.Ladder, d.Next
	return x
}

// made reports whether the provider of an environment makes the machine of a node: not those of members.
func made(e *environments.Environment, node string) bool {
	if e == nil || e.Driver() == environments.DriverNone {
		return false
	}
	role, called := e.RoleOf(node)
	return called && !slices.Contains(role.Members, node)
}

// CompareNatural compares names of nodes by role, stack and number. Any other name counts as a role: without one key for
// all names, the order would contain circles.
func CompareNatural(a, b string) int { return compareNodes(keyOf(a), keyOf(b)) }

// naturalKey is the key of a name in the natural order.
type naturalKey struct {
	model.Node
	name string
}

func keyOf(name string) naturalKey {
	n, err := model.ParseNode(name)
	if err != nil {
		n = model.Node{Role: name}
	}
	return naturalKey{n, name}
}

func compareNodes(a, b naturalKey) int {
	return cmp.Or(strings.Compare(a.Role, b.Role), strings.Compare(a.Stack, b.Stack), a.Num-b.Num, strings.Compare(a.name, b.name))
}

// natural returns names in the natural order. It parses each name once: a fleet may have 100,000.
func natural(names map[string]bool) []string {
	keys := make([]naturalKey, 0, len(names))
	for name := range names {
		keys = append(keys, keyOf(name))
	}
	slices.SortFunc(keys, compareNodes)
	sorted := make([]string, len(keys))
	for i, k := range keys {
		sorted[i] = k.name
	}
	return sorted
}

// CheckRole refuses a role that the environment does not have.
func CheckRole(e *environments.Environment, role string) error {
	if _, ok := e.Role(role); ok {
		return nil
	}
	hint := "its roles are " + strings.Join(e.RoleNames(), ", ")
	if near := model.SuggestName(role, e.RoleNames()); near != "" {
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
	n, err := model.ParseNode(node)
	hint := "`pulley nodes -e " + e.Ref().String() + "` lists the nodes"
	if near := model.SuggestName(node, slices.Collect(maps.Keys(known))); near != "" {
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
