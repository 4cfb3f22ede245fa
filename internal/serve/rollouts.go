package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/rollout"
	"pulley/internal/rollout/gates"
	"pulley/internal/rollout/journal"
	"pulley/internal/serve/control"
	"pulley/internal/specs"
)

// rollouts advances the staged rollouts of all environments. It is not safe for concurrent use.
type rollouts struct {
	*Tasks
	controllers map[model.Ref]*control.Controller
	waits       map[model.Ref]told            // what was logged and sent last
	told        map[model.Ref]map[string]bool // lost nodes and blocking gates that were logged and sent
}

// told is a wait of a campaign. The wait is "" when none is in progress.
type told struct{ id, nonce, wait string }

// advance takes the next steps of each rollout. A failure of one environment does not stop the others.
func (r *rollouts) advance(ctx context.Context) error {
	refs, err := specs.In(r.DB).Named(ctx)
	if err != nil {
		return err
	}
	var errs []error
	known := map[model.Ref]bool{}
	for _, ref := range refs {
		known[ref] = true
		c := r.controllers[ref]
		if c == nil {
			c = &control.Controller{DB: r.DB, Ref: ref, Now: r.Now, Ask: func(ctx context.Context, p rollout.Plan, names []string) map[string]rollout.Answer {
				return gates.Ask(ctx, r.Gates, names, gates.About{Environment: ref.String(), Rollout: p.ID, Target: p.Target}, r.Now)
			}}
			r.controllers[ref] = c
		}
		if rewound, err := r.rewound(ctx, ref); err != nil || rewound {
			errs = append(errs, err)
			continue
		}
		wait, err := c.Advance(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("environment %s: %w", ref, err))
			continue
		}
		r.board.showRollout(ref.String(), c.Last(), wait)
		r.tell(ctx, ref, c.Last(), wait)
		r.warn(ref, c.Last(), wait)
	}
	for ref := range r.controllers {
		if !known[ref] {
			delete(r.controllers, ref)
			delete(r.waits, ref)
			delete(r.told, ref)
		}
	}
	return errors.Join(errs...)
}

// tell logs and sends what changed about the rollout of an environment.
func (r *rollouts) tell(ctx context.Context, ref model.Ref, plan *rollout.Plan, wait rollout.Wait) {
	if plan == nil {
		return
	}
	kind := string(wait.Code)
	switch {
	case wait.Code == rollout.WaitApproval:
		kind += " " + wait.Node // each batch needs its own
	case wait.Gate != nil:
		kind += " " + string(wait.Gate.State) + " " + wait.Gate.At.UTC().Format(time.RFC3339)
	}
	before, now := r.waits[ref], told{plan.ID, plan.Nonce, kind}
	if before == now {
		return
	}
	r.waits[ref] = now
	if before.wait != "" && (kind == "" || before.nonce != plan.Nonce) { // the next one may have begun since
		r.tellEnd(ctx, ref, before)
	} else if kind == "" {
		r.tellEnd(ctx, ref, now)
	}
	if kind == "" {
		return
	}
	r.Log.Info("a rollout or job waits", "env", ref, "rollout", plan.ID, "for", wait.Sentence())
	switch wait.Code {
	case rollout.WaitGate:
		r.Notifier.Rollout(ref, notify.RolloutPaused, plan, kind, wait.Sentence())
	case rollout.WaitApproval:
		r.Notifier.Rollout(ref, notify.RolloutWaits, plan, wait.Node, wait.Sentence())
	}
}

// tellEnd logs and sends how a rollout or a job ended.
func (r *rollouts) tellEnd(ctx context.Context, ref model.Ref, of told) {
	c, err := journal.In(r.DB).Get(ctx, ref, of.id, nil)
	if err != nil {
		r.Log.Warn("cannot read a rollout that ended", "env", ref, "rollout", of.id, "error", err)
		return
	}
	if c.Plan.Nonce != of.nonce {
		return // it ended with its environment, which was made again
	}
	how := "an operator's change replaced it"
	switch c.State.Phase {
	case rollout.Completed:
		how = "it completed"
	case rollout.Reverted:
		how = "it was taken back"
	case rollout.Failed:
		how = "it stopped by itself, and the rest of its nodes did not run"
	case rollout.Aborted:
		how = "an operator ended it"
	case rollout.Gone:
		how = "no serve advanced it, and its nodes continued by themselves"
	}
	what := "took " + model.What(c.Plan.Target, c.Plan.Agent.Version)
	if c.Plan.Kind == rollout.Run {
		what = "ran"
	}
	text := fmt.Sprintf("%s: %d of %d nodes %s, %d failed", how, c.State.Done, c.State.Nodes(c.Plan), what, len(c.State.Failed))
	r.Log.Info("a rollout or job ended", "env", ref, "rollout", of.id, "how", text)
	r.Notifier.Rollout(ref, notify.RolloutEnded, &c.Plan, "", text)
}

// warn logs and sends at once that a node was lost, or waits for an operator, and that a gate blocks: a rollout may wait for hours before either pauses it.
func (r *rollouts) warn(ref model.Ref, plan *rollout.Plan, wait rollout.Wait) {
	before, now := r.told[ref], map[string]bool{}
	r.told[ref] = now
	if plan == nil {
		return
	}
	for _, node := range wait.Lost {
		if now["node "+node] = true; !before["node "+node] {
			r.Log.Warn("a rollout or job lost a node", "env", ref, "rollout", plan.ID, "node", node)
			r.Notifier.Rollout(ref, notify.RolloutLost, plan, node, node+" began, did not answer before its deadline, and may still run")
		}
	}
	for _, node := range wait.Overdue {
		text := node + " is held beyond its deadline, and the rollout waits for it until an operator ends the hold or skips it"
		if wait.Code == rollout.WaitPlace && node == wait.Node {
			text = wait.Sentence()
		}
		if now["overdue "+node] = true; !before["overdue "+node] {
			r.Log.Warn("a rollout or job waits for an operator", "env", ref, "rollout", plan.ID, "node", node, "why", text)
			r.Notifier.Rollout(ref, notify.RolloutStalls, plan, node, text)
		}
	}
	blocking := wait.Blocking()
	if len(blocking) == 0 {
		return
	}
	question := wait.Until.UTC().Format(time.RFC3339) // each one has its own end
	for _, gate := range blocking {
		if now[question+gate] = true; !before[question+gate] {
			r.Log.Warn("a gate blocks a rollout", "env", ref, "rollout", plan.ID, "gate", gate)
			r.Notifier.Rollout(ref, notify.RolloutBlocks, plan, question+gate, wait.Sentence())
		}
	}
}
