package rollout

import (
	"iter"
	"slices"

	"pulley/agent"
)

// placed yields the nodes that limits of places count: those of all groups, and those outside of them.
func placed(p Plan, s State) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for i := range len(p.Groups) + 1 {
			g, _ := s.InOrder(p, i)
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

// full returns a place of the member in which no further node may be unavailable.
func (a *advance) full(m Member) (string, bool) {
	if len(m.Places) == 0 {
		return "", false
	}
	if a.away == nil {
		a.away = a.unavailable()
	}
	itself := 0
	if a.counts(m.Node) {
		itself = 1
	}
	for _, place := range m.Places {
		attribute := attributeOf(place)
		if most, limited := a.p.Policy.MaxUnavailable[attribute]; limited && a.away[place]-itself >= most {
			return place, true
		}
		if most, limited := a.p.Policy.MaxPlaces[attribute]; limited {
			if others := a.placesOf(attribute, place); len(others) >= most {
				return others[0], true
			}
		}
	}
	for _, place := range m.Places {
		a.away[place] += 1 - itself
	}
	return "", false
}

// placesOf returns the values of an attribute, besides one, that have unavailable nodes, in order.
func (a *advance) placesOf(attribute, but string) (places []string) {
	for place, n := range a.away {
		if n > 0 && place != but && attributeOf(place) == attribute {
			places = append(places, place)
		}
	}
	slices.Sort(places)
	return places
}

// counts reports whether a node counts as unavailable for its places: in progress, failed and not converged since, or unavailable
// for another cause.
func (a *advance) counts(node string) bool {
	n := a.o.Nodes[node]
	_, slot := a.s.Slots[node]
	_, failed := a.s.Failed[node]
	return slot || failed && n.View.State != agent.Converged || unavailable(n)
}

// unavailable counts the unavailable nodes of each place.
func (a *advance) unavailable() map[string]int {
	count := map[string]int{}
	for m := range placed(a.p, a.s) {
		if !a.counts(m.Node) {
			continue
		}
		for _, place := range m.Places {
			count[place]++
		}
	}
	return count
}
