package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/internal/cli"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
)

// Awaited are nodes of which somebody waits until they are converged.
type Awaited struct {
	Ref  model.Ref
	What string                      // what the wait completes, for its error: "the change of role compute"
	Has  func(FleetState, Node) bool // selects the nodes

	// Settled reports whether a converged node also has what the wait is for beside its target. It may be nil.
	Settled func(FleetState, Node) bool

	// Current returns an error if there is nothing left to wait for, because somebody changed the targets. It may be nil.
	Current func(targets.Desires) error
}

// AwaitHealth is the wait for the selected nodes of those that the environment calls for, registered or not. A node that the
// selection names is awaited in any case. An expression of the selection must have been evaluated: its nodes stay the same.
func AwaitHealth(ref model.Ref, sel Selection) Awaited {
	return Awaited{Ref: ref, What: "the wait for " + ref.String(), Has: func(f FleetState, n Node) bool {
		if f.Spec == nil || !sel.Has(n.Role, n.Node) {
			return false
		}
		_, called := f.Spec.RoleOf(n.Node)
		return called || slices.Contains(sel.Nodes, n.Node) || sel.matched[n.Node]
	}}
}

// Progress is how far the awaited nodes are.
type Progress struct {
	Converged int
	Open      []Node // may converge without an operator
	Blocked   []Node // failed at their target, held, silent, or not on the host list
}

// All returns the number of nodes.
func (p Progress) All() int { return p.Converged + len(p.Open) + len(p.Blocked) }

// Sentence renders the progress.
func (p Progress) Sentence() string {
	text := fmt.Sprintf("%d of %s converged", p.Converged, cli.Count(p.All(), "node"))
	if n := len(p.Blocked); n > 0 {
		text += fmt.Sprintf(", %d cannot", n)
	}
	return text
}

// ProgressOf judges the awaited nodes.
func (a Awaited) ProgressOf(f FleetState, now time.Time) (p Progress) {
	for _, n := range Look(f, a.Ref, Selection{}, now).Nodes {
		switch {
		case !a.Has(f, n):
		case n.State == model.Converged && (a.Settled == nil || a.Settled(f, n)):
			p.Converged++
		case n.blocked():
			p.Blocked = append(p.Blocked, n)
		default:
			p.Open = append(p.Open, n)
		}
	}
	return p
}

// blocked reports whether a node stays where it is without an operator. A node that failed at its target retries, and
// counts as blocked: nobody waits half an hour for a release that does not compile.
func (n Node) blocked() bool {
	switch n.State {
	case model.FailedState, model.Stuck:
		attempt := n.Params.Attempt
		return attempt == nil || attempt.Target == n.View.Wanted // else at its last target, before it tries this one
	case model.Held, model.Silent, model.Unregistered:
		return true
	}
	return false
}

// Times between two reads of a wait: the second is relative to the time that a read takes.
const (
	awaitPoll  = time.Second
	awaitPause = 5
)

// Await reads the fleet until no awaited node is left that may converge without an operator. It returns a
// *NotConvergedError if some did not converge then, or at the deadline. While etcd is unreachable it tries again until the
// deadline. It calls progress after each read, and returns the last progress.
func (a Awaited) Await(ctx context.Context, s *Fleet, limit time.Duration, now func() time.Time, progress func(Progress)) (p Progress, err error) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		began := time.Now()
		f, err := s.State(ctx, a.Ref)
		switch {
		case errors.Is(err, model.ErrUnreachable):
		case err != nil:
			return p, err
		default:
			if a.Current != nil {
				if err := a.Current(f.Desires); err != nil {
					return p, fmt.Errorf("cannot complete %s: %w", a.What, err)
				}
			}
			p = a.ProgressOf(f, now())
			progress(p)
			switch {
			case len(p.Open)+len(p.Blocked) == 0:
				return p, nil
			case len(p.Open) == 0:
				return p, &NotConvergedError{Awaited: a, Progress: p}
			}
		}
		pause := time.NewTimer(max(awaitPoll, awaitPause*time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return p, ctx.Err()
		case <-deadline.C:
			pause.Stop()
			if err != nil {
				return p, err
			}
			return p, &NotConvergedError{Awaited: a, Progress: p, After: limit}
		case <-pause.C:
		}
	}
}

// NotConvergedError is the result of a wait in which not all nodes converged.
type NotConvergedError struct {
	Awaited
	Progress
	After time.Duration // until the deadline; 0 if the wait ended before it
}

// ExitStatus is the exit code of the command that waited.
func (e *NotConvergedError) ExitStatus() int {
	if e.After > 0 {
		return cli.ExitTimeout
	}
	return cli.ExitDegraded
}

// maxReasons limits the nodes that an error names.
const maxReasons = 5

func (e *NotConvergedError) Error() string {
	var b strings.Builder
	left := append(append([]Node{}, e.Blocked...), e.Open...)
	fmt.Fprintf(&b, "cannot complete %s: %d of %s did not converge", e.What, len(left), cli.Count(e.All(), "node"))
	if e.After > 0 {
		fmt.Fprintf(&b, " within %s", cli.Duration(e.After))
	}
	for _, n := range left[:min(len(left), maxReasons)] {
		fmt.Fprintf(&b, "\n%s is %s: %s", n.Node, n.State, cli.Clean(n.View.Sentence()))
	}
	if more := len(left) - maxReasons; more > 0 {
		fmt.Fprintf(&b, "\nand %s; `pulley status -e %s` lists them", cli.Count(more, "more node"), e.Ref)
	} else {
		fmt.Fprintf(&b, "\n`pulley explain %s -e %s` shows what the node does next", left[0].Node, e.Ref)
	}
	return b.String()
}
