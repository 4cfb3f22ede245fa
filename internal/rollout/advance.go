package rollout

import (
	"time"

	"pulley/internal/model"
)

// Step is the next step of a campaign. If State is not nil, the step writes the state and nothing else: a controller must
// read it back before it orders a node. A state that is Completed or Reverted ends the campaign in the same transaction.
type Step struct {
	State    *State
	Close    *Stop // with State: pause the gate, for this cause
	Assign   []Assign
	Withdraw []string
	Wait     Wait
	Blocking []string // with WaitPlace: the unavailable nodes for which it waits; the next Decide reads them first
}

// Empty reports whether there is nothing to write.
func (s Step) Empty() bool { return s.State == nil && len(s.Assign)+len(s.Withdraw) == 0 }

// Assign is an assignment to write for a node whose host entry is unchanged.
type Assign struct {
	Node       string
	Assignment model.Assignment
}

// Start returns the first state of a campaign.
func Start(now time.Time) State { return State{Phase: Advancing, Moved: now.UTC()} }

// Advance decides on the next step of a campaign. It is a pure function of the plan, the state, what was observed after
// the state was read, and the time of serve.
func Advance(p Plan, s State, o Observed, now time.Time) Step {
	if s.Phase != Advancing {
		return Step{}
	}
	a := &advance{p: p, s: s.clone(), o: o, now: now.UTC().Truncate(time.Second)}
	if o.Gate.Rollout != p.ID || o.Gate.Epoch != p.Epoch {
		a.s.Phase, a.s.Ended, a.s.Slots = Replaced, a.now, nil
		return Step{State: &a.s}
	}
	a.clocks()
	if p.Kind == Run {
		return a.job()
	}
	for _, node := range a.s.slots() {
		a.judge(node)
	}
	if o.Reached > p.Epoch {
		a.halt(Stop{Code: StopRestored, Epoch: o.Reached})
	}
	if a.open() && a.stop == nil {
		a.limits()
		if a.stop == nil {
			a.fill()
			a.began()
			a.waitsNoMore()
		}
	}
	if a.changed {
		return Step{State: &a.s, Close: a.stop}
	}
	return Step{Assign: a.assign(), Withdraw: a.withdraw(), Wait: a.waits(), Blocking: a.blocking()}
}

type advance struct {
	p       Plan
	s       State
	o       Observed
	now     time.Time
	changed bool
	stop    *Stop
	wait    Wait
	away    Away // of the nodes that were read; nil: not counted yet
	partial bool // others count as well
	texts   int  // bytes of failures, in the state; 0: not counted yet
	members map[string]position
	queue   map[string]bool // nodes to be ordered again, when the step began
}

func (a *advance) open() bool { return a.o.Gate.State == model.GateOpen || a.o.Gate.State == "" }

// clocks stops deadlines while the gate is closed, and corrects instants that are in the future after the clock was set back.
func (a *advance) clocks() {
	for _, t := range []*time.Time{&a.s.Moved, &a.s.Closed, &a.s.Busy, &a.s.KeptBack} {
		if t.After(a.now) {
			*t, a.changed = a.now, true
		}
	}
	shift := time.Duration(0)
	switch {
	case a.open() && !a.s.Closed.IsZero():
		shift, a.s.Closed, a.s.Stop, a.changed = a.now.Sub(a.s.Closed), time.Time{}, nil, true
		a.s.Moved, a.s.KeptBack = a.s.Moved.Add(shift), time.Time{}
	case !a.open() && a.s.Closed.IsZero():
		a.s.Closed, a.changed = a.now, true
	}
	for node, slot := range a.s.Slots {
		at, since := slot.At.Add(shift), slot.Since
		if n, read := a.o.Nodes[node]; read && a.outdated(slot, n) {
			at = slot.At // its gates are asked again
		}
		if at.After(a.now) {
			at, a.changed = a.now, true
		}
		if since.After(a.now) {
			since, a.changed = a.now, true
		}
		slot.At, slot.Since = at, since
		a.s.Slots[node] = slot
	}
}

// fill begins the next nodes of the batch, the next batch or the next group, as far as slots are free.
func (a *advance) fill() {
	if !a.reordered() || !a.again() {
		return
	}
	for {
		g, ok := a.s.Current(a.p)
		if !ok {
			if !a.later() {
				return
			}
			continue
		}
		from, to := g.batch(a.s.Batch)
		if a.p.Policy.Promote == Batches && a.s.Next == from && from < to && a.s.beyondFirst() && !a.s.Approved {
			a.wait = Wait{Code: WaitApproval, Node: g.Nodes[from].Node}
			return
		}
		if !a.begin(g, to) {
			return
		}
		switch ended := a.s.Next >= len(g.Nodes); {
		case ended && len(a.s.Slots) > 0: // groups never overlap
			a.wait = a.waitForNodes()
			return
		case !ended && a.busy():
			a.wait = a.waitForNodes()
			return
		case ended && g.Kind == Canaries && a.p.Policy.Promote == Manual && !a.s.Approved:
			a.wait = Wait{Code: WaitApproval}
			return
		case ended:
			a.batchEnded(true)
			a.s.Group, a.s.Batch, a.s.Next = a.s.Group+1, 0, 0
		default:
			a.batchEnded(false)
			a.s.Batch++
		}
		a.s.Passed, a.changed = false, true
		a.s.Approved = a.s.Approved && a.p.Policy.Promote != Batches
	}
}

// waitsNoMore forgets since when the campaign waited for what it does not wait for any more.
func (a *advance) waitsNoMore() {
	if a.wait.Code == WaitRead {
		return // the next step knows
	}
	if a.wait.Code != WaitPlace && !a.s.KeptBack.IsZero() {
		a.s.KeptBack, a.changed = time.Time{}, true
	}
	if a.wait.Code != WaitAnswers && !a.s.Asked.IsZero() {
		a.s.Asked, a.s.Answers, a.changed = time.Time{}, nil, true
	}
}

// busy reports whether a node of the batch may still end by itself. Lost ones of earlier batches keep their slots.
func (a *advance) busy() bool {
	for _, s := range a.s.Slots {
		if s.State != Lost {
			return true
		}
	}
	return false
}

// assign returns the assignments of the state that etcd lacks, while the gate is open.
func (a *advance) assign() (all []Assign) {
	if !a.open() || a.stopped() {
		return nil
	}
	for _, node := range a.s.slots() {
		slot := a.s.Slots[node]
		n, read := a.o.Nodes[node]
		if slot.State != Ordered || !read || n.has(slot, a.p.Epoch) || a.outdated(slot, n) {
			continue
		}
		kind := model.AssignTake
		switch {
		case a.p.Noop:
			kind = model.AssignNoop
		case a.p.Kind == Run:
			kind = model.AssignRun
		}
		all = append(all, Assign{node, model.Assignment{
			ID: slot.ID, Kind: kind, Machine: slot.Machine, Target: a.p.Target, Agent: a.p.Agent, Rollout: a.p.ID, Epoch: a.p.Epoch,
		}})
	}
	return all
}

// withdraw returns the nodes whose assignment must be deleted. The deletion compares their status.
func (a *advance) withdraw() (all []string) {
	for _, node := range a.s.slots() {
		if n, read := a.o.Nodes[node]; read && a.s.Slots[node].State == Withdrawing && (a.s.Slots[node].GivenUp || !a.taking(n)) {
			all = append(all, node)
		}
	}
	return all
}
