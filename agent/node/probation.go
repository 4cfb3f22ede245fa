package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pulley/agent"
	"pulley/agent/upgrade"
	"pulley/internal/desired/control"
	"pulley/internal/failpoint"
	"pulley/internal/model"
)

// probation lets the candidate run this tick, judges it, and acts on the result. This agent runs every tick that does
// more than enforce the target in place.
func (u *supervisor) probation(ctx context.Context) (Turned, error) {
	lock, err := u.folder.Lock()
	if errors.Is(err, agent.ErrLocked) {
		return Turned{Locked: true}, nil
	}
	if err != nil { // a full disk must not prevent ticks
		u.Log.Warn("cannot watch the new agent", "err", err)
		return u.tick(ctx, u.opts.Options)
	}
	defer lock.Close()
	s, err := u.folder.Load()
	if err != nil {
		u.Log.Warn("cannot watch the new agent", "err", err)
		return u.tick(ctx, u.opts.Options)
	}
	if s, done, err := u.folder.Finish(s); done || err != nil || s.Candidate == nil {
		if err != nil {
			u.Log.Warn("cannot finish the upgrade of the agent", "err", err)
		}
		return u.tick(ctx, u.opts.Options)
	}
	decision, desired, err := u.peek(ctx)
	switch {
	case errors.Is(err, agent.ErrLocked):
		return Turned{Locked: true}, nil
	case err != nil: // the tick returns the error
		return u.tick(ctx, u.opts.Options)
	}
	want := desired.WantedAgent()
	if known := desired.Unreachable == "" && desired.Unreadable == "" && !want.Unknown; known && want.Version != s.Candidate.Version {
		u.Log.Info("the desired agent changed", "version", want.Version, "before", s.Candidate.Version)
		if _, err := u.forget(s, want); err != nil {
			u.Log.Warn("cannot remove the agent that was on probation", "err", err)
		}
		return u.tick(ctx, u.opts.Options)
	}
	if !decision.Calm(desired) {
		return u.tick(ctx, u.opts.Options)
	}
	if have, err := upgrade.Digest(u.folder.Candidate(s.Candidate.Digest)); err != nil || have != s.Candidate.Digest {
		return u.drop(ctx, s, model.Problem{Code: model.UpgradeDamaged})
	}
	return u.watch(ctx, s, want)
}

// watch lets the candidate run the tick.
func (u *supervisor) watch(ctx context.Context, s upgrade.State, want model.AgentChoice) (Turned, error) {
	flags := append([]string{fmt.Sprintf("--supervised-by=%d", upgrade.Descriptor)}, u.opts.Run...)
	trial := upgrade.Watch(ctx, u.command(s.Candidate.Program, "run", flags...), u.proof())
	finding, why := upgrade.Judge(trial)
	done := Turned{Code: trial.Code}
	switch finding {
	case upgrade.Good:
		if why, reported := u.reported(ctx, s.Candidate.Program); !reported { // its own message is not a proof
			if why == (model.Problem{}) || u.testEtcd(ctx) != nil { // a full etcd rejects this agent's writes too
				return done, nil
			}
			return u.drop(ctx, s, why)
		}
		replaced, err := u.credit(ctx, s, want, trial.Ending.Puppet)
		if err != nil {
			u.Log.Error("cannot install the new agent, whose probation succeeded", "err", err)
			u.hinder(problemOf(err))
		}
		done.Replaced = replaced
	case upgrade.Reach:
		if u.testEtcd(ctx) == nil {
			why.Version = u.OwnVersion()
			u.doubt(s, why, false)
			return u.tick(ctx, u.opts.Options)
		}
	case upgrade.Compare:
		return u.compare(ctx, s, trial, why)
	case upgrade.Bad:
		return u.drop(ctx, s, why)
	case upgrade.Nothing:
		if trial.Err != nil {
			u.Log.Warn("cannot watch the new agent", "code", why.Code, "err", why)
			u.hinder(why)
			return u.tick(ctx, u.opts.Options)
		}
	}
	return done, nil
}

// hinder records why the candidate cannot be started or installed, for the node's next status.
func (u *supervisor) hinder(why model.Problem) {
	s, err := u.folder.Load()
	if err == nil && s.Candidate != nil {
		err = u.folder.Save(s.Hindered(why))
	}
	if err != nil {
		u.Log.Warn("cannot store the state of the upgrade", "err", err)
	}
}

// doubt records that a tick failed with the candidate and not with this agent. After too many in a row it drops the
// candidate.
func (u *supervisor) doubt(s upgrade.State, why model.Problem, puppet bool) {
	s, condemned := s.Doubt(why, puppet)
	if condemned {
		why.Times = s.Candidate.Doubts
		u.discard(s, why)
		return
	}
	u.Log.Warn("a tick of the new agent failed", "version", s.Candidate.Version, "code", why.Code, "why", why, "times", s.Candidate.Doubts, "of", upgrade.MaxDoubts)
	if err := u.folder.Save(s); err != nil {
		u.Log.Error("cannot store the state of the upgrade", "err", err)
	}
}

// credit counts a good tick. After enough of them, it installs the candidate, if etcd still wants it and its signature
// is still valid.
func (u *supervisor) credit(ctx context.Context, s upgrade.State, want model.AgentChoice, puppet bool) (replaced bool, err error) {
	s, verified := s.Credit(u.proof(), puppet, u.Now())
	if err := u.folder.Save(s); err != nil {
		return false, err
	}
	failpoint.Here("upgrade:credited")
	if !verified || want.Version != s.Candidate.Version {
		u.Log.Info("a tick of the new agent succeeded", "version", s.Candidate.Version, "ticks", s.Candidate.Good, "since", s.Candidate.Since)
		return false, nil
	}
	version := s.Candidate.Version
	switch err := u.stillSigned(ctx, s.Candidate.Program); {
	case errors.Is(err, model.ErrUnreachable) || ctx.Err() != nil:
		return false, err // retry in the next tick
	case err != nil:
		s.Candidate = nil
		s = s.Wait(want, problemOf(err), u.Now())
		return false, errors.Join(err, u.folder.Save(s), u.folder.Tidy(s))
	}
	if _, err := u.folder.TakeOver(s, u.OwnVersion(), u.Now()); err != nil {
		return false, err
	}
	u.Log.Info("the new agent is verified and in place", "version", version, "before", u.OwnVersion())
	return true, nil
}

// drop records that the candidate failed, and runs the tick with this agent.
func (u *supervisor) drop(ctx context.Context, s upgrade.State, why model.Problem) (Turned, error) {
	u.discard(s, why)
	return u.tick(ctx, u.opts.Options)
}

func (u *supervisor) discard(s upgrade.State, why model.Problem) {
	u.Log.Error("the new agent is dropped", "version", s.Candidate.Version, "code", why.Code, "why", why)
	s = s.Drop(s.Candidate.Program, s.Candidate.Choice(), why, u.Now())
	if err := errors.Join(u.folder.Save(s), u.folder.Tidy(s)); err != nil {
		u.Log.Error("cannot store the state of the upgrade", "err", err)
	}
}

// compare repeats a failed tick with this agent. If it succeeds, the candidate is at fault; otherwise the release or
// the machine is. It repeats a failed Puppet run immediately, without the wait before a retry.
func (u *supervisor) compare(ctx context.Context, s upgrade.State, trial upgrade.Trial, why model.Problem) (Turned, error) {
	again := u.opts.Options
	again.Force = trial.Ending.Failed
	t, err := u.tick(ctx, again)
	if t.Report == nil {
		return t, err
	}
	fine := t.Report.Err == nil && !t.Report.Unreachable && (t.Report.Run == nil || t.Report.Run.Outcome != model.Failed)
	if fine {
		why.Version = u.OwnVersion()
		u.doubt(s, why, trial.Ending.Failed)
	}
	return t, err
}

// peek returns the decision of a tick without running the tick.
func (u *supervisor) peek(ctx context.Context) (model.Decision, model.Desired, error) {
	n, err := u.Open(ctx)
	if err != nil {
		return model.Decision{}, model.Desired{}, err
	}
	decision, desired, err := n.agent.Peek(ctx)
	return decision, desired, errors.Join(err, n.Close())
}

// reported reports whether etcd has a status of this node from the candidate. If etcd does not answer, it returns no
// problem.
func (u *supervisor) reported(ctx context.Context, p upgrade.Program) (why model.Problem, ok bool) {
	s, err := control.Open(u.Store)
	if err != nil {
		return model.Problem{}, false
	}
	defer s.Close()
	st, found, err := s.Node.Status(ctx, u.Identity)
	switch {
	case err != nil:
		return model.Problem{}, false
	case !found:
		return model.Problem{Code: model.UpgradeNoReport}, false
	case strings.TrimPrefix(st.Version, "v") != p.Version:
		return model.Problem{Code: model.UpgradeNoReport, Version: st.Version}, false
	}
	return model.Problem{}, true
}
