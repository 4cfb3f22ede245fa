package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/agent"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// reactLimit is how long nodes that react to others have to answer that they ran.
const reactLimit = 10 * time.Minute

// react asks the nodes that react to what came or went for a run, and waits a while for their answers. What does not answer
// is told, and no failure: these nodes run again by themselves.
func (e *engine) react(p plan.Plan) {
	if len(p.Reacting) == 0 || !e.changed() || e.over() != nil {
		return
	}
	j := &job{engine: e, step: plan.Step{Verb: plan.Keep}}
	asked := map[string]string{} // ids by node
	for _, node := range p.Reacting {
		q := agent.Request{ID: newID(), Do: agent.RequestRun, Why: "nodes that it reacts to came or went", By: e.a.By, At: e.a.Now().UTC()}
		if err := e.persist(node+"run", func(ctx context.Context) error { return e.a.Fleet.Ask(ctx, node, q) }); err != nil {
			e.remark(fmt.Sprintf("%s could not be asked for a run: %v", node, err))
			continue
		}
		asked[node] = q.ID
	}
	j.since = e.eyes.next()
	_ = j.await("react", e.a.Now().Add(reactLimit), func(s sight) (bool, string, error) {
		for node, id := range asked {
			a := s.World.Statuses[node].Answer
			if a == nil || a.ID != id {
				continue
			}
			delete(asked, node)
			if a.Failed() {
				e.remark(fmt.Sprintf("%s was asked for a run, and answered: %s", node, a.Sentence()))
			}
		}
		return len(asked) == 0, fmt.Sprintf("%d nodes have yet to run", len(asked)), nil
	})
	if len(asked) > 0 && e.over() == nil {
		var silent []string
		for node := range asked {
			silent = append(silent, node)
		}
		slices.Sort(silent)
		e.remark(fmt.Sprintf("asked for a run, and not answered within %s: %s", reactLimit, machines.Names(silent)))
	}
}

// changed reports whether a machine was made or ended.
func (e *engine) changed() bool {
	for i, s := range e.plan.Steps {
		if o, ok := e.outcome(i); ok && o.Err == nil && (s.Makes || s.Ends()) {
			return true
		}
	}
	return false
}

// putSpec stores the environment, unless it is stored already. That an environment is destroyed is nothing to store.
func (e *engine) putSpec(p plan.Plan) error {
	if !p.Changed {
		return nil
	}
	err := e.persist("spec", func(ctx context.Context) error {
		_, err := e.a.Fleet.PutSpec(ctx, p.Spec, p.Revision)
		if !errors.Is(err, machines.ErrChanged) {
			return err
		}
		// It may have been stored by a try whose answer was lost.
		if w, e := e.readWorld(ctx); e == nil && plan.SameSpec(w.Old, p.Spec) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot store environment %s: %w", p.Fleet, err)
	}
	return nil
}

// result puts together what was done, in the order of the plan.
func (e *engine) result() Result {
	r := Result{Notes: e.marks, Stopped: e.over(), Destroys: e.plan.Destroys}
	r.Interrupted = r.Stopped != nil && e.interrupted()
	for i, s := range e.plan.Steps {
		if partsOf(s) == nil {
			continue
		}
		o, ok := e.outcome(i)
		switch _, left := o.Err.(*leftError); { //nolint:errorlint // it is never wrapped
		case !ok && r.Stopped != nil:
			r.Left = append(r.Left, Outcome{Verb: s.Verb, Node: s.Node, Role: s.Role, Err: r.Stopped})
		case !ok:
		case left:
			r.Left = append(r.Left, o)
		case e.cutOff(o.Err):
			r.Cut = append(r.Cut, o)
		case o.Err != nil:
			r.Failed = append(r.Failed, o)
		default:
			r.Done = append(r.Done, o)
		}
	}
	return r
}
