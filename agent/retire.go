package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/model"
)

// recall deletes a cancelled retirement, and answers a request that this agent does not support. It reports whether the
// state changed.
func (t *tick) recall() (changed bool) {
	r, known := t.observed.Asked(t.desired)
	if known && t.state.Retire != "" && (r == nil || r.Do != model.RequestRetire) {
		t.state.Retire, t.state.RanAt = "", time.Time{} // the hooks may have reverted a run: a new run is due
		changed = true
	}
	if r := t.observed.Unanswered(t.desired); r != nil && r.Unknown() != (model.Problem{}) {
		t.state.Settle(r.ID, r.Unknown())
		changed = true
	}
	return changed
}

// refuseUnconfirmed answers a request to retire that no administrator confirmed, and decides again. Only a tick that is
// about to retire reads the confirmation. It reports whether the state changed.
func (t *tick) refuseUnconfirmed(ctx context.Context) (refused bool, err error) {
	r := *t.desired.Host.Request
	if t.state.Retire == r.ID {
		return false, nil // confirmed before the hooks were interrupted
	}
	c, err := t.Control.Confirmation(ctx, t.Identity)
	switch {
	case err != nil && ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, model.ErrUnreachable):
		t.offline, t.desired = true, unreachable(err)
	case err != nil:
		t.desired = model.Desired{Unreadable: model.Prose(err.Error())}
	case c != nil && c.Confirms(r, t.MachineID):
		return false, nil
	default:
		t.Log.Warn("no administrator confirmed the request to retire: the node refuses it", "request", r.ID, "by", r.By)
		t.state.Settle(r.ID, model.Problem{Code: model.NotConfirmed})
		refused = true
	}
	t.decision = t.judge()
	return refused, nil
}

// confirm asks etcd whether the request still exists, and then records the retirement. From then on no run starts,
// whatever happens to etcd and to this agent.
func (t *tick) confirm(ctx context.Context) error {
	s := t.status()
	s.Phase = model.Running
	err := t.Control.Admit(ctx, t.Identity, t.desired, s)
	t.unreported = !errors.Is(err, model.ErrChanged)
	if errors.Is(err, model.ErrChanged) {
		t.note = "the desired state changed meanwhile; the next tick reads it again"
		return errEnd
	}
	if err != nil {
		t.offline = errors.Is(err, model.ErrUnreachable)
		return err
	}
	t.state.Retire = t.desired.Host.Request.ID
	return t.Memory.Save(t.state)
}

// retire runs the hooks of the release in place, and answers. If they were interrupted before the answer was on disk,
// they run again.
func (t *tick) retire(ctx context.Context) error {
	r := *t.desired.Host.Request
	problem := t.runHooks(ctx, r)
	if ctx.Err() != nil || errors.Is(problem, model.ErrUnreachable) { // without etcd, the answer cannot be reported
		t.offline = t.offline || errors.Is(problem, model.ErrUnreachable)
		return problem
	}
	var answer model.Problem
	if problem != nil {
		answer = model.Problem{Code: model.HookFailed, Text: model.Prose(problem.Error())}
	}
	t.state.Settle(r.ID, answer)
	t.settled = true
	if err := t.Memory.Save(t.state); err != nil {
		return err
	}
	t.note = "the node is retired and runs nothing"
	return problem
}

// runHooks runs the hooks of a complete tree that is protected from collection. It needs no live data: a missing
// generation must not prevent a retirement.
func (t *tick) runHooks(ctx context.Context, r model.Request) (err error) {
	has := t.decision.Target
	if has.IsZero() {
		return nil
	}
	t.staged, err = t.Content.Stage(ctx, t.Identity, model.Target{Release: has.Release, Tree: has.Tree}, Staging{})
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", has.Release, err)
	}
	t.Log.Info("running the retire hooks", "release", has.Release, "why", r.Why, "by", r.By)
	return t.Machine.Retire(ctx, model.Job{Identity: t.Identity, Target: has, Tree: t.staged.Tree}, r.Why)
}

// explainItself answers a request that the node does not execute, with the cause.
func (t *tick) explainItself() error {
	r := t.observed.Unanswered(t.desired)
	if r == nil || t.opts.Noop || t.opts.uncounted() || t.decision.Action != model.Nothing || t.state.Answer != nil && t.state.Answer.ID == r.ID {
		return nil
	}
	t.state.Answer = &model.Answer{ID: r.ID, Cause: t.decision.Clipped(model.MaxAnswer)}
	return t.Memory.Save(t.state)
}
