package main

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"

	"pulley/agent"
	"pulley/agent/stage"
	"pulley/internal/content"
	"pulley/internal/failpoint"
	"pulley/internal/store"
	"pulley/internal/trust"
	"pulley/internal/upgrade"
)

// consider looks after a tick whether another version of the agent is wanted, and fetches and tests it. It does so only
// where there was nothing else to do: an agent never changes in one step with content.
func (u *upgrader) consider(ctx context.Context, report agent.Report) error {
	u.seen(report.Desired)
	quiet := report.Err == nil && report.Run == nil && !report.Unreachable && report.Decision.Reason == agent.ReasonUpToDate
	if !quiet || !report.Decision.Calm(report.Desired) {
		return nil
	}
	want := report.Desired.Agent
	s, err := u.folder.Load()
	if err != nil || s.Next(want, u.env.Now()) == upgrade.Stay && !u.folder.Untidy(s) {
		return err
	}
	lock, err := u.folder.Lock()
	if errors.Is(err, agent.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if s, err = u.folder.Load(); err != nil {
		return err
	}
	if s.Next(want, u.env.Now()) == upgrade.Forget {
		if s, err = u.forget(s, want); err != nil {
			return err
		}
	}
	if s.Next(want, u.env.Now()) != upgrade.Fetch {
		return u.folder.Tidy(s)
	}
	s, err = u.try(ctx, s, want)
	if err != nil {
		return err
	}
	if err := u.folder.Save(s); err != nil {
		return err
	}
	if s.Candidate != nil {
		failpoint.Here("upgrade:on-probation")
	}
	return u.folder.Tidy(s)
}

// seen notes what is wanted, after a version was taken back by hand.
func (u *upgrader) seen(d agent.Desired) {
	if d.Unreachable != "" || d.Unreadable != "" {
		return
	}
	s, err := u.folder.Load()
	if _, changes := s.Seen(d.Agent); err != nil || !changes {
		return
	}
	lock, err := u.folder.Lock()
	if err != nil {
		return // the next tick
	}
	defer lock.Close()
	if s, err = u.folder.Load(); err == nil {
		if s, changes := s.Seen(d.Agent); changes {
			err = u.folder.Save(s)
		}
	}
	if err != nil {
		u.log.Warn("what is wanted of the agent can't be noted", "err", err)
	}
}

func (u *upgrader) forget(s upgrade.State, want agent.AgentChoice) (upgrade.State, error) {
	s = s.Forgotten(want)
	return s, errors.Join(u.folder.Save(s), u.folder.Tidy(s))
}

// try fetches a version and tests it, and returns the state that follows. Its error means that nothing is known of it.
func (u *upgrader) try(ctx context.Context, s upgrade.State, want agent.AgentChoice) (upgrade.State, error) {
	parts, err := stage.Open(u.Config, u.env.Now, u.log)
	if err != nil {
		return s, err
	}
	defer parts.Close()
	p, there, err := u.find(ctx, parts, s, want)
	if err == nil && !there {
		err = u.folder.Place(p.SHA256, func(w io.Writer) error { return p.CopyTo(ctx, w, parts.Objects) })
	}
	program := upgrade.Program{Version: want.Version, Digest: p.SHA256}
	switch {
	case ctx.Err() != nil:
		return s, ctx.Err()
	case err != nil:
		why := problemOf(err)
		u.log.Warn("the wanted agent is not available", "version", want.Version, "code", why.Code, "why", why)
		return s.Wait(want, why, u.env.Now()), nil
	case there:
		return s.Found(program, want.Try, u.folder.File()), nil
	}
	err = u.selfTest(ctx, program)
	failpoint.Here("upgrade:tested")
	var failed *upgrade.FailedError
	var hindered *hinderedError
	switch {
	case err == nil:
		u.log.Info("the new agent is on probation", "version", want.Version)
		return s.Tested(program, want.Try, u.env.Now()), nil
	case errors.As(err, &failed):
		u.log.Error("the new agent is dropped", "version", want.Version, "code", failed.Problem.Code, "why", failed)
		return s.Drop(program, want.Try, failed.Problem, u.env.Now()), nil
	case errors.As(err, &hindered):
		u.log.Warn("the new agent can't be tested", "version", want.Version, "code", hindered.problem.Code, "why", hindered)
		return s.Wait(want, hindered.problem, u.env.Now()), nil
	}
	return s, err
}

// hinderedError is why a self-test shows nothing about the candidate.
type hinderedError struct{ problem agent.Problem }

func (e *hinderedError) Error() string { return e.problem.String() }

// problemError is an error that has a code.
type problemError struct{ agent.Problem }

func (e *problemError) Error() string { return e.Problem.String() }

// problemOf is the problem of an upgrade's error. Hints are for terminals.
func problemOf(err error) agent.Problem {
	var p *problemError
	if errors.As(err, &p) {
		return p.Problem
	}
	why, _, _ := strings.Cut(err.Error(), "\n")
	return agent.Problem{Code: agent.UpgradeUnavailable, Text: agent.Prose(why)}
}

// selfTest has a candidate test itself. What this agent can't do either is not the candidate's fault; and what ends in a
// plain error may be a coincidence, and is tried again. A crash and a hang are none.
func (u *upgrader) selfTest(ctx context.Context, p upgrade.Program) error {
	for try := 1; ; try++ {
		err := upgrade.SelfTest(ctx, u.command(p, "selftest"), u.proof().SelfTest)
		var failed *upgrade.FailedError
		var start *upgrade.StartError
		switch {
		case errors.As(err, &start):
			return &hinderedError{agent.Problem{Code: agent.UpgradeNotStarted, Text: agent.Prose(start.Err.Error())}}
		case !errors.As(err, &failed) || failed.Code == crashed:
			return err
		}
		if own := u.able(ctx, u.config); own != nil {
			why, _, _ := strings.Cut(own.Error(), "\n")
			return &hinderedError{agent.Problem{Code: agent.UpgradeSelfTestBoth, Text: agent.Prose(why)}}
		}
		if failed.Code < 0 || try == upgrade.SelfTests {
			return err
		}
		if err := wait(ctx, upgrade.TestAgain); err != nil {
			return err
		}
	}
}

// crashed is how Go's runtime ends a program that panics.
const crashed = 2

// find reads the record of a version and says which program of it is this machine's, and whether that is in place already.
// Its error says why this node does not take it.
func (u *upgrader) find(ctx context.Context, parts *stage.Content, s upgrade.State, want agent.AgentChoice) (p content.Program, there bool, err error) {
	r, err := parts.Store.Agent(ctx, want.Version)
	if err != nil {
		return p, false, err
	}
	platform := runtime.GOOS + "/" + runtime.GOARCH
	p, ok := r.Platforms[platform]
	if !ok {
		return p, false, &problemError{agent.Problem{Code: agent.UpgradeNoProgram, Text: agent.Prose(platform)}}
	}
	have, err := upgrade.Digest(u.folder.Installed)
	if err != nil || have == p.SHA256 {
		return p, true, err
	}
	own := u.ownVersion()
	if s.Installed != nil {
		own = s.Installed.Version
	}
	if _, err := store.ParseVersion(own); err == nil && store.CompareVersions(want.Version, own) < 0 && !want.Downgrade {
		return p, false, &problemError{agent.Problem{Code: agent.UpgradeOlder, Version: own}}
	}
	return p, false, u.authentic(parts, r)
}

// authentic says whether somebody who may has signed a version, as of now.
func (u *upgrader) authentic(parts *stage.Content, r store.SignedAgent) error {
	signers, _, err := parts.Verifier.Signers()
	if err == nil && signers != nil {
		_, err = signers.Verify(trust.Agent, u.Identity.Environment, r.Record, r.Signatures, u.env.Now())
	}
	if err != nil {
		why, _, _ := strings.Cut(err.Error(), "\n")
		return &problemError{agent.Problem{Code: agent.UpgradeRefused, Version: r.Version, Text: agent.Prose(why)}}
	}
	return nil
}

// stillSigned says whether what was signed when a candidate was fetched still is.
func (u *upgrader) stillSigned(ctx context.Context, p upgrade.Program) error {
	parts, err := stage.Open(u.Config, u.env.Now, u.log)
	if err != nil {
		return err
	}
	defer parts.Close()
	r, err := parts.Store.Agent(ctx, p.Version)
	if err != nil {
		return err
	}
	if published := r.Platforms[runtime.GOOS+"/"+runtime.GOARCH].SHA256; published != p.Digest {
		return &problemError{agent.Problem{Code: agent.UpgradeChanged}}
	}
	return u.authentic(parts, r)
}

// command is how a candidate is started with a verb and the flags of this process.
func (u *upgrader) command(p upgrade.Program, verb string, more ...string) upgrade.Command {
	args := append([]string{verb}, u.flags...)
	return upgrade.Command{
		Path: u.folder.Candidate(p.Digest), Args: append(args, more...), Stdout: u.env.Stdout, Stderr: u.env.Stderr, Log: u.log, Gentle: u.grace(),
	}
}
