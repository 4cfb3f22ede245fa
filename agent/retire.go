package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/clip"
)

// recall deletes a cancelled retirement, and answers a request that this agent does not support. It reports whether the
// state changed.
func (t *tick) recall() (changed bool) {
	r, known := t.observed.asked(t.desired)
	if known && t.state.Retire != "" && (r == nil || r.Do != RequestRetire) {
		t.state.Retire, t.state.RanAt = "", time.Time{} // the hooks may have reverted a run: a new run is due
		changed = true
	}
	if r := t.observed.unanswered(t.desired); r != nil && r.unknown() != (Problem{}) {
		t.state.settle(r.ID, r.unknown())
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
	case errors.Is(err, ErrUnreachable):
		t.offline, t.desired = true, unreachable(err)
	case err != nil:
		t.desired = Desired{Unreadable: Prose(err.Error())}
	case c != nil && c.Confirms(r, t.MachineID):
		return false, nil
	default:
		t.Log.Warn("no administrator confirmed the request to retire: the node refuses it", "request", r.ID, "by", r.By)
		t.state.settle(r.ID, Problem{Code: NotConfirmed})
		refused = true
	}
	t.decision = t.judge()
	return refused, nil
}

// confirm asks etcd whether the request still exists, and then records the retirement. From then on no run starts,
// whatever happens to etcd and to this agent.
func (t *tick) confirm(ctx context.Context) error {
	s := t.status()
	s.Phase = Running
	err := t.Control.Admit(ctx, t.Identity, t.desired, s)
	t.unreported = !errors.Is(err, ErrChanged)
	if errors.Is(err, ErrChanged) {
		t.note = "the desired state changed meanwhile; the next tick reads it again"
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
	if r == nil || t.opts.Noop || t.opts.uncounted() || t.decision.Action != Nothing || t.state.Answer != nil && t.state.Answer.ID == r.ID {
		return nil
	}
	t.state.Answer = &Answer{ID: r.ID, Cause: t.decision.clipped(maxAnswer)}
	return t.Memory.Save(t.state)
}

// Limits of requests and answers.
const (
	maxAnswer    = 200 // bytes of an answer's text
	maxRequestID = 64  // a longer id does not fit into the answer: the request is ignored
)

// known reports whether etcd gave a readable answer.
func (d Desired) known() bool { return d.Unreachable == "" && d.Unreadable == "" }

// asked returns the request to this machine, or nil. known is false when the request is unknown: etcd does not answer,
// or it contains no entry of this machine.
func (o Observed) asked(d Desired) (r *Request, known bool) {
	if !d.known() || d.Host == nil || anotherMachine(d.Host, o.Machine) {
		return nil, false
	}
	if r := d.Host.Request; r != nil && r.ID != "" && len(r.ID) <= maxRequestID {
		return r, true
	}
	return nil, true
}

// unanswered returns the request that the node has not answered yet, or nil.
func (o Observed) unanswered(d Desired) *Request {
	if r, _ := o.asked(d); r != nil && (o.State.Answer == nil || o.State.Answer.ID != r.ID) {
		return r
	}
	return nil
}

// pending returns the unanswered request of this kind, or nil.
func (o Observed) pending(d Desired, kind RequestKind) *Request {
	if r := o.unanswered(d); r != nil && r.Do == kind {
		return r
	}
	return nil
}

// retire asks the questions of a retirement, and reports whether the node retires. They precede holds, because an
// operator holds a node before its retirement. They precede Puppet's locks, because hooks are not Puppet.
//
// A retirement that began stays in force while etcd does not answer about this machine. Only a host list that contains
// this machine without a request to retire cancels it. An answer that the node could not start means that the
// retirement did not start.
func (l *ladder) retire() bool {
	r, known := l.o.asked(l.d)
	requested := known && r != nil && r.Do == RequestRetire
	switch {
	case requested && l.o.State.Retire == "" && l.o.pending(l.d, RequestRetire) == nil:
		l.pass(AskRetiring, Cause{Params: Params{Problem: l.o.State.Answer.Failure()}})
		return false
	case requested:
		l.fail(AskRetiring, Cause{ReasonRetire, Params{Request: r}})
	case !known && l.o.State.Retire != "":
		l.fail(AskRetiring, Cause{Reason: ReasonRetired})
	default:
		l.pass(AskRetiring, Cause{})
		return false
	}
	switch {
	case !known:
		l.stop(AskHooks, Cause{Reason: ReasonRetired})
	case l.o.pending(l.d, RequestRetire) == nil:
		l.stop(AskHooks, Cause{ReasonRetired, Params{Problem: l.o.State.Answer.Failure()}})
	case l.o.Noop || l.o.Partial:
		l.stop(AskHooks, Cause{ReasonRetire, Params{Request: r}})
	default:
		l.pass(AskHooks, Cause{Reason: ReasonRetire})
		l.end(Retire, Cause{ReasonRetire, Params{Request: r}}, l.o.State.has())
	}
	return true
}

// Failure returns why the node did not do the requested work; nil means success.
func (a *Answer) Failure() *Problem {
	if a == nil || !a.Failed() {
		return nil
	}
	p := a.Problem
	if a.Cause != nil {
		p = Problem{Code: NotStarted, Text: Prose(a.Cause.Sentence())}
	}
	return &p
}

// Retirement is the progress of a node's retirement, by the node's own state.
type Retirement string

// The phases of a retirement. An empty one means none.
const (
	RetireBegun Retirement = "hooks_begun"
	RetireDone  Retirement = "retired"
)

// Retirement returns the progress of this node's retirement.
func (s *State) Retirement() Retirement {
	switch {
	case s.Retire == "":
		return ""
	case s.Answer == nil || s.Answer.ID != s.Retire:
		return RetireBegun
	}
	return RetireDone
}

// has returns the release that this node has: the last good one, else the one that is partly applied.
func (s *State) has() Target {
	if s.LastGood.IsZero() {
		return s.Enforcing
	}
	return s.LastGood
}

// settle records the result of a request. A node whose retirement is confirmed retires, whatever the answer is.
func (s *State) settle(id string, p Problem) {
	s.Answer = &Answer{ID: id, Problem: p.clipped(maxAnswer)}
}

// unknown returns the problem of a request that this agent does not support, or zero.
func (r *Request) unknown() Problem {
	if r.Do == RequestRun || r.Do == RequestNoop || r.Do == RequestRetire {
		return Problem{}
	}
	return Problem{Code: UnknownRequest, Text: Prose(clip.Text(string(r.Do), maxRequestID))}
}
