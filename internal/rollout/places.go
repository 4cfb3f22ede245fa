package rollout

import (
	"iter"
	"maps"
	"slices"
	"time"

	"pulley/internal/model"
)

// placed yields the nodes that limits of places count: those of all groups, and those outside of them.
func placed(p Plan, s State) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for _, g := range s.Groups(p) {
			for _, m := range g.Nodes {
				if !yield(m) {
					return
				}
			}
		}
		for _, m := range p.Outside {
			if !yield(m) {
				return
			}
		}
	}
}

// Away has the unavailable nodes of each place, and whether each is in progress.
type Away map[string]map[string]bool

// Add counts a member as unavailable. One in progress is unavailable because of this campaign.
func (w Away) Add(m Member, inProgress bool) {
	for _, place := range m.Places {
		if w[place] == nil {
			w[place] = map[string]bool{}
		}
		w[place][m.Node] = w[place][m.Node] || inProgress
	}
}

// others counts the unavailable nodes of a place without one of them. Beside a node that is unavailable itself, only those in progress count:
// it takes no further node away, and two that recover must not take the target together.
func (w Away) others(place, node string, already bool) (n int) {
	for other, inProgress := range w[place] {
		if other != node && (inProgress || !already) {
			n++
		}
	}
	return n
}

// Full returns the place whose unavailable nodes forbid that a member begins: its own, or another one if the number of places is limited.
func (p Policy) Full(away Away, m Member) (place string, full bool) {
	for _, place := range m.Places {
		attribute := attributeOf(place)
		_, already := away[place][m.Node]
		if most, limited := p.MaxUnavailable[attribute]; limited && away.others(place, m.Node, already) >= most {
			return place, true
		}
		most, limited := p.MaxPlaces[attribute]
		if !limited {
			continue
		}
		var beside []string
		for other := range away {
			if other != place && attributeOf(other) == attribute && away.others(other, m.Node, already) > 0 {
				beside = append(beside, other)
			}
		}
		if len(beside) > 0 && len(beside) >= most {
			return slices.Min(beside), true
		}
	}
	return "", false
}

// takePlaces reports whether the next node may begin, and counts it as unavailable then. Each further unavailable node only fills more
// places: those that were read suffice for a wait.
func (a *advance) takePlaces(m Member) bool {
	if len(m.Places) == 0 || len(a.p.Policy.Limits()) == 0 {
		return true
	}
	if a.away == nil {
		a.unavailable()
	}
	place, full := a.p.Policy.Full(a.away, m)
	switch {
	case full:
		a.keptBack(m.Node, place)
		return false
	case a.partial:
		a.wait = Wait{Code: WaitRead}
		return false
	}
	a.away.Add(m, true)
	return true
}

// keptBack keeps a node back for its place. It pauses the campaign when nothing in progress can end the wait for too long.
func (a *advance) keptBack(node, place string) {
	a.wait = Wait{Code: WaitPlace, Node: node, Place: place}
	if a.s.KeptBack.IsZero() {
		a.s.KeptBack, a.changed = a.now, true
	}
	if len(a.s.Slots) > 0 || !a.keptTooLong() {
		return
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(a.away[place])), func(other string) bool { return other == node })
	a.s.KeptBack = a.now // the next pause is a whole deadline later
	a.halt(Stop{Code: StopPlace, Node: node, Place: place, Nodes: others[:min(len(others), named)]})
}

// keptTooLong reports whether the next node is kept back for longer than the policy permits, and no other node ended meanwhile.
func (a *advance) keptTooLong() bool {
	since := a.s.KeptBack
	if a.s.Moved.After(since) {
		since = a.s.Moved
	}
	limit := time.Duration(a.p.Policy.Progress)
	return limit > 0 && !a.s.KeptBack.IsZero() && a.now.Sub(since) >= limit
}

// blocking returns the unavailable nodes of the places for which the campaign waits. As long as they are unavailable, it waits.
func (a *advance) blocking() []string {
	need := map[string]bool{}
	for place, nodes := range a.away {
		if a.wait.Code == WaitPlace && attributeOf(place) == attributeOf(a.wait.Place) {
			maps.Copy(need, nodes)
		}
	}
	return slices.Sorted(maps.Keys(need))
}

// counts reports whether a node that is not in progress counts as unavailable for its places: it failed and has not converged since, or it
// is unavailable for another cause, for example because its machine is being replaced.
func (a *advance) counts(node string) bool {
	n := a.o.Nodes[node]
	_, failed := a.s.Failed[node]
	return failed && n.View.State != model.Converged || Unavailable(n.View) || n.Replaced
}

// unavailable counts the unavailable nodes of each place.
func (a *advance) unavailable() {
	a.away, a.partial = Away{}, false
	for m := range placed(a.p, a.s) {
		n, read := a.o.Nodes[m.Node]
		_, slot := a.s.Slots[m.Node]
		newer := n.Host != nil && n.Host.MachineID != m.Machine // another machine has its name
		switch {
		case !read:
			a.partial = true
		case newer && a.member(m.Node).Machine == n.Host.MachineID: // it counts as a node of its own
		case newer && n.View.State != model.Converged, !newer && (slot || a.counts(m.Node)):
			a.away.Add(m, slot && !newer)
		}
	}
}
