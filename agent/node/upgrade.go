package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"pulley/agent"
	"pulley/agent/stage"
	"pulley/agent/upgrade"
	"pulley/internal/child"
	"pulley/internal/desired/control"
	"pulley/internal/failpoint"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
)

// TurnOptions are the options of one turn.
type TurnOptions struct {
	agent.Options
	Flags []string // of this process, for a new agent that runs the tick
	Run   []string // of the verb run, likewise
}

// Turned is the result of a turn.
type Turned struct {
	Report   *agent.Report // of this agent's own tick; nil: it ran none
	Locked   bool          // another run is in progress
	Code     int           // exit code of the new agent, if it ran the tick
	Replaced bool          // another program was installed
}

// Turn runs a tick: by this agent, or by a newer one on probation that this agent watches. After a tick without work,
// it fetches and tests the wanted version.
func (s Setup) Turn(ctx context.Context, opts TurnOptions) (Turned, error) {
	u := &supervisor{Setup: s, opts: opts, folder: s.UpgradeFolder()}
	if opts.Force || opts.Noop || opts.Partial() || !s.installed() { // started by a person, or this program is not the installed one
		return u.tick(ctx, opts.Options)
	}
	state, err := u.folder.Load()
	if err != nil {
		s.Log.Warn("cannot upgrade the agent", "err", err)
		return u.tick(ctx, opts.Options)
	}
	if state.Candidate != nil {
		return u.probation(ctx)
	}
	t, err := u.tick(ctx, opts.Options)
	if t.Report != nil {
		if err := u.consider(ctx, *t.Report); err != nil {
			s.Log.Warn("cannot upgrade the agent", "err", err)
		}
	}
	return t, err
}

// EndingOf returns the message about a tick from a new agent to the agent that watches it.
func EndingOf(r agent.Report) upgrade.Ending {
	e := upgrade.Ending{Puppet: r.Puppet, Unreachable: r.Unreachable, Failed: r.Run != nil && r.Run.Outcome == model.Failed}
	if r.Err != nil {
		e.Problem = model.Prose(r.Err.Error())
	}
	return e
}

// supervisor replaces this node's agent.
type supervisor struct {
	Setup
	opts   TurnOptions
	folder upgrade.Folder
}

// tick runs a tick by this agent.
func (u *supervisor) tick(ctx context.Context, opts agent.Options) (Turned, error) {
	report, err := u.Tick(ctx, opts)
	if errors.Is(err, agent.ErrLocked) {
		return Turned{Locked: true}, nil
	}
	if err != nil {
		return Turned{}, err
	}
	return Turned{Report: &report}, nil
}

// proof returns the proof that a candidate must give on this node.
func (s Setup) proof() upgrade.Proof {
	const margin = time.Minute // for SIGKILL, and for reading Puppet's report
	c := s.Config.Upgrade
	return upgrade.Proof{
		SelfTest: cmp.Or(c.SelfTest, upgrade.SelfTestLimit), FirstStep: cmp.Or(c.FirstStep, upgrade.FirstStepLimit),
		Step: cmp.Or(c.Step, upgrade.StepLimit), Slow: max(upgrade.SlowLimit, c.Step), Apply: s.deadline() + s.grace() + margin,
		Ticks: upgrade.GoodTicks, Probation: cmp.Or(c.Probation, upgrade.Probation),
	}
}

// standing returns the state of this node's agent upgrade, or nil if it runs the wanted agent.
func (s Setup) standing(want model.AgentChoice) *model.Upgrade {
	if want.Version == "" && !want.Unknown {
		return nil
	}
	state, err := s.UpgradeFolder().Load()
	if err != nil {
		return &model.Upgrade{Wanted: want.Version, Phase: model.UpgradeWaiting, Problem: model.Problem{Code: model.UpgradeUnknown, Text: model.Prose(err.Error())}}
	}
	u := state.Report(want, s.OwnVersion())
	if u != nil && u.Phase == model.UpgradeWaiting && u.Problem == (model.Problem{}) && !s.installed() {
		u.Problem = model.Problem{Code: model.UpgradeNotInstalled, Text: model.Prose(s.UpgradeFolder().Installed)}
	}
	return u
}

// installed reports whether this process is the program that an upgrade replaces.
func (s Setup) installed() bool {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	there, err := os.Stat(s.UpgradeFolder().Installed)
	return err == nil && os.SameFile(self, there)
}

// consider checks after a tick whether etcd wants another version of the agent, and fetches and tests it. It does so
// only after a tick without work: an upgrade never coincides with new content.
func (u *supervisor) consider(ctx context.Context, report agent.Report) error {
	u.seen(report.Desired)
	quiet := report.Err == nil && report.Run == nil && !report.Unreachable && report.Decision.Action == model.Nothing
	if !quiet || !report.Decision.Calm(report.Desired) {
		return nil
	}
	want := report.Desired.WantedAgent()
	s, err := u.folder.Load()
	if err != nil || s.Next(want, u.Now()) == upgrade.Stay && !u.folder.Untidy(s) {
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
	if s.Next(want, u.Now()) == upgrade.Forget {
		if s, err = u.forget(s, want); err != nil {
			return err
		}
	}
	if s.Next(want, u.Now()) != upgrade.Fetch {
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

// seen records the wanted version after an operator reverted a version by hand, or after a rollout completed.
func (u *supervisor) seen(d model.Desired) {
	if d.Unreachable != "" || d.Unreadable != "" {
		return
	}
	s, err := u.folder.Load()
	if _, changes := s.Seen(d.WantedAgent()); err != nil || !changes {
		return
	}
	lock, err := u.folder.Lock()
	if err != nil {
		return // retry in the next tick
	}
	defer lock.Close()
	if s, err = u.folder.Load(); err == nil {
		if s, changes := s.Seen(d.WantedAgent()); changes {
			err = u.folder.Save(s)
		}
	}
	if err != nil {
		u.Log.Warn("cannot store the wanted version of the agent", "err", err)
	}
}

func (u *supervisor) forget(s upgrade.State, want model.AgentChoice) (upgrade.State, error) {
	s = s.Forgotten(want)
	return s, errors.Join(u.folder.Save(s), u.folder.Tidy(s))
}

// try fetches and tests a version, and returns the resulting state. Its error means that nothing was learned about the
// version.
func (u *supervisor) try(ctx context.Context, s upgrade.State, want model.AgentChoice) (upgrade.State, error) {
	parts, err := stage.Open(u.Config, u.Now, u.Log)
	if err != nil {
		return s, err
	}
	defer parts.Close()
	p, there, err := u.find(ctx, parts, s, want)
	if err == nil && !there {
		err = u.folder.Fetch(p.SHA256, func(w io.Writer) error { return p.CopyTo(ctx, w, parts.Objects) })
	}
	program := upgrade.Program{Version: want.Version, Digest: p.SHA256}
	switch {
	case ctx.Err() != nil:
		return s, ctx.Err()
	case err != nil:
		why := problemOf(err)
		u.Log.Warn("the wanted agent is not available", "version", want.Version, "code", why.Code, "why", why)
		return s.Wait(want, why, u.Now()), nil
	case there:
		return s.Found(program, want.Try, u.folder.File()), nil
	}
	found, why, err := u.selfTest(ctx, program)
	failpoint.Here("upgrade:tested")
	switch {
	case err != nil:
		return s, err
	case found == upgrade.Good:
		u.Log.Info("the new agent is on probation", "version", want.Version)
		return s.Tested(program, want, u.Now()), nil
	case found == upgrade.Bad:
		u.Log.Error("the new agent is dropped", "version", want.Version, "code", why.Code, "why", why)
		return s.Drop(program, want, why, u.Now()), nil
	}
	u.Log.Warn("cannot test the new agent", "version", want.Version, "code", why.Code, "why", why)
	return s.Wait(want, why, u.Now()), nil
}

// problemError is an error with a code.
type problemError struct{ model.Problem }

func (e *problemError) Error() string { return e.Problem.String() }

// problemOf returns the problem of an upgrade's error.
func problemOf(err error) model.Problem {
	var p *problemError
	if errors.As(err, &p) {
		return p.Problem
	}
	return model.Problem{Code: model.UpgradeUnavailable, Text: firstLine(err)}
}

// firstLine returns an error without its hints, which are for terminals.
func firstLine(err error) model.Prose {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return model.Prose(line)
}

// selfTest runs a candidate's self-test. A failure that this agent shares is not the candidate's fault. An ordinary
// error may be a coincidence and is retried. A crash or a hang is not.
func (u *supervisor) selfTest(ctx context.Context, p upgrade.Program) (upgrade.Finding, model.Problem, error) {
	for try := 1; ; try++ {
		found, why, code := upgrade.SelfTest(ctx, u.command(p, "selftest"), u.proof().SelfTest)
		if found != upgrade.Bad || code == crashed {
			return found, why, ctx.Err()
		}
		if own := u.SelfTest(ctx); own != nil {
			return upgrade.Nothing, model.Problem{Code: model.UpgradeSelfTestBoth, Text: firstLine(own)}, nil
		}
		if code < 0 || try == upgrade.SelfTests {
			return found, why, nil
		}
		select {
		case <-ctx.Done():
			return found, why, ctx.Err()
		case <-time.After(upgrade.TestAgain):
		}
	}
}

// crashed is the exit code of a Go program that panicked.
const crashed = 2

// find reads the record of a version. It returns the program for this machine's platform, and whether it is in place
// already. Its error tells why this node refuses the version.
func (u *supervisor) find(ctx context.Context, parts *stage.Content, s upgrade.State, want model.AgentChoice) (p content.Program, there bool, err error) {
	r, err := parts.Store.Releases.Agent(ctx, want.Version)
	if err != nil {
		return p, false, err
	}
	platform := runtime.GOOS + "/" + runtime.GOARCH
	p, ok := r.Platforms[platform]
	if !ok {
		return p, false, &problemError{model.Problem{Code: model.UpgradeNoProgram, Text: model.Prose(platform)}}
	}
	have, err := upgrade.Digest(u.folder.Installed)
	if err != nil || have == p.SHA256 {
		return p, true, err
	}
	own := u.OwnVersion()
	if s.Installed != nil {
		own = s.Installed.Version
	}
	if _, err := release.ParseVersion(own); err == nil && release.CompareVersions(want.Version, own) < 0 && !want.Downgrade && !s.Returns() {
		return p, false, &problemError{model.Problem{Code: model.UpgradeOlder, Version: own}}
	}
	return p, false, u.authentic(parts, r)
}

// authentic reports whether an authorised signer has signed a version, as of now.
func (u *supervisor) authentic(parts *stage.Content, r release.SignedAgent) error {
	signers, _, err := parts.Verifier.Signers()
	if err == nil && signers != nil {
		_, err = signers.Verify(trust.Agent, u.Identity.Environment, r.Record, r.Signatures, u.Now())
	}
	if err != nil {
		return &problemError{model.Problem{Code: model.UpgradeRefused, Version: r.Version, Text: firstLine(err)}}
	}
	return nil
}

// stillSigned reports whether the signature of a fetched candidate is still valid.
func (u *supervisor) stillSigned(ctx context.Context, p upgrade.Program) error {
	parts, err := stage.Open(u.Config, u.Now, u.Log)
	if err != nil {
		return err
	}
	defer parts.Close()
	r, err := parts.Store.Releases.Agent(ctx, p.Version)
	if err != nil {
		return err
	}
	if published := r.Platforms[runtime.GOOS+"/"+runtime.GOARCH].SHA256; published != p.Digest {
		return &problemError{model.Problem{Code: model.UpgradeChanged}}
	}
	return u.authentic(parts, r)
}

// command returns the command that starts a candidate with a verb and the flags of this process.
func (u *supervisor) command(p upgrade.Program, verb string, more ...string) upgrade.Command {
	args := append([]string{verb}, u.opts.Flags...)
	return upgrade.Command{
		Path: u.folder.Candidate(p.Digest), Args: append(args, more...), Stdout: u.Stdout, Stderr: u.Stderr, Log: u.Log, Gentle: u.grace(),
	}
}

// SelfTest returns why this program cannot be the machine's agent, or nil. It changes nothing.
func (s Setup) SelfTest(ctx context.Context) error {
	for _, part := range []struct {
		name string
		test func(context.Context) error
	}{
		{"read this node's state", s.testState},
		{"read who may sign", func(context.Context) error { _, _, err := stage.Signers(s.Config).Read(); return err }},
		{"open this node's releases", func(context.Context) error { _, err := content.OpenStore(s.StateDir()); return err }},
		{"run hooks of releases and new agents", func(context.Context) error { return child.CanRun(s.StateDir()) }},
		{"find Puppet", func(context.Context) error { return s.NewPuppet().Installed() }},
		{"read etcd and write into it", s.testEtcd},
	} {
		if err := part.test(ctx); err != nil {
			return fmt.Errorf("cannot %s: %w", part.name, err)
		}
	}
	return nil
}

// testState reads the state that the agent in place wrote. It fails if the state has a newer format.
func (s Setup) testState(context.Context) error {
	d, err := agent.ReadDisk(s.StateDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = d.Load()
	return errors.Join(err, d.Close())
}

// testEtcd reads the values that a tick reads, and rewrites the node's own status.
func (s Setup) testEtcd(ctx context.Context) error {
	st, err := control.Open(s.Store)
	if err != nil {
		return err
	}
	if _, err = st.Node.Desire(ctx, s.Identity); err == nil {
		err = st.Node.RepeatStatus(ctx, s.Identity)
	}
	return errors.Join(err, st.Close())
}
