package fleet

import (
	"cmp"
	"time"

	"pulley/internal/model"
)

// Tally is an environment in numbers.
type Tally struct {
	Roles        map[string]Counts // nodes by role; "" for a role that only an unlisted node names
	Healthy      bool              // as in Status, but a node that only enforces its target is converged
	Oldest       time.Time         // the oldest report of a node on the host list; zero: none has reported
	Unclassified int
	NoopPending  int
	Holds        map[model.HoldMode]int
	Target       model.Target
	Gate         model.Gate
	Troubles     []Trouble                  // each cause
	Unsure       bool                       // nodes that failed try something else: no failure has ended
	Lacking      map[string]model.NodeState // nodes that the environment calls for, and that are missing, unregistered, pending, or held by their machines
}

// tally makes a Tally of one node after the other.
type tally struct {
	Tally
	alike   troubles
	called  map[string]string // roles of the nodes that the environment calls for
	settled int               // of these
	seen    map[string]bool   // nodes of the host list, or called for, that reported
	now     time.Time
}

func newTally(now time.Time) *tally {
	return &tally{Tally: Tally{Roles: map[string]Counts{}, Holds: map[model.HoldMode]int{}, Lacking: map[string]model.NodeState{}}, alike: troubles{}, seen: map[string]bool{}, now: now}
}

// add counts one node.
func (t *tally) add(f FleetState, name string) {
	if t.called == nil {
		t.called = map[string]string{}
		if f.Spec != nil {
			t.called = calledFor(f.Spec)
		}
	}
	role, called := t.called[name]
	host, listed := f.Hosts[name]
	n := lookAt(f, name, role, t.now)
	if role = cmp.Or(host.Role, role); t.Roles[role] == nil {
		t.Roles[role] = Counts{}
	}
	t.Roles[role][n.State]++
	if listed || called {
		t.seen[name] = true
	}
	t.Unsure = t.alike.add(n) || t.Unsure
	if called && n.lacks() {
		t.Lacking[name] = n.State
	}
	if n.Unclassified {
		t.Unclassified++
	}
	if n.NoopPending > 0 {
		t.NoopPending++
	}
	if listed && n.LastSeen != nil && (t.Oldest.IsZero() || n.LastSeen.Before(t.Oldest)) {
		t.Oldest = *n.LastSeen
	}
	if st := f.Statuses[name]; called && listed && (n.View.Settled() || n.State == model.InRun && !n.View.Failing && st.LastGood == n.View.Wanted) {
		t.settled++
	}
}

// finish counts the nodes that did not report.
func (t *tally) finish(f FleetState) Tally {
	if t.called == nil && f.Spec != nil {
		t.called = calledFor(f.Spec)
	}
	for name := range f.Hosts {
		if !t.seen[name] {
			t.add(f, name)
		}
	}
	for name := range t.called {
		if !t.seen[name] {
			t.add(f, name)
		}
	}
	if f.Spec != nil {
		for _, r := range f.Spec.Roles {
			if t.Roles[r.Name] == nil {
				t.Roles[r.Name] = Counts{}
			}
		}
	}
	for _, h := range f.Holds {
		t.Holds[h.Mode]++
	}
	t.Troubles = t.alike.list()
	t.Healthy, t.Target, t.Gate = f.Spec != nil && t.settled == len(t.called), f.Desires.Default, f.Desires.Gate
	return t.Tally
}

// lacks reports whether a node is not what its environment calls for, without a failure, a silence, or an operator who wants it so.
func (n Node) lacks() bool {
	switch n.State {
	case model.Missing, model.Unregistered:
		return true
	case model.Pending:
		return !n.View.Failing
	case model.Held:
		return n.Reason == model.ReasonDisabled || n.Reason == model.ReasonPuppetBlocked
	}
	return false
}
