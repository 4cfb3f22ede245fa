package agent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// recall forgets a retirement that was called off, and answers what this agent can't do. It says whether the state changed.
func (t *tick) recall() (changed bool) {
	r, told := t.observed.asked(t.desired)
	if told && t.state.Retire != "" && (r == nil || r.Do != RequestRetire) {
		t.state.Retire, t.state.RanAt = "", time.Time{} // its hooks may have undone what a run did: the next one is due
		changed = true
	}
	if r := t.observed.unanswered(t.desired); r != nil && r.unknown() != (Problem{}) {
		t.state.settle(r.ID, r.unknown())
		changed = true
	}
	return changed
}

// consent asks for leave to retire: the request has to stand. Then it is remembered, so that no run begins any more whatever
// becomes of etcd and of this agent.
func (t *tick) consent(ctx context.Context) error {
	s := t.status()
	s.Phase = Running
	err := t.Control.Admit(ctx, t.Identity, t.desired, s)
	t.untold = !errors.Is(err, ErrChanged)
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

// retire runs the hooks of the release that the node has, and answers. Hooks that were cut off before the answer was on disk
// are run again.
func (t *tick) retire(ctx context.Context) error {
	r := *t.desired.Host.Request
	problem := t.runHooks(ctx, r)
	if ctx.Err() != nil || errors.Is(problem, ErrUnreachable) { // without etcd nobody could be told either
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
	t.note = "it has retired, and runs nothing any more"
	return problem
}

// runHooks runs the hooks on a tree that is whole and that nobody collects meanwhile. Live data is not asked for: a generation
// that is gone must keep no node from leaving.
func (t *tick) runHooks(ctx context.Context, r Request) (err error) {
	has := t.decision.Target
	if has.IsZero() {
		return nil
	}
	t.staged, err = t.Content.Stage(ctx, t.Identity, Target{Release: has.Release, Tree: has.Tree}, Staging{})
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", has.Release, err)
	}
	t.Log.Info("retires", "release", has.Release, "why", r.Why, "by", r.By)
	return t.Machine.Retire(ctx, Job{Identity: t.Identity, Target: has, Tree: t.staged.Tree}, r.Why)
}

// explainItself answers a request that came to nothing with the reason.
func (t *tick) explainItself() error {
	r := t.observed.unanswered(t.desired)
	if r == nil || t.opts.Noop || t.decision.Action != Nothing || t.state.Answer != nil && t.state.Answer.ID == r.ID {
		return nil
	}
	t.state.Answer = &Answer{ID: r.ID, Cause: t.decision.clipped(maxAnswer)}
	return t.Memory.Save(t.state)
}
