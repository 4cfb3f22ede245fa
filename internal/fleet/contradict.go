package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
)

// ContradictionCode is the kind of a contradiction.
type ContradictionCode string

// The kinds of contradictions. Each means that etcd was written without Pulley, or restored in part.
const (
	TargetDiffers ContradictionCode = "target_differs" // a scope's target is not the target of its last change
	EpochDiffers  ContradictionCode = "epoch_differs"  // the gate's epoch is not the epoch of the last change
	HistoryGap    ContradictionCode = "history_gap"    // a change before the last one is missing, or was written again: a signer signs nothing
	Restored      ContradictionCode = "restored"       // from a backup, and no operator has continued since
	MarkAbove     ContradictionCode = "mark_above"     // a node's high-water mark is above all releases and data of the history

	EpochAbove ContradictionCode = "epoch_above" // nodes saw an epoch that the history has not reached

	AssignmentDiffers ContradictionCode = "assignment_differs" // a node is assigned another target than that of its scope

	RetirementUnconfirmed ContradictionCode = "retirement_unconfirmed" // requests to retire that no administrator confirmed
	StatementMissing      ContradictionCode = "statement_missing"      // the environment demands a statement of its targets
	StatementExpired      ContradictionCode = "statement_expired"
	StatementDiffers      ContradictionCode = "statement_differs" // a scope's target is not that of the statement
)

// Contradiction is a difference between the targets, the history, the statuses and the requests of an environment.
type Contradiction struct {
	Code   ContradictionCode `json:"code"`
	Scope  string            `json:"scope,omitempty"`  // all, roles/R or nodes/N
	Target *model.Target     `json:"target,omitempty"` // in etcd; of mark_above: the mark, without hashes; of assignment_differs: the assigned one
	Change *model.Target     `json:"change,omitempty"` // of the last change; of mark_above: the highest of the history; of a statement; of assignment_differs: of the node's scopes
	Gate   model.Epoch       `json:"gate,omitempty"`   // epoch of the gate
	Epoch  model.Epoch       `json:"epoch,omitempty"`  // of the last change; 0: the history has none
	Node   string            `json:"node,omitempty"`
	Nodes  []string          `json:"nodes,omitempty"` // of retirement_unconfirmed and epoch_above
	Seen   model.Epoch       `json:"seen,omitempty"`  // of epoch_above: the highest
	Until  *time.Time        `json:"until,omitempty"` // end of a statement

	of etcd.Scope
}

// ScopeOf returns the scope of a target that differs.
func ScopeOf(c Contradiction) (scope etcd.Scope, ok bool) { return c.of, c.Code == TargetDiffers }

// Contradictions compares the targets and the statuses of a fleet with its history, newest change first, and with its
// statement, whose signature it does not verify. The history must be that of the targets' revision.
func Contradictions(f FleetState, history []targets.Change, now time.Time) []Contradiction {
	all := []Contradiction{}
	epoch := model.Epoch(0)
	if len(history) > 0 {
		epoch = history[0].Epoch
	}
	if gate := f.Desires.Gate.Epoch; gate != epoch {
		all = append(all, Contradiction{Code: EpochDiffers, Gate: gate, Epoch: epoch})
	}
	if targets.Gap(history) {
		all = append(all, Contradiction{Code: HistoryGap, Epoch: epoch})
	}
	if len(history) > 0 && history[0].Kind == targets.Restored {
		all = append(all, Contradiction{Code: Restored, Epoch: epoch})
	}
	last := LastChanges(history)
	for _, scope := range Scopes(f.Desires, history) {
		was := last[scope]
		target, after := f.Desires.Target(scope), was.After
		if target == after || scope.Node != "" && target == (model.Target{}) { // a removed node's target is deleted without a change
			continue
		}
		all = append(all, Contradiction{Code: TargetDiffers, Scope: scope.Segment("all"), Target: &target, Change: &after, Epoch: was.Epoch, of: scope})
	}
	if len(f.Unconfirmed) > 0 {
		all = append(all, Contradiction{Code: RetirementUnconfirmed, Nodes: slices.SortedFunc(slices.Values(f.Unconfirmed), CompareNatural)})
	}
	all = append(all, statement(f, now)...)
	all = append(all, assignments(f, history)...)
	all = append(all, epochsAbove(f, epoch, now)...)
	highest := Highest(history, now)
	for _, node := range slices.SortedFunc(maps.Keys(f.Statuses), CompareNatural) {
		if _, listed := f.Hosts[node]; !listed { // the status of a removed node remains
			continue
		}
		if mark := Mark(f.Statuses[node]); Above(mark, highest) {
			all = append(all, Contradiction{Code: MarkAbove, Node: node, Target: &mark, Change: &highest})
		}
	}
	return all
}

// epochsAbove finds nodes that refuse what is signed or assigned under the next epoch after that of the last change.
func epochsAbove(f FleetState, last model.Epoch, now time.Time) []Contradiction {
	above := Contradiction{Code: EpochAbove, Epoch: last}
	for node := range f.Hosts {
		permit, statement, rollout := seenEpochs(f.Statuses[node], now)
		if permit > last || statement > last+1 || rollout > last { // a permit is used once; a later statement of the same epoch counts
			above.Nodes, above.Seen = append(above.Nodes, node), max(above.Seen, permit, statement, rollout)
		}
	}
	if len(above.Nodes) == 0 {
		return nil
	}
	slices.SortFunc(above.Nodes, CompareNatural)
	return []Contradiction{above}
}

// SeenEpoch returns the highest epoch of a permit or statement that a node verified, and of a rollout that assigned it something, if it
// refuses an older one: it uses none below. It is zero if no change can have that epoch.
func SeenEpoch(s model.Status, now time.Time) model.Epoch {
	permit, statement, rollout := seenEpochs(s, now)
	return max(permit, statement, rollout)
}

func seenEpochs(s model.Status, now time.Time) (permit, statement, rollout model.Epoch) {
	if sig := s.Signatures; sig != nil {
		permit, statement = sig.Permit, sig.Statement
	}
	if s.Reason == model.ReasonEpochPassed {
		rollout = s.Params.Epoch
	}
	for _, epoch := range []*model.Epoch{&permit, &statement, &rollout} {
		if !targets.PlausibleEpoch(*epoch, now) {
			*epoch = 0
		}
	}
	return permit, statement, rollout
}

// started reports whether an assignment is that of the rollout in progress, as its start is in the history.
func started(g model.Gate, history []targets.Change, a model.Assignment) bool {
	return g.Rollout != "" && a.Rollout == g.Rollout && slices.ContainsFunc(history, func(c targets.Change) bool {
		return c.Epoch == g.Epoch && c.Rollout != nil && c.Rollout.ID == a.Rollout && c.Rollout.Target == a.Target && c.Rollout.Agent == a.Agent.Version
	})
}

// assignments compares the assignments in force with the targets of their nodes.
func assignments(f FleetState, history []targets.Change) (all []Contradiction) {
	for _, node := range slices.SortedFunc(maps.Keys(f.Assigned), CompareNatural) {
		d := f.Desires.For(f.Hosts[node].Role, node)
		target := d.Wanted()
		assigned := f.Assigned[node]
		if started(f.Desires.Gate, history, assigned) {
			continue
		}
		d.Assigned = &assigned
		if wanted := d.Wanted(); wanted != target {
			all = append(all, Contradiction{Code: AssignmentDiffers, Node: node, Target: &wanted, Change: &target})
		}
	}
	return all
}

// statement compares the targets of a fleet with its statement.
func statement(f FleetState, now time.Time) (all []Contradiction) {
	st := f.Desires.Statement
	demanded := f.Spec != nil && f.Spec.Statement != 0 && f.Desires.Gate.Epoch > 0
	switch {
	case st == nil || st.Off:
		if demanded {
			all = append(all, Contradiction{Code: StatementMissing})
		}
		return all
	case st.Ended(now):
		all = append(all, Contradiction{Code: StatementExpired, Epoch: model.Epoch(st.Epoch), Until: &st.Until})
	}
	was := f.Desires.ByStatement()
	scopes := append(Scopes(f.Desires, nil), Scopes(was, nil)...)
	slices.SortFunc(scopes, compareScopes)
	for _, scope := range slices.Compact(scopes) {
		target, stated := f.Desires.Target(scope), was.Target(scope)
		if target != stated && (scope.Node == "" || target != (model.Target{})) {
			all = append(all, Contradiction{Code: StatementDiffers, Scope: scope.Segment("all"), Target: &target, Change: &stated, Epoch: model.Epoch(st.Epoch), of: scope})
		}
	}
	return all
}

// LastChanges returns the last change of each scope.
func LastChanges(history []targets.Change) map[etcd.Scope]targets.Change {
	last := map[etcd.Scope]targets.Change{}
	for _, c := range slices.Backward(history) {
		last[c.Scope()] = c
	}
	return last
}

// Scopes lists the scopes with a target or with a change: all nodes, then roles and nodes, each in order.
func Scopes(d targets.Desires, history []targets.Change) []etcd.Scope {
	known := map[etcd.Scope]bool{{}: true}
	for role := range d.Roles {
		known[etcd.Scope{Role: role}] = true
	}
	for node := range d.Nodes {
		known[etcd.Scope{Node: node}] = true
	}
	for _, c := range history {
		known[c.Scope()] = true
	}
	return slices.SortedFunc(maps.Keys(known), compareScopes)
}

func compareScopes(a, b etcd.Scope) int {
	return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Role, b.Role)) // "" comes first
}

// Mark returns a node's high-water mark as a target without hashes; zero if the node checks no signatures.
func Mark(s model.Status) model.Target {
	if s.Signatures == nil || s.Signatures.State != model.SignaturesChecked {
		return model.Target{}
	}
	return model.Target{Release: s.Signatures.Release, Data: s.Signatures.Data}
}

// Above reports whether a mark is above a target in its release or in its data.
func Above(mark, t model.Target) bool {
	return mark.Data > t.Data || mark.Release != "" && release.CompareVersions(mark.Release, t.Release) > 0
}

// Highest returns the highest release and the highest data of the history, as a target without hashes. It ignores data that no
// change can have.
func Highest(history []targets.Change, now time.Time) model.Target {
	var t model.Target
	for _, c := range history {
		for _, named := range c.Named(now) { // not c.Before, which may have been written without Pulley
			t.Data = max(t.Data, named.Data)
			if r := named.Release; r != "" && (t.Release == "" || release.CompareVersions(r, t.Release) > 0) {
				t.Release = r
			}
		}
	}
	return t
}
