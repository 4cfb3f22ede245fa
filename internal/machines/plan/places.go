package plan

import (
	"maps"
	"slices"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/rollout"
)

// MayRetire returns why a node must not be retired now: with it, more nodes of a place would be unavailable than the policy of the
// environment allows. nil means that it may. begun are nodes that this apply makes unavailable. A node that is unavailable
// already exceeds nothing.
func MayRetire(e *environments.Environment, w machines.World, node string, begun map[string]bool) *machines.Reason {
	if len(w.Places[node]) == 0 || gone(w, node) {
		return nil
	}
	away := rollout.Away{}
	for other, places := range w.Places {
		if begun[other] || gone(w, other) {
			away.Add(rollout.Member{Node: other, Places: places})
		}
	}
	place, full := rollout.PolicyOf(e).Full(away, rollout.Member{Node: node, Places: w.Places[node]})
	if !full {
		return nil
	}
	return &machines.Reason{Code: machines.WaitsForPlace, Place: place, Nodes: slices.Sorted(maps.Keys(away[place]))}
}

func gone(w machines.World, node string) bool {
	_, registered := w.Hosts[node]
	return registered && rollout.Unavailable(w.Views[node])
}

// Yields reports whether a step may have to wait for other unavailable nodes: it makes a working node unavailable.
func (s Step) Yields() bool { return s.Verb == Retire || s.Verb == Replace }
