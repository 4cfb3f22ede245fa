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
			away.Add(rollout.Member{Node: other, Places: places}, begun[other])
		}
	}
	place, full := rollout.PolicyOf(e).Full(away, rollout.Member{Node: node, Places: w.Places[node]})
	if !full {
		return nil
	}
	return &machines.Reason{Code: machines.WaitsForPlace, Place: place, Nodes: slices.Sorted(maps.Keys(away[place]))}
}

// gone reports whether a node is unavailable, for whatever cause.
func gone(w machines.World, node string) bool {
	_, registered := w.Hosts[node]
	return registered && rollout.Unavailable(w.Views[node]) || away(w, node)
}

// away reports whether an apply, which may have ended since, retires a node, or replaces its machine and the new one has not converged.
func away(w machines.World, node string) bool {
	rec := w.Records[node]
	_, registered := w.Hosts[node]
	if len(rec.Places) > 0 && rec.Phase == machines.Made && registered {
		return settling(w, node, rec)
	}
	return rec.Away() // one that joined and is not registered was removed by an operator
}

// Recall adds the places that machine records keep: those of nodes that are not registered, and those of leaving nodes that the
// stored environment does not have any more.
func Recall(e *environments.Environment, w machines.World) {
	if len(rollout.PolicyOf(e).Limits()) == 0 {
		return
	}
	for node, rec := range w.Records {
		_, registered := w.Hosts[node]
		_, known := e.RoleOf(node)
		if !known && w.Old != nil {
			_, known = w.Old.RoleOf(node)
		}
		if len(rec.Places) > 0 && !(registered && known) {
			w.Places[node] = rec.Places
		}
	}
}

// Yields reports whether a step may have to wait for other unavailable nodes: it makes a working node unavailable.
func (s Step) Yields() bool { return s.Verb == Retire || s.Verb == Replace }
