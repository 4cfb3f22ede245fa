// Package agent implements one tick of one node: it reads the node's state and the desired state in etcd, decides on an
// action, and carries it out. It owns the list of steps and the files of the node's own state; internal/model decides.
//
// It must never import etcd or start a process. It reads the clock, the environment and the files only through the
// fields of its types and the small interfaces in run.go.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"pulley/internal/failpoint"
	"pulley/internal/model"
)

// Control is a tick's access to etcd. ErrUnreachable means that etcd did not answer.
type Control interface {
	// Desire reads everything that concerns the node in one transaction.
	Desire(ctx context.Context, id model.Identity) (model.Desired, error)
	// Admit writes the status of a run that starts. It returns ErrChanged if the desired state changed since d was
	// read.
	Admit(ctx context.Context, id model.Identity, d model.Desired, s model.Status) error
	// Confirmation reads the confirmation of a request to retire this node; nil if there is none.
	Confirmation(ctx context.Context, id model.Identity) (*model.Confirmation, error)
	// Report writes the status and the run records. It deletes the node's records named by drop.
	Report(ctx context.Context, id model.Identity, s model.Status, runs []model.EncodedRun, drop []string) error
	// PublishFacts writes the node's facts.
	PublishFacts(ctx context.Context, id model.Identity, facts []byte) error
	// AnswerPreview writes the answer to the preview order in d; nil deletes an earlier answer. It returns ErrChanged if the
	// order changed since d was read.
	AnswerPreview(ctx context.Context, id model.Identity, d model.Desired, answer []byte) error
	// PublishExport writes the facts that the node shows to others with its sign of life, or deletes the key if there are neither.
	// The nodes that see it read it soon if it changed.
	PublishExport(ctx context.Context, id model.Identity, e model.Export, changed bool) error
}

// Content puts the parts of a target on this machine's disk. Every method may be repeated.
type Content interface {
	// Stage fetches and verifies a target's tree and data into folders that Puppet does not read. A target that is new
	// to this node must be authentic. Otherwise Stage returns a *refusal.Error.
	Stage(ctx context.Context, id model.Identity, t model.Target, how Staging) (Staged, error)
	// Current returns the tree that was activated last, or "".
	Current() (tree string, err error)
	// Activate makes a staged tree the current one, by one rename.
	Activate(tree string) error
	// Collect removes the trees and data that no kept target needs.
	Collect(keep []model.Target, dataDigests []string) error
}

// Hosts holds the host list on this machine's disk, and the data file with the nodes that this node sees of it. Every
// method may be repeated.
type Hosts interface {
	// FetchHosts reads the host list from etcd and stores it.
	FetchHosts(ctx context.Context, id model.Identity) error
	// Export returns those facts of this machine that the release in a tree shows to others. facts are in published form; nil: none.
	Export(id model.Identity, tree string, facts []byte) (model.Export, error)
	// ShowHosts writes the file of a tree from the stored list. w judges signs of life. Without a stored list, it returns
	// ErrNoHosts.
	ShowHosts(id model.Identity, tree string, w model.Watch) (model.Seen, error)
	// Difference returns what changed between two files, as JSON; nil if nothing did. "" is a file without nodes. Its name
	// depends on the number.
	Difference(number int64, before, after string) ([]byte, error)
	// Folder returns the folder of a tree.
	Folder(tree string) string
	// CollectHosts removes the files that are not kept.
	CollectHosts(keep ...string) error
}

// Puppet applies a staged target.
type Puppet interface {
	// Blocked returns why the machine's own Puppet forbids a run, or nil.
	Blocked() *model.Blocked
	// Reach returns why no Puppet server answers the job's node, or nil. A job whose release has its code needs none.
	Reach(ctx context.Context, job model.Job) *model.Problem
	// Apply runs Puppet until it exits. An error means that Puppet never started.
	Apply(ctx context.Context, job model.Job) (model.Result, error)
}

// Machine gives access to the machine's files and hooks that a Puppet run depends on.
type Machine interface {
	// Remember stores the agent's schedule and the lists of signers durably, because the run may be interrupted.
	Remember() error
	// Restore restores the files that a run since Remember damaged, including a run of an earlier agent. Its error
	// names them.
	Restore() error
	// Verify runs the release's own checks.
	Verify(ctx context.Context, job model.Job) error
	// Tell runs those hooks of the release's hosts.d/ that follow the hook after, in order, with a difference on standard
	// input. It calls acknowledge with the name of each that succeeded, and ends at the first failure.
	Tell(ctx context.Context, job model.Job, difference []byte, after string, acknowledge func(hook string) error) error
	// Retire runs the release's retire hooks.
	Retire(ctx context.Context, job model.Job, why model.Prose) error
}

// Memory is the node's own disk. Save and Begin are durable when they return.
type Memory interface {
	// Load reads the state. After a *DamagedError, Afresh renames the damaged file and returns an empty state.
	Load() (model.State, error)
	Afresh() (model.State, error)
	Save(model.State) error
	Disabled() (reason model.Prose, err error)
	LoadReported() (model.Reported, error)
	SaveReported(model.Reported) error
	// Begin marks the run's folder before Puppet starts. End writes the result.
	Begin(run string) error
	End(run string, r model.Result) error
	// Ended returns a run's result. began is false when Puppet never started. ended is false when the run was
	// interrupted.
	Ended(run string) (r model.Result, began, ended bool, err error)
	// Spool stores run records until etcd accepts them. The number is limited. Spooled returns the oldest records.
	Spool(model.EncodedRun) error
	Spooled(limit int) ([]model.EncodedRun, error)
	Unspool(ids []string) error
}

// Staging is the purpose of staging a target.
type Staging struct {
	Taking bool // the target is new to this node and must be authentic
	Noop   bool // the node does not record the target

	Preview bool // the target may be below the high-water mark: the node only looks at it
}

// Staged locates a target's parts on disk.
type Staged struct {
	Tree       string // absolute folder of the release
	Data       string // absolute folder of the layers; "" without live data
	DataDigest string // of those layers that concern this node
	Enforce    string // puppet.enforce of the environment file: off, daemon, or "" for enforcement by ticks
	Release    func() // lets Collect remove the parts again
}

// Agent is one node.
type Agent struct {
	Identity  model.Identity
	Settings  model.Settings
	Version   string
	MachineID string // distinguishes this machine from a copy of it
	Boot      string // the kernel's id of this boot, for the status

	Control Control
	Content Content
	Puppet  Puppet
	Machine Machine
	Memory  Memory

	Now func() time.Time
	Log *slog.Logger

	Step    func(name string)                           // receives each step as it begins; may be nil
	Upgrade func(want model.AgentChoice) *model.Upgrade // state of the agent's own upgrade, for the status; may be nil

	Signatures func() *model.Signatures // checks of signatures, for the status; may be nil

	Hosts Hosts // nil: Puppet sees no other nodes

	Facts func() ([]byte, error) // the machine's facts in the form that is published; nil: none yet. Facts may be nil.

	// Rivals names what starts another Puppet on this machine (see Status). It may be nil.
	Rivals func(ctx context.Context) (string, error)

	// Unscheduled returns why cron does not start the agent, for the status. It may be nil.
	Unscheduled func() error

	// Inquire gathers the facts anew if no run did so for a day, and reports whether it did. It may be nil.
	Inquire func(ctx context.Context, id model.Identity) (bool, error)

	// Current returns why no signed statement covers the target that d wants, or nil. keep remembers the statement; nil:
	// nothing is new. Current may be nil.
	Current func(d model.Desired) (stale *model.Refusal, keep func() error)

	VerifyTimeout time.Duration // how long etcd may take to answer after a new target was applied
}

// Options are the options of one tick.
type Options struct {
	Force bool // run now: skip waits and forget failed attempts; holds and gates still count
	Noop  bool // show the changes of a run without making them
	Keep  bool // take nothing new: this agent is on probation, and the agent in place does that

	// Part limits the run to some resources. Without Noop, it applies them from the target in place. Its result never
	// counts for a target.
	model.Part
	// Look is a release, promoted or not, that a noop run shows. Zero means the node's own target.
	Look model.Target
}

// noop reports whether the run makes no changes: a person at the machine, or etcd, ordered it so.
func (t *tick) noop() bool { return t.opts.Noop || t.decision.Noop }

// uncounted reports whether the run changes the machine, and its result does not count.
func (o Options) uncounted() bool { return o.Part.Partial() && !o.Noop }

// Report is the result of a tick.
type Report struct {
	Decision    model.Decision
	Desired     model.Desired
	Run         *model.Run // nil when no run was opened
	Puppet      bool       // Puppet was started
	Note        string     // for people: why a tick with an action ended without a run
	Unreachable bool       // etcd did not answer at least once
	Err         error
}

// A step is one part of a tick. Every step must be repeatable: the next tick completes an interrupted tick.
type step struct {
	name string
	when when
	run  func(*tick, context.Context) error
}

type when string

const (
	always  when = "always"
	acting  when = "when the decision is to run Puppet"
	applied when = "when the run has a result"
	leaving when = "when the decision is to retire"
	anyhow  when = "also after a failure"
)

// steps lists the steps of a tick in order. Before apply, nothing that Puppet can see changes. Only commit makes a
// target the last good one. A node that retires runs its hooks instead of Puppet.
var steps = []step{
	{"observe", always, (*tick).observe},
	{"desire", always, (*tick).desire},
	{"see", always, (*tick).see},
	{"decide", always, (*tick).decide},
	{"stage", acting, (*tick).stage},
	{"admit", acting, (*tick).admit},
	{"apply", acting, (*tick).apply},
	{"verify", applied, (*tick).verify},
	{"commit", applied, (*tick).commit},
	{"tell", always, (*tick).tell},
	{"confirm", leaving, (*tick).confirm},
	{"retire", leaving, (*tick).retire},
	{"report", anyhow, (*tick).report},
	{"preview", anyhow, (*tick).preview},
}

// Steps returns the names of a tick's steps for this action, in order. Crash tests are generated from them.
func Steps(a model.Action) []string {
	t := &tick{decision: model.Decision{Action: a}, ended: a == model.Enforce || a == model.Take}
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
	opts       Options
	observed   model.Observed
	desired    model.Desired
	keep       func() error // remembers the statement of the targets; nil: nothing is new
	decision   model.Decision
	state      model.State
	staged     Staged
	seen       model.Seen // by the release of this tick's run
	run        *model.Run
	began      time.Time
	puppet     bool  // Puppet was started
	ended      bool  // the run has a result; after a failed staging, without a start of Puppet
	damage     error // files that the run damaged, and whether they were restored
	settled    bool  // the node's state changed after the decision
	offline    bool  // etcd did not answer at least once
	unreported bool  // etcd may contain a status of this node that Reported does not record
	note       string
	took       map[string]time.Duration
}

// Tick moves this node one step towards its target and reports the result. The caller must hold the node's lock.
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

// do runs the steps. It handles the log, the time, the error context and the crash points of all steps.
func (t *tick) do(ctx context.Context) error {
	var failed error
	ended := false
	for _, s := range steps {
		if !t.wants(s, ended || failed != nil) {
			continue
		}
		// A stopped tick still commits and reports a run that has a result.
		if ctx.Err() != nil && !t.ended && s.when != anyhow {
			failed = fmt.Errorf("cannot %s: the agent was stopped: %w", s.name, errors.Join(ctx.Err(), t.withdraw()))
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
		return !over && (t.decision.Action == model.Enforce || t.decision.Action == model.Take)
	case applied:
		return !over && t.ended
	case leaving:
		return !over && t.decision.Action == model.Retire
	}
	return !over
}
