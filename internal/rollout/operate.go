package rollout

import (
	"errors"
	"slices"
	"time"

	"pulley/agent"
)

// The errors of an operator's acts.
var (
	ErrNotWaiting = errors.New("it does not wait for an approval")
	ErrNoSlot     = errors.New("it is not in progress")
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
	for i := range len(p.Groups) + 1 {
		g, _ := s.InOrder(p, i)
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
func (s State) Abort(now time.Time, by string, why agent.Prose) State {
	s = s.clone()
	s.Phase, s.Ended, s.EndedBy, s.EndedWhy = Aborted, now.UTC().Truncate(time.Second), by, why
	if last := len(s.Times) - 1; last >= 0 && s.Times[last].To.IsZero() {
		s.Times = slices.Clone(s.Times)
		s.Times[last].To = s.Ended
	}
	return s
}

// Approve returns the state after an operator approved the groups after the canaries. All canaries must have ended.
func (s State) Approve(p Plan) (State, error) {
	if s.Phase != Advancing {
		return s, ErrEnded
	}
	g, ok := s.Current(p)
	ended := ok && g.Kind == Canaries && s.Next >= len(g.Nodes) && len(s.Slots)+len(s.Again) == 0
	if s.Approved || p.Policy.Promote != Manual || !ended {
		return s, ErrNotWaiting
	}
	s = s.clone()
	s.Approved = true
	return s, nil
}

// Skip returns the state after an operator gave up a node in progress: its assignment is withdrawn if it did not begin,
// and a lost node frees its slot as soon as its assignment is deleted: it may run another target until now.
func (s State) Skip(node string) (State, error) {
	if s.Phase != Advancing {
		return s, ErrEnded
	}
	slot, ok := s.Slots[node]
	if !ok {
		return s, ErrNoSlot
	}
	s = s.clone()
	lost := slot.State == Lost || slot.GivenUp
	delete(s.Failed, node)
	slot = withdrawn(slot, Failure{}, SkipOperator)
	slot.GivenUp = lost
	s.Slots[node] = slot
	return s, nil
}
