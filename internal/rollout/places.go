package rollout

import (
	"iter"
	"maps"
	"slices"

	"pulley/agent"
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

// Away has the unavailable nodes of each place.
type Away map[string]map[string]bool

// Add counts a member as unavailable.
func (w Away) Add(m Member) {
	for _, place := range m.Places {
		if w[place] == nil {
			w[place] = map[string]bool{}
		}
		w[place][m.Node] = true
	}
}

// Full returns the place whose unavailable nodes forbid that a member becomes unavailable, too: its own, or another one if the
// number of places is limited.
func (p Policy) Full(away Away, m Member) (place string, full bool) {
	for _, place := range m.Places {
		attribute := attributeOf(place)
		others := len(away[place])
		if away[place][m.Node] {
			others--
		}
		if most, limited := p.MaxUnavailable[attribute]; limited && others >= most {
			return place, true
		}
		most, limited := p.MaxPlaces[attribute]
		if !limited {
			continue
		}
		var beside []string
		for other := range away {
			if other != place && attributeOf(other) == attribute && !(away[other][m.Node] && len(away[other]) == 1) {
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
		a.wait = Wait{Code: WaitPlace, Node: m.Node, Place: place}
		return false
	case a.partial:
		a.wait = Wait{Code: WaitRead}
		return false
	}
	a.away.Add(m)
	return true
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

// counts reports whether a node counts as unavailable for its places: in progress, failed and not converged since, or unavailable
// for another cause, also because its machine is being replaced.
func (a *advance) counts(node string) bool {
	n := a.o.Nodes[node]
	_, slot := a.s.Slots[node]
	_, failed := a.s.Failed[node]
	return slot || failed && n.View.State != agent.Converged || Unavailable(n.View) || n.Replaced
}

// unavailable counts the unavailable nodes of each place.
func (a *advance) unavailable() {
	a.away, a.partial = Away{}, false
	for m := range placed(a.p, a.s) {
		n, read := a.o.Nodes[m.Node]
		newer := n.Host != nil && n.Host.MachineID != m.Machine // another machine has its name
		switch {
		case !read:
			a.partial = true
		case newer && a.member(m.Node).Machine == n.Host.MachineID: // it counts as a node of its own
		case newer && n.View.State != agent.Converged, !newer && a.counts(m.Node):
			a.away.Add(m)
		}
	}
}
