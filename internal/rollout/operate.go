package rollout

import (
	"errors"
	"slices"
	"time"

	"pulley/internal/model"
)

// The errors of an operator's acts.
var (
	ErrNotWaiting = errors.New("it does not wait for an approval")
	ErrUnknown    = errors.New("it is not in the rollout")
	ErrPassed     = errors.New("it has ended")
	ErrEnded      = errors.New("the rollout has ended")
)

// Resume returns the state after an operator accepted the failures so far. The gate is opened beside it.
func (s State) Resume() State {
	s = s.clone()
	s.Stop, s.Asked, s.Answers = nil, time.Time{}, nil // gates are asked again
	for node, f := range s.Failed {
		f.Accepted = true
		s.Failed[node] = f
	}
	return s
}

// Retry returns the state after an operator ordered the failed nodes again, and accepted the other failures. It returns how
// many nodes wait for their turn. A node that may still run is none of them.
func (s State) Retry(p Plan) (State, int, error) {
	if s.Phase != Advancing {
		return s, 0, ErrEnded
	}
	s = s.Resume()
	s.Again = slices.Clone(s.Again)
	for _, g := range s.Groups(p) {
		for _, m := range g.Nodes {
			_, failed := s.Failed[m.Node]
			if _, keeps := s.Slots[m.Node]; failed && !keeps {
				s.Again = append(s.Again, m.Node)
				delete(s.Failed, m.Node)
			}
		}
	}
	return s, len(s.Again), nil
}

// Revert returns the state after a revert. It keeps the slots: a record of the nodes that were in progress.
func (s State) Revert(now time.Time) State {
	s.Phase, s.Ended = Reverted, now.UTC().Truncate(time.Second)
	return s
}

// Abort returns the state after an operator ended a job.
func (s State) Abort(now time.Time, by string, why model.Prose) State {
	s = s.clone()
	s.Phase, s.Ended, s.EndedBy, s.EndedWhy = Aborted, now.UTC().Truncate(time.Second), by, why
	if last := len(s.Times) - 1; last >= 0 && s.Times[last].To.IsZero() {
		s.Times = slices.Clone(s.Times)
		s.Times[last].To = s.Ended
	}
	return s
}

// Approve returns the state after an operator approved the groups after the canaries, or the next batch. All nodes before must have
// ended.
func (s State) Approve(p Plan) (State, error) {
	if s.Phase != Advancing {
		return s, ErrEnded
	}
	g, ok := s.Current(p)
	waits := false
	switch p.Policy.Promote {
	case Manual:
		waits = g.Kind == Canaries && s.Next >= len(g.Nodes)
	case Batches:
		from, to := g.batch(s.Batch)
		waits = s.beyondFirst() && s.Next == from && from < to
	}
	if s.Approved || !ok || !waits || len(s.Slots)+len(s.Again) > 0 {
		return s, ErrNotWaiting
	}
	s = s.clone()
	s.Approved = true
	return s, nil
}

// beyondFirst reports whether the first batch of the campaign ended.
func (s State) beyondFirst() bool { return s.Group > 0 || s.Batch > 0 }

// Skip returns the state after an operator left out a node. A node whose turn has not come does not begin. The assignment of a node in
// progress is withdrawn if it did not begin, and a lost node frees its slot as soon as its assignment is deleted: it may run another
// target until now. A node that settles counts as done at once.
func (s State) Skip(p Plan, node string) (State, error) {
	if s.Phase != Advancing {
		return s, ErrEnded
	}
	slot, busy := s.Slots[node]
	if !busy {
		return s.leaveOut(p, node)
	}
	s = s.clone()
	if slot.State == Healthy {
		slot.GivenUp = true
		s.Slots[node] = slot
		return s, nil
	}
	lost := slot.State == Lost || slot.GivenUp
	delete(s.Failed, node)
	slot = withdrawn(slot, Failure{}, SkipOperator)
	slot.GivenUp = lost
	s.Slots[node] = slot
	return s, nil
}

// leaveOut skips a node that waits for its turn, or to be ordered again.
func (s State) leaveOut(p Plan, node string) (State, error) {
	m, known := s.members(p)[node]
	again := slices.Index(s.Again, node)
	switch passed := m.group < s.Group || m.group == s.Group && m.at < s.Next; {
	case !known:
		return s, ErrUnknown
	case again < 0 && (passed || s.Skipped[node] == SkipOperator):
		return s, ErrPassed
	}
	s = s.clone()
	if again >= 0 {
		s.Again = slices.Delete(slices.Clone(s.Again), again, again+1)
	}
	s.Skipped[node] = SkipOperator
	return s, nil
}
