package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pulley/agent"
	"pulley/internal/cli"
	"pulley/internal/failpoint"
	"pulley/internal/store"
	"pulley/internal/upgrade"
)

// probation has the candidate do this tick, judges it, and goes on as that demands. Ticks that concern more than what is
// in place are done by this agent.
func (u *upgrader) probation(ctx context.Context, r runOptions) (replaced bool, err error) {
	own := func() (bool, error) {
		_, err := u.ownTick(ctx, u.config, r)
		return false, err
	}
	lock, err := u.folder.Lock()
	if errors.Is(err, agent.ErrLocked) {
		u.busy(u.config)
		return false, nil
	}
	if err != nil { // a disk that is full must not keep the node from its ticks
		u.log.Warn("the new agent can't be watched", "err", err)
		return own()
	}
	defer lock.Close()
	s, err := u.folder.Load()
	if err != nil {
		u.log.Warn("the new agent can't be watched", "err", err)
		return own()
	}
	if s, done, err := u.folder.Finish(s); done || err != nil || s.Candidate == nil {
		if err != nil {
			u.log.Warn("the agent's upgrade can't be finished", "err", err)
		}
		return own()
	}
	decision, desired, err := u.peek(ctx)
	switch {
	case errors.Is(err, agent.ErrLocked):
		u.busy(u.config)
		return false, nil
	case err != nil: // the tick says it better
		return own()
	}
	if known := desired.Unreachable == "" && desired.Unreadable == "" && !desired.Agent.Unknown; known && desired.Agent.Version != s.Candidate.Version {
		u.log.Info("another agent is wanted by now", "version", desired.Agent.Version, "before", s.Candidate.Version)
		if _, err := u.forget(s, desired.Agent); err != nil {
			u.log.Warn("the agent that was on probation can't be removed", "err", err)
		}
		return own()
	}
	if !decision.Calm(desired) {
		return own()
	}
	if have, err := upgrade.Digest(u.folder.Candidate(s.Candidate.Digest)); err != nil || have != s.Candidate.Digest {
		return u.drop(ctx, s, r, agent.Problem{Code: agent.UpgradeDamaged})
	}
	return u.watch(ctx, s, desired.Agent, r)
}

// watch has the candidate do the tick.
func (u *upgrader) watch(ctx context.Context, s upgrade.State, want agent.AgentChoice, r runOptions) (replaced bool, err error) {
	more := []string{fmt.Sprintf("--supervised-by=%d", upgrade.Descriptor)}
	if r.detailed {
		more = append(more, "--detailed-exitcodes")
	}
	trial := upgrade.Watch(ctx, u.command(s.Candidate.Program, "run", more...), u.proof())
	finding, why := upgrade.Judge(trial)
	switch finding {
	case upgrade.Good:
		if why, told := u.told(ctx, s.Candidate.Program); !told { // what it said is not all
			if why == (agent.Problem{}) || u.testEtcd(ctx) != nil { // an etcd that is full takes nothing from this agent either
				return false, silently(trial.Code)
			}
			return u.drop(ctx, s, r, why)
		}
		replaced, err = u.credit(ctx, s, want, trial.Ending.Puppet)
		if err != nil {
			u.log.Error("the new agent did well and can't be put in place", "err", err)
		}
		return replaced, silently(trial.Code)
	case upgrade.Reach:
		if u.testEtcd(ctx) == nil {
			why.Version = u.ownVersion()
			u.doubt(s, why, false)
			_, err := u.ownTick(ctx, u.config, r)
			return false, err
		}
	case upgrade.Compare:
		return false, u.compare(ctx, s, r, trial, why)
	case upgrade.Bad:
		return u.drop(ctx, s, r, why)
	case upgrade.Nothing:
		if trial.Err != nil {
			u.log.Warn("the new agent can't be watched", "err", why)
			if err := u.folder.Save(s.Hindered(why)); err != nil {
				u.log.Warn("why the new agent can't be watched can't be remembered", "err", err)
			}
			_, err := u.ownTick(ctx, u.config, r)
			return false, err
		}
	}
	return false, silently(trial.Code)
}

// doubt remembers that a tick failed with the candidate and not with this agent, and drops it after too many in a row.
func (u *upgrader) doubt(s upgrade.State, why agent.Problem, puppet bool) {
	s, condemned := s.Doubt(why, puppet)
	if condemned {
		why.Times = s.Candidate.Doubts
		u.discard(s, why)
		return
	}
	u.log.Warn("the new agent is in doubt", "version", s.Candidate.Version, "why", why, "times", s.Candidate.Doubts, "of", upgrade.MaxDoubts)
	if err := u.folder.Save(s); err != nil {
		u.log.Error("that it is in doubt can't be remembered", "err", err)
	}
}

// credit counts a good tick; after enough of them the candidate is put in place, if it is still what etcd wants and still
// signed by somebody who may.
func (u *upgrader) credit(ctx context.Context, s upgrade.State, want agent.AgentChoice, puppet bool) (replaced bool, err error) {
	s, proven := s.Credit(u.proof(), puppet, u.env.Now())
	if err := u.folder.Save(s); err != nil {
		return false, err
	}
	failpoint.Here("upgrade:credited")
	if !proven || want.Version != s.Candidate.Version {
		u.log.Info("the new agent did a tick well", "version", s.Candidate.Version, "ticks", s.Candidate.Good, "since", s.Candidate.Since)
		return false, nil
	}
	version := s.Candidate.Version
	switch err := u.stillSigned(ctx, s.Candidate.Program); {
	case errors.Is(err, agent.ErrUnreachable) || ctx.Err() != nil:
		return false, err // the next tick
	case err != nil:
		s.Candidate = nil
		s = s.Wait(want, problemOf(err), u.env.Now())
		return false, errors.Join(err, u.folder.Save(s), u.folder.Tidy(s))
	}
	if _, err := u.folder.TakeOver(s, u.ownVersion(), u.env.Now()); err != nil {
		return false, err
	}
	u.log.Info("the new agent has proven itself and is in place", "version", version, "before", u.ownVersion())
	return true, nil
}

// drop remembers that the candidate is no good, and does the tick with this agent.
func (u *upgrader) drop(ctx context.Context, s upgrade.State, r runOptions, why agent.Problem) (replaced bool, err error) {
	u.discard(s, why)
	_, err = u.ownTick(ctx, u.config, r)
	return false, err
}

func (u *upgrader) discard(s upgrade.State, why agent.Problem) {
	u.log.Error("the new agent is dropped", "version", s.Candidate.Version, "why", why)
	s = s.Drop(s.Candidate.Program, s.Candidate.Try, why, u.env.Now())
	if err := errors.Join(u.folder.Save(s), u.folder.Tidy(s)); err != nil {
		u.log.Error("that it is dropped can't be remembered", "err", err)
	}
}

// compare does a tick that failed once more with this agent. Where that succeeds the candidate is at fault; else the
// release is, or the machine. A run of Puppet that failed would have to wait before the next: it is done at once.
func (u *upgrader) compare(ctx context.Context, s upgrade.State, r runOptions, trial upgrade.Trial, why agent.Problem) error {
	again := r
	again.Force = trial.Ending.Failed
	report, err := u.ownTick(ctx, u.config, again)
	if report == nil {
		return err
	}
	fine := report.Err == nil && !report.Unreachable && (report.Run == nil || report.Run.Outcome != agent.Failed)
	if fine {
		why.Version = u.ownVersion()
		u.doubt(s, why, trial.Ending.Failed)
	}
	return err
}

// peek decides what a tick would do, without doing it.
func (u *upgrader) peek(ctx context.Context) (agent.Decision, agent.Desired, error) {
	n, err := u.open(ctx, u.env.Version, u.env.Now, u.log)
	if err != nil {
		return agent.Decision{}, agent.Desired{}, err
	}
	decision, desired, err := n.agent.Peek(ctx)
	return decision, desired, errors.Join(err, n.close())
}

// told says whether etcd has heard of this node from the candidate: one that says that it reported, and did not, is mute.
// Without an answer from etcd nobody knows, and there is no why.
func (u *upgrader) told(ctx context.Context, p upgrade.Program) (why agent.Problem, told bool) {
	s, err := store.Open(u.config.Store)
	if err != nil {
		return agent.Problem{}, false
	}
	defer s.Close()
	st, ok, err := s.Said(ctx, u.Identity)
	switch {
	case err != nil:
		return agent.Problem{}, false
	case !ok:
		return agent.Problem{Code: agent.UpgradeNoReport}, false
	case strings.TrimPrefix(st.Version, "v") != p.Version:
		return agent.Problem{Code: agent.UpgradeNoReport, Version: st.Version}, false
	}
	return agent.Problem{}, true
}

func silently(code int) error {
	if code == cli.ExitDone {
		return nil
	}
	return &cli.SilentError{Code: code}
}
