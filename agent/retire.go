package agent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// recall deletes a cancelled retirement, and answers a request that this agent does not support. It reports whether the
// state changed.
func (t *tick) recall() (changed bool) {
	r, told := t.observed.asked(t.desired)
	if told && t.state.Retire != "" && (r == nil || r.Do != RequestRetire) {
		t.state.Retire, t.state.RanAt = "", time.Time{} // the hooks may have reverted a run: a new run is due
		changed = true
	}
	if r := t.observed.unanswered(t.desired); r != nil && r.unknown() != (Problem{}) {
		t.state.settle(r.ID, r.unknown())
		changed = true
	}
	return changed
}

// confirm asks etcd whether the request still exists, and then records the retirement. From then on no run starts,
// whatever happens to etcd and to this agent.
func (t *tick) confirm(ctx context.Context) error {
	s := t.status()
	s.Phase = Running
	err := t.Control.Admit(ctx, t.Identity, t.desired, s)
	t.unreported = !errors.Is(err, ErrChanged)
	if errors.Is(err, ErrChanged) {
		t.note = "what etcd wants changed meanwhile; the next tick looks again"
		return errEnd
	}
	if err != nil {
		t.offline = errors.Is(err, ErrUnreachable)
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
	if ctx.Err() != nil || errors.Is(problem, ErrUnreachable) { // without etcd, the answer cannot be reported
		t.offline = t.offline || errors.Is(problem, ErrUnreachable)
		return problem
	}
	var answer Problem
	if problem != nil {
		answer = Problem{Code: HookFailed, Text: Prose(problem.Error())}
	}
	t.state.settle(r.ID, answer)
	t.settled = true
	if err := t.Memory.Save(t.state); err != nil {
		return err
	}
	t.note = "the node is retired and runs nothing"
	return problem
}

// runHooks runs the hooks of a complete tree that is protected from collection. It needs no live data: a missing
// generation must not prevent a retirement.
func (t *tick) runHooks(ctx context.Context, r Request) (err error) {
	has := t.decision.Target
	if has.IsZero() {
		return nil
	}
	t.staged, err = t.Content.Stage(ctx, t.Identity, Target{Release: has.Release, Tree: has.Tree}, Staging{})
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", has.Release, err)
	}
	t.Log.Info("running the retire hooks", "release", has.Release, "why", r.Why, "by", r.By)
	return t.Machine.Retire(ctx, Job{Identity: t.Identity, Target: has, Tree: t.staged.Tree}, r.Why)
}

// explainItself answers a request that the node does not execute, with the cause.
func (t *tick) explainItself() error {
	r := t.observed.unanswered(t.desired)
	if r == nil || t.opts.Noop || t.decision.Action != Nothing || t.state.Answer != nil && t.state.Answer.ID == r.ID {
		return nil
	}
	t.state.Answer = &Answer{ID: r.ID, Cause: t.decision.clipped(maxAnswer)}
	return t.Memory.Save(t.state)
}
