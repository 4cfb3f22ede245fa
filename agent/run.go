package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"pulley/internal/failpoint"
)

// Control is what a tick asks of etcd. An error that is ErrUnreachable means that etcd gave no answer.
type Control interface {
	// Desire reads everything that concerns the node in one transaction.
	Desire(ctx context.Context, id Identity) (Desired, error)
	// Admit writes the status of a run that starts, if nothing changed since d was read; else ErrChanged.
	Admit(ctx context.Context, id Identity, d Desired, s Status) error
	// Report writes the status and the run records, and drops the records of this node that drop names.
	Report(ctx context.Context, id Identity, s Status, runs []EncodedRun, drop []string) error
}

// Content puts the parts of a target on this machine's disk. Every method may be repeated.
type Content interface {
	// Stage fetches and verifies a target's tree and data beside what is there; Puppet sees nothing of it. When taking, the
	// target is new to this node and must prove that it is authentic; an error that is a *refusal.Error says that it is not.
	Stage(ctx context.Context, id Identity, t Target, how Staging) (Staged, error)
	// Current is the tree that was activated last; "" when there is none.
	Current() (tree string, err error)
	// Activate makes a staged tree the current one, by one rename.
	Activate(tree string) error
	// Collect removes what no kept target needs.
	Collect(keep []Target, dataDigests []string) error
}

// Puppet applies a staged target.
type Puppet interface {
	// Blocked returns why the machine's own Puppet forbids a run; nil when it does not.
	Blocked() *Blocked
	// Apply runs Puppet to its end. Its error means that Puppet was never started.
	Apply(ctx context.Context, job Job) (Result, error)
}

// Machine is what a tick checks around Puppet's run.
type Machine interface {
	// Remember keeps what no run may spoil, what starts the agent and who may sign for it, durably: the run may be cut off.
	Remember() error
	// Mend puts back what the run since Remember spoilt, of this agent or of one that is gone. Its error says what that was.
	Mend() error
	// Verify runs the release's own checks.
	Verify(ctx context.Context, job Job) error
	// Retire runs the release's hooks that say goodbye, for the last time.
	Retire(ctx context.Context, job Job, why Prose) error
}

// Memory is the node's own disk. Save and Begin are durable when they return.
type Memory interface {
	// Load reads the state; a *DamagedError means that it makes no sense, and Afresh puts it aside for an empty one.
	Load() (State, error)
	Afresh() (State, error)
	Save(State) error
	Disabled() (reason Prose, err error)
	LoadReported() (Reported, error)
	SaveReported(Reported) error
	// Begin marks the run's folder: from here on Puppet may have been started in it. End writes how it went.
	Begin(run string) error
	End(run string, r Result) error
	// Ended returns how a run went; began is false when Puppet was never started in it, ended false when it was cut off.
	Ended(run string) (r Result, began, ended bool, err error)
	// Spool keeps run records that etcd could not take, bounded; Spooled returns the oldest of them.
	Spool(EncodedRun) error
	Spooled(limit int) ([]EncodedRun, error)
	Unspool(ids []string) error
}

// Staging says what a target is staged for.
type Staging struct {
	Taking bool // it is new to this node: it has to prove that it is authentic
	Noop   bool // only to look at: nothing is remembered of it
}

// Staged says where a target's parts lie.
type Staged struct {
	Tree       string // absolute folder of the release
	Data       string // absolute folder of the layers; "" without live data
	DataDigest string // of the layers that concern this node
	Release    func() // lets go of the parts; collection leaves them alone until then
}

// Sentinels that a Control's errors wrap.
var (
	ErrUnreachable = errors.New("etcd is unreachable")
	ErrChanged     = errors.New("what was desired changed meanwhile")
)

// Agent is one node.
type Agent struct {
	Identity  Identity
	Settings  Settings
	Version   string
	MachineID string // tells this machine from a copy of it
	Boot      string // the kernel's id of this boot, for the status

	Control Control
	Content Content
	Puppet  Puppet
	Machine Machine
	Memory  Memory

	Now func() time.Time
	Log *slog.Logger

	Step    func(name string)               // is told each step as it begins; nil: nobody watches
	Upgrade func(want AgentChoice) *Upgrade // where this node stands with its own agent, for the status; nil: nobody knows

	RunDeadline   time.Duration // of Puppet; 0 means its default
	VerifyTimeout time.Duration // how long etcd may take to answer after a new target was applied
}

// Options are what one tick was asked for.
type Options struct {
	Force bool // run now: skip waits and forget failed attempts; holds and gates still count
	Noop  bool // show what a run would change
	Keep  bool // take nothing new: the agent that watches this one does that, in the next tick
}

// Report is what a tick did.
type Report struct {
	Decision    Decision
	Desired     Desired
	Run         *Run   // nil when no run was begun
	Puppet      bool   // Puppet was started
	Note        string // why a tick that had something to do ended without a run
	Unreachable bool   // etcd did not answer at least once
	Err         error
}

// A step is one part of a tick. Every step may be repeated: a tick that dies anywhere is finished by the next one.
type step struct {
	name string
	when when
	run  func(*tick, context.Context) error
}

type when string

const (
	always  when = "always"
	acting  when = "when there is something to do"
	applied when = "when the run has a result"
	leaving when = "when it is to retire"
	anyhow  when = "whatever happened before"
)

// steps is a tick, top to bottom. Before apply nothing that Puppet can see changes; commit is the one point where a
// target becomes the last good one. A node that is to retire does so instead.
var steps = []step{
	{"observe", always, (*tick).observe},
	{"desire", always, (*tick).desire},
	{"decide", always, (*tick).decide},
	{"stage", acting, (*tick).stage},
	{"admit", acting, (*tick).admit},
	{"apply", acting, (*tick).apply},
	{"verify", applied, (*tick).verify},
	{"commit", applied, (*tick).commit},
	{"consent", leaving, (*tick).consent},
	{"retire", leaving, (*tick).retire},
	{"report", anyhow, (*tick).report},
}

// Steps names the steps of a tick with this action, in their order; crash tests are generated from it.
func Steps(a Action) []string {
	t := &tick{decision: Decision{Action: a}, ended: a == Enforce || a == Take}
	var names []string
	for _, s := range steps {
		if t.wants(s, false) {
			names = append(names, s.name)
		}
	}
	return names
}

// tick is the state of one tick.
type tick struct {
	*Agent
	opts     Options
	observed Observed
	desired  Desired
	decision Decision
	state    State
	staged   Staged
	run      *Run
	began    time.Time
	puppet   bool  // Puppet was started
	ended    bool  // the run has a result; it has one without Puppet where staging failed
	spoilt   error // what the run spoilt of the machine, and whether it was put back
	settled  bool  // the node's state is no longer the one that was decided on
	offline  bool  // etcd did not answer, at some point
	untold   bool  // etcd may have a status of this node that Reported knows nothing of
	note     string
	took     map[string]time.Duration
}

// Tick brings this node one step towards what etcd wants of it, and says how that went. The caller holds the node's lock.
func (a *Agent) Tick(ctx context.Context, opts Options) Report {
	t := &tick{Agent: a, opts: opts, took: map[string]time.Duration{}}
	err := t.do(ctx)
	if t.staged.Release != nil {
		t.staged.Release()
	}
	return Report{Decision: t.decision, Desired: t.desired, Run: t.run, Puppet: t.puppet, Note: t.note, Unreachable: t.offline, Err: err}
}

// errEnd ends a tick early, without a failure.
var errEnd = errors.New("nothing more to do")

// do runs the steps. The log, the time, the error's context and the crash points are here, once for all of them.
func (t *tick) do(ctx context.Context) error {
	var failed error
	ended := false
	for _, s := range steps {
		if !t.wants(s, ended || failed != nil) {
			continue
		}
		// A tick that is stopped still commits and reports a run that has a result.
		if ctx.Err() != nil && !t.ended && s.when != anyhow {
			failed = fmt.Errorf("cannot %s: the agent was told to stop: %w", s.name, errors.Join(ctx.Err(), t.withdraw()))
			continue
		}
		if t.Step != nil {
			t.Step(s.name)
		}
		failpoint.Here("before:" + s.name)
		start := t.Now()
		err := s.run(t, ctx)
		t.took[s.name] = t.Now().Sub(start)
		t.Log.Debug("step", "step", s.name, "took", t.took[s.name], "err", err)
		failpoint.Here("after:" + s.name)
		switch {
		case errors.Is(err, errEnd):
			ended = true
		case err != nil && failed == nil:
			failed = fmt.Errorf("cannot %s: %w", s.name, err)
		}
	}
	return failed
}

func (t *tick) wants(s step, over bool) bool {
	switch s.when {
	case anyhow:
		return true
	case acting:
		return !over && (t.decision.Action == Enforce || t.decision.Action == Take)
	case applied:
		return !over && t.ended
	case leaving:
		return !over && t.decision.Action == Retire
	}
	return !over
}
