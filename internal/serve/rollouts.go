package serve

import (
	"context"
	"errors"
	"fmt"

	"pulley/environments"
	"pulley/internal/rollout"
	"pulley/internal/rollout/control"
)

// rollouts advances the staged rollouts of all environments. It is not safe for concurrent use.
type rollouts struct {
	*Tasks
	controllers map[environments.Ref]*control.Controller
	waits       map[environments.Ref]string // what the log said last
}

// advance takes the next steps of each rollout. A failure of one environment does not stop the others.
func (r *rollouts) advance(ctx context.Context) error {
	refs, err := r.Store.Environments.Named(ctx)
	if err != nil {
		return err
	}
	var errs []error
	known := map[environments.Ref]bool{}
	for _, ref := range refs {
		known[ref] = true
		c := r.controllers[ref]
		if c == nil {
			c = &control.Controller{Store: r.Store, Ref: ref, Now: r.Now}
			r.controllers[ref] = c
		}
		wait, err := c.Advance(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("environment %s: %w", ref, err))
			continue
		}
		r.log(ref, wait)
	}
	for ref := range r.controllers {
		if !known[ref] {
			delete(r.controllers, ref)
			delete(r.waits, ref)
		}
	}
	return errors.Join(errs...)
}

// log writes what a rollout waits for when its kind changes.
func (r *rollouts) log(ref environments.Ref, wait rollout.Wait) {
	kind := string(wait.Code)
	if wait.Gate != nil {
		kind += string(wait.Gate.State)
	}
	if r.waits[ref] == kind {
		return
	}
	before := r.waits[ref]
	r.waits[ref] = kind
	switch {
	case kind == "" && before == "":
		return
	case kind == "":
		r.Log.Info("the rollout ended", "env", ref)
		return
	}
	r.Log.Info("a rollout waits", "env", ref, "for", wait.Sentence())
}
