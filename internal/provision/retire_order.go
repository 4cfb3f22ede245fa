package provision

import (
	"errors"
	"fmt"
	"slices"
)

// ends reports whether nothing is left of the node when the step is done.
func (s Step) ends() bool {
	return !s.Makes && (s.Verb == Retire || s.Verb == Broken || s.Verb == Orphan || s.Verb == Replace)
}

// retireAll retires the nodes that nobody wants any more: the last layer first, and within it in the plan's order. A layer
// waits until those that came after it are gone.
func (e *engine) retireAll(p Plan) {
	var steps []int
	for i, s := range p.Steps {
		if s.ends() {
			steps = append(steps, i)
		}
	}
	left := func(steps []int, why error) {
		for _, i := range steps {
			s := p.Steps[i]
			e.remember(i, Outcome{Verb: s.Verb, Node: s.Node, Role: s.Role, Err: &leftError{why}})
		}
	}
	if node := e.spoilt(); node != "" {
		left(steps, fmt.Errorf("nothing is retired before what is made is well, and %s failed", node))
		return
	}
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

// spoilt names a node that could not be made for another reason than a quota, which retiring others may mend.
func (e *engine) spoilt() string {
	for i, s := range e.plan.Steps {
		if o, ok := e.outcome(i); ok && o.Err != nil && s.Verb != Duplicate && !errors.Is(o.Err, ErrQuota) && !errors.As(o.Err, new(*leftError)) {
			return s.Node
		}
	}
	return ""
}

// leftError is why a step was not begun.
type leftError struct{ why error }

func (e *leftError) Error() string { return e.why.Error() }

// names joins the first few of some names.
func names(all []string) string {
	const most = 5
	text := ""
	for i, n := range all {
		switch {
		case i == most:
			return fmt.Sprintf("%s and %d more", text, len(all)-most)
		case i > 0:
			text += ", "
		}
		text += n
	}
	return text
}
