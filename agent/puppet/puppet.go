package puppet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"pulley/agent"
)

// The limits of a run when neither the job nor the Puppet says otherwise.
const (
	DefaultDeadline = time.Hour
	DefaultGrace    = 2 * time.Minute
)

// Puppet runs Puppet. The zero value of each field but Dir is usable.
type Puppet struct {
	Program  string        // path or name; "" finds `puppet` in the PATH that Puppet gets
	Dir      string        // the agent's state folder: Dir/puppet is Puppet's own, Dir/runs/<id> a run's
	Deadline time.Duration // of a run whose job names none; 0 means DefaultDeadline
	Grace    time.Duration // between the gentle signal and the hard one; 0 means DefaultGrace

	// StateDirs are where the machine's own Puppet may keep its locks; nil means DefaultStateDirs("/").
	StateDirs []string

	// Own is the message of a lock against puppet agent that Pulley itself put there: it keeps nobody but that agent from
	// running. "" when there is none.
	Own string

	// ExtraFiles are open files that Puppet inherits. A file lock among them stays held for as long as Puppet lives,
	// also when the agent is killed. Reap is then what ends a Puppet that hangs, as the lock alone would never.
	ExtraFiles []*os.File

	Logger *slog.Logger // nil: silent
	Stdout io.Writer    // gets Puppet's output while it runs; nil: nobody looks
}

// Apply runs Puppet on the job's release and data and returns what came of it. The error is for runs that did not take
// place: ErrMissing, *DisabledError, *BusyError, a folder that can't be written. The end of ctx is the end of this
// process and nothing else: Puppet then gets the gentle signal, as at its deadline.
func (p *Puppet) Apply(ctx context.Context, job agent.Job) (agent.Result, error) {
	if err := p.Reap(ctx); err != nil {
		return agent.Result{}, err
	}
	if err := p.Locks(); err != nil {
		return agent.Result{}, err
	}
	args := []string{"apply", "--detailed-exitcodes"}
	if job.Noop {
		args = append(args, "--noop")
	}
	// Empty code makes Puppet take the environment's own manifest setting; without it, it would read standard input.
	cmd, err := p.command(job, append(args, "-e", "")...)
	if refused := (*ReleaseError)(nil); errors.As(err, &refused) {
		return agent.Result{Kind: agent.Untouched, Outcome: agent.Failed, Noop: job.Noop, Problem: agent.Problem{Code: agent.ReleaseUnusable, Text: agent.Prose(refused.Error())}}, nil
	}
	if err != nil {
		return agent.Result{}, err
	}
	e, err := p.run(ctx, cmd, job)
	if err != nil {
		return agent.Result{}, err
	}
	return p.result(job, e), nil
}

// Command returns the command that runs any Puppet subcommand with exactly the settings of the job's run, for example
// Command(ctx, job, "lookup", "ntp::servers", "--explain"), after preparing the run's folder. Standard streams are the
// caller's to set, the folder (RunDir) the caller's to remove. The end of ctx is a gentle signal, then a hard one.
func (p *Puppet) Command(ctx context.Context, job agent.Job, args ...string) (*exec.Cmd, error) {
	cmd, err := p.command(job, args...)
	if err != nil {
		return nil, err
	}
	gentle := exec.CommandContext(ctx, cmd.Path)
	gentle.Args, gentle.Env, gentle.Dir = cmd.Args, cmd.Env, cmd.Dir
	gentle.Cancel = func() error { return gentle.Process.Signal(os.Interrupt) }
	gentle.WaitDelay = p.grace()
	p.log().Info("running puppet", "command", quoted(gentle.Args))
	return gentle, nil
}

// Version asks Puppet for its version, such as "7.23.0". It takes half a second: ask rarely.
func (p *Puppet) Version(ctx context.Context) (string, error) {
	name, err := p.find()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, "--version")
	cmd.Env, cmd.Dir, cmd.WaitDelay = environ(), "/", time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("cannot ask %s for its version: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// RunDir is the folder of the run with this id: settings, log and Puppet's own report.
func (p *Puppet) RunDir(id string) string { return filepath.Join(p.Dir, "runs", id) }

// result reads what the ended run left in its folder and judges it.
func (p *Puppet) result(job agent.Job, e end) agent.Result {
	dir := p.RunDir(job.ID)
	console := readConsole(filepath.Join(dir, "puppet.log"))
	path := filepath.Join(dir, "report.yaml")
	report, err := readReport(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.log().Warn("puppet's report is not usable", "error", err)
	}
	rel := relativeTo(filepath.Join(dir, "environments", job.PuppetEnvironment), dir, job.Tree)
	console.relative(rel)
	r := agent.Result{ExitCode: e.code, Noop: job.Noop, Log: console.lines}
	if report != nil {
		report.relative(rel)
		r.Counts, r.Durations, r.Resources, r.Report = report.Counts, report.Durations, report.Resources, path
		r.Log = report.Log
	}
	r.Kind, r.Outcome, r.Problem = classify(e, job.Noop, report, console)
	r.Log = bounded(r.Log, maxLogLines)
	return r
}

// relativeTo returns a replacer that takes the run's and the release's folder out of a text, so that a message names
// `manifests/site.pp` and is the same on every node and in every run.
func relativeTo(folders ...string) *strings.Replacer {
	var pairs []string
	for _, f := range folders {
		if f != "" && f != "/" {
			pairs = append(pairs, strings.TrimSuffix(f, "/")+"/", "")
		}
	}
	return strings.NewReplacer(pairs...)
}

func (p *Puppet) log() *slog.Logger {
	if p.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Logger
}

func (p *Puppet) grace() time.Duration {
	if p.Grace > 0 {
		return p.Grace
	}
	return DefaultGrace
}

func (p *Puppet) deadline(job agent.Job) time.Duration {
	switch {
	case job.Deadline > 0:
		return job.Deadline
	case p.Deadline > 0:
		return p.Deadline
	}
	return DefaultDeadline
}
