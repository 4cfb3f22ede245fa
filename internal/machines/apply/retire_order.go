package apply

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// retireAll retires the nodes that nobody wants any more: the last layer first, and within it in the plan's order. A layer
// waits until those that came after it are gone.
func (e *engine) retireAll(p plan.Plan) {
	var steps []int
	for i, s := range p.Steps {
		if s.Ends() {
			steps = append(steps, i)
		}
	}
	left := func(steps []int, why error) {
		for _, i := range steps {
			s := p.Steps[i]
			e.remember(i, Outcome{Verb: s.Verb, Node: s.Node, Role: s.Role, Err: &leftError{why}})
		}
	}
	spoilt := e.spoilt()
	steps = slices.DeleteFunc(steps, func(i int) bool {
		node := spoilt.by(p, p.Steps[i].Role)
		if node != "" {
			left([]int{i}, fmt.Errorf("nothing is retired before what is made is well, and %s failed", node))
		}
		return node != ""
	})
	slices.SortStableFunc(steps, func(i, k int) int { return p.Steps[k].Layer - p.Steps[i].Layer })
	for len(steps) > 0 {
		layer := p.Steps[steps[0]].Layer
		n := slices.IndexFunc(steps, func(i int) bool { return p.Steps[i].Layer != layer })
		if n < 0 {
			n = len(steps)
		}
		if !e.all(steps[:n]) {
			left(steps[n:], errors.New("they are retired after others, of which not all could be"))
			return
		}
		steps = steps[n:]
	}
}

// spoils are the roles in which more could not be made than rollout.failures puts up with, each with a node of it. A quota
// does not count: retiring others may mend that.
type spoils map[string]string

func (e *engine) spoilt() spoils {
	all, failed := spoils{}, map[string]int{}
	for i, s := range e.plan.Steps {
		o, ok := e.outcome(i)
		if !ok || o.Err == nil || s.Verb == plan.Duplicate || errors.Is(o.Err, machines.ErrQuota) || errors.As(o.Err, new(*leftError)) {
			continue
		}
		r, _ := e.plan.Spec.Role(s.Role)
		if failed[s.Role]++; failed[s.Role] > r.Rollout.FailuresOf(r.Cardinality) {
			all[s.Role] = s.Node
		}
	}
	return all
}

// by names the node for which nothing of a role is retired: one of the same role, or of one that comes after it or before it.
// A role that the file does not have any more may have any other in its place.
func (s spoils) by(p plan.Plan, role string) string {
	_, stays := p.Spec.Role(role)
	behind := comesAfter(p.Spec, role)
	for _, other := range slices.Sorted(maps.Keys(s)) {
		if !stays || other == role || behind[other] || comesAfter(p.Spec, other)[role] {
			return s[other]
		}
	}
	return ""
}

// leftError is why a step was not begun.
type leftError struct{ why error }

func (e *leftError) Error() string { return e.why.Error() }
