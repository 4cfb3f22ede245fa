// Package rollout owns staged rollouts: the stored types of a campaign, its plan, and the decision about its next step.
// Make and Advance are pure functions. A campaign stops by itself when more nodes fail than its policy allows.
//
// It must never read etcd, the clock or a file, and must never change what an environment desires.
package rollout

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pulley/environments/applications"
	"pulley/internal/model"
	"pulley/internal/model/refusal"
)

// Kind is the kind of a campaign.
type Kind string

// The kinds.
const (
	Take Kind = "take" // a rollout: nodes take a target
	Run  Kind = "run"  // a job: nodes run what is desired for them, in order, and the others wait
)

// Plan is a campaign as it was started. It never changes.
type Plan struct {
	ID       string            `json:"id"`              // for people: an etcd that went back in time gives it again
	Nonce    string            `json:"nonce,omitempty"` // random: the plan, its keys and its orders have it, and no other plan has
	Kind     Kind              `json:"kind"`
	Epoch    model.Epoch       `json:"epoch"`          // of the environment's gate while the campaign runs
	Noop     bool              `json:"noop,omitempty"` // of a job: its runs make no changes
	Role     string            `json:"role,omitempty"`
	Target   model.Target      `json:"target"`            // of the nodes; they inherit its empty parts
	Agent    model.AgentChoice `json:"agent,omitzero"`    // version of the agent instead of a target
	Origin   model.Target      `json:"origin"`            // of the scope, at the start
	Policy   Policy            `json:"policy"`            // as it was at the start
	Roles    []string          `json:"roles,omitempty"`   // of the environment, in the order of their groups
	Groups   []Group           `json:"groups"`            // one after the other
	Excluded []string          `json:"excluded,omitzero"` // nodes with a target of their own or of their role
	Daemons  []string          `json:"daemons,omitzero"`  // nodes beside which Puppet's own daemon runs
	Outside  []Member          `json:"-"`                 // other nodes with places that the policy limits; stored beside the plan
	Others   int               `json:"others,omitzero"`   // number of Outside
	By       string            `json:"by,omitempty"`
	Why      model.Prose       `json:"why,omitempty"`
	At       time.Time         `json:"at"`
}

// order is the ID of an order of this plan. No answer to another plan's order has it.
func (p Plan) order(what string) string { return p.ID + "." + what + "." + p.Nonce }

// Ordered reports whether an order is of this plan, by its ID.
func (p Plan) Ordered(id string) bool {
	return strings.HasPrefix(id, p.ID+".") && strings.HasSuffix(id, "."+p.Nonce)
}

// Group is a part of a plan. Its nodes take the target in batches.
type Group struct {
	Kind     GroupKind `json:"kind"`
	Role     string    `json:"role,omitempty"`
	Number   int       `json:"number,omitempty"`   // of a layer, from 1
	Batch    int       `json:"batch"`              // nodes at a time, at least 1
	Failures Share     `json:"failures,omitempty"` // nodes of one batch that may fail; "": any number
	Size     int       `json:"size"`               // number of nodes
	Nodes    []Member  `json:"-"`                  // stored beside the plan
}

// GroupKind is the kind of a group.
type GroupKind string

// The kinds of groups.
const (
	Canaries GroupKind = "canaries" // of several roles
	OfRole   GroupKind = "role"
	Late     GroupKind = "late"  // nodes of a role that were registered during the campaign
	Layer    GroupKind = "layer" // of a job: nodes that need only nodes of earlier layers
)

// Name is the group's name for people.
func (g Group) Name() string {
	switch g.Kind {
	case Canaries:
		return "canaries"
	case Late:
		return g.Role + " (registered later)"
	case Layer:
		return strconv.Itoa(g.Number)
	}
	return g.Role
}

// Batches is the number of the group's batches.
func (g Group) Batches() int { return (g.Size + g.Batch - 1) / max(g.Batch, 1) }

// batch returns the first node of a batch and the first one after it.
func (g Group) batch(n int) (from, to int) {
	return min(n*g.Batch, len(g.Nodes)), min((n+1)*g.Batch, len(g.Nodes))
}

// Member is one node of a plan. Another machine of the same name is another node.
type Member struct {
	Node    string              `json:"node"`
	Machine string              `json:"machine,omitempty"`
	Places  []string            `json:"places,omitempty"` // values of what Policy.Limits names: "rack=r1"
	Does    []applications.Name `json:"does,omitempty"`   // components of applications, of a job
}

// Phase is the progress of a campaign.
type Phase string

// The phases. A campaign with another phase than Advancing has ended.
const (
	Advancing Phase = "advancing"
	Completed Phase = "completed" // its target became what is desired
	Reverted  Phase = "reverted"  // its nodes return to what is desired
	Replaced  Phase = "replaced"  // an operator changed the environment's targets instead
	Failed    Phase = "failed"    // a job stopped: the rest of its nodes did not run
	Aborted   Phase = "aborted"   // an operator ended a job
	Gone      Phase = "lost"      // no serve advanced a job: its lease ended, and its nodes went on by themselves
)

// State is the progress of a campaign: one value in etcd, replaced by compare-and-swap. All instants are those of serve.
type State struct {
	Phase   Phase               `json:"phase"`
	Group   int                 `json:"group"` // index; the late groups follow the plan's
	Batch   int                 `json:"batch"` // index in the group
	Next    int                 `json:"next"`  // index in the group of the next node to begin
	Slots   map[string]Slot     `json:"slots,omitempty"`
	Done    int                 `json:"done"` // nodes that took the target
	Failed  map[string]Failure  `json:"failed,omitempty"`
	Skipped map[string]SkipCode `json:"skipped,omitempty"`
	Listed  bool                `json:"listed,omitempty"` // the late groups are known: the plan's groups ended
	Late    []LateGroup         `json:"late,omitempty"`   // one after the other
	Tries   map[string]int      `json:"tries,omitempty"`  // assignments of nodes
	Again   []string            `json:"again,omitempty"`  // failed nodes that an operator orders again, before others begin

	Passed  bool              `json:"passed,omitempty"`  // the gates let the batch in progress begin
	Asked   time.Time         `json:"asked,omitzero"`    // since when the gates are asked before a batch; zero: they are not
	Answers map[string]Answer `json:"answers,omitempty"` // of the gates that block the next batch

	Busy     time.Time `json:"busy,omitzero"`      // when all nodes of the job were seen to wait, and some of them still to run
	Gathered bool      `json:"gathered,omitempty"` // all nodes of the job wait, and none of them runs
	Times    []Span    `json:"times,omitempty"`    // of groups by their index; the zero value for one of which no node began

	Code string `json:"code,omitempty"` // that the Puppet server gave the newest node; "": none names any

	KeptBack time.Time `json:"kept_back,omitzero"` // since when the next node is kept back for its place; zero: it is not
	Approved bool      `json:"approved,omitempty"` // the groups after the canaries
	Stop     *Stop     `json:"stop,omitempty"`     // why the campaign paused by itself
	Moved    time.Time `json:"moved,omitzero"`     // when a node last ended
	Closed   time.Time `json:"closed,omitzero"`    // when the gate was seen closed; zero: it is open
	Ended    time.Time `json:"ended,omitzero"`

	EndedBy  string      `json:"ended_by,omitempty"` // the operator who aborted a job
	EndedWhy model.Prose `json:"ended_why,omitempty"`
}

// Span is the time of a group, with its slowest batch.
type Span struct {
	From    time.Time `json:"from,omitzero"`
	To      time.Time `json:"to,omitzero"`
	Batch   time.Time `json:"batch,omitzero"`    // when the batch in progress began
	Slowest int       `json:"slowest,omitempty"` // number of the slowest batch that ended, from 1
	Seconds int64     `json:"seconds,omitempty"` // that it took
}

// LateGroup is a group of nodes that were registered during the campaign.
type LateGroup struct {
	Group
	Members []Member `json:"nodes"`
}

// SlotState is the state of a node that occupies a slot of a batch.
type SlotState string

// The states of a slot. Only Ordered and Healthy nodes may still end well without an operator.
const (
	Ordered     SlotState = "ordered"     // it may take the target
	Healthy     SlotState = "healthy"     // it took the target, and settles
	Lost        SlotState = "lost"        // it runs beyond its deadline, or is silent; it keeps the slot
	Withdrawing SlotState = "withdrawing" // the assignment is being deleted; the node did not begin
)

// Slot is a node in progress.
type Slot struct {
	ID       string         `json:"id"` // of its assignment
	State    SlotState      `json:"state"`
	Machine  string         `json:"machine,omitempty"`
	At       time.Time      `json:"at"`                 // when it was ordered
	Since    time.Time      `json:"since,omitzero"`     // when it became healthy
	Status   int64          `json:"status,omitempty"`   // revision of the status that proved it
	Why      FailureCode    `json:"why,omitempty"`      // Withdrawing: the failure that follows, or "" for a skip
	Problem  model.Problem  `json:"problem,omitzero"`   // Withdrawing: of that failure
	Refusal  *refusal.Error `json:"refusal,omitempty"`  // Withdrawing: of that failure
	Skip     SkipCode       `json:"skip,omitempty"`     // Withdrawing: the skip that follows
	GivenUp  bool           `json:"given_up,omitempty"` // Withdrawing, Healthy: an operator does not wait for the node, even if it runs
	Again    bool           `json:"again,omitempty"`    // an operator ordered it again
	Doubtful string         `json:"doubtful,omitempty"` // run whose result proves nothing, and that paused the campaign
}

// Failure is the cause for which a node failed.
type Failure struct {
	Code    FailureCode   `json:"code"`
	Problem model.Problem `json:"problem,omitzero"` // of its run, without a text; of its agent
	Run     string        `json:"run,omitempty"`
	Cause   UnreadyCause  `json:"cause,omitempty"` // of NotReady

	Refusal *refusal.Error `json:"refusal,omitempty"` // of NodeRefused; nil for an agent, and beyond the limit of a rollout

	Accepted bool `json:"accepted,omitempty"` // by an operator: it counts for no limit
}

// FailureCode is the code of a node's failure.
type FailureCode string

// The failures.
const (
	RunFailed     FailureCode = "run_failed"     // problem, run
	AgentDropped  FailureCode = "agent_dropped"  // problem; the node stays on its agent
	NodeRefused   FailureCode = "target_refused" // refusal, or the problem of an agent; the node refused the target, for example its signature
	DeadlineEnded FailureCode = "deadline"       // it did not begin before its deadline
	NodeLost      FailureCode = "lost"           // it began, and did not answer before its deadline
	NotReady      FailureCode = "not_ready"      // it could not begin, and the policy does not wait
)

// SkipCode is the cause for which a campaign left out a node: one of these, or the UnreadyCause of a node that the policy skips.
type SkipCode string

// The causes of a skip.
const (
	SkipRemoved  SkipCode = "removed" // from the host list, or another machine has its name
	SkipOperator SkipCode = "operator"
	SkipStopped  SkipCode = "stopped" // the job stopped, and the node did not begin
)

// clone returns a copy that shares nothing that Advance changes.
func (s State) clone() State {
	s.Times = slices.Clone(s.Times)
	s.Slots, s.Failed, s.Skipped, s.Tries = maps.Clone(s.Slots), maps.Clone(s.Failed), maps.Clone(s.Skipped), maps.Clone(s.Tries)
	if s.Slots == nil {
		s.Slots = map[string]Slot{}
	}
	if s.Failed == nil {
		s.Failed = map[string]Failure{}
	}
	if s.Skipped == nil {
		s.Skipped = map[string]SkipCode{}
	}
	if s.Tries == nil {
		s.Tries = map[string]int{}
	}
	return s
}

// InOrder returns a group of the plan by its index, or a late group. ok is false after the last one.
func (s State) InOrder(p Plan, i int) (g Group, ok bool) {
	switch late := i - len(p.Groups); {
	case late < 0:
		return p.Groups[i], true
	case late < len(s.Late):
		g = s.Late[late].Group
		g.Nodes = s.Late[late].Members
		return g, true
	}
	return g, false
}

// Groups returns all groups in their order: those of the plan, then the late ones.
func (s State) Groups(p Plan) []Group {
	all := make([]Group, len(p.Groups)+len(s.Late))
	for i := range all {
		all[i], _ = s.InOrder(p, i)
	}
	return all
}

// Nodes is the number of nodes of all groups.
func (s State) Nodes(p Plan) int {
	sum := p.Nodes()
	for _, g := range s.Late {
		sum += g.Size
	}
	return sum
}

// Current returns the group in progress. ok is false when all groups ended.
func (s State) Current(p Plan) (Group, bool) { return s.InOrder(p, s.Group) }

// slots returns the names of nodes in progress, in order.
func (s State) slots() []string {
	names := slices.Collect(maps.Keys(s.Slots))
	slices.Sort(names)
	return names
}

// Nodes is the number of nodes of a plan.
func (p Plan) Nodes() (sum int) {
	for _, g := range p.Groups {
		sum += max(g.Size, len(g.Nodes))
	}
	return sum
}
