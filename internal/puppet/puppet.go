// Package puppet runs Puppet as a child process: it installs Puppet, runs it on a release and reads the result.
//
// A run is hermetic. Every folder and setting through which the machine's own Puppet could influence a run is generated
// or private: confdir, codedir, libdir, vardir, ssldir, Hiera's global layer, report and environment variables. Two
// parts of the machine are used on purpose. Its external facts (/etc/facter/facts.d and /etc/puppetlabs/facter/facts.d)
// describe the machine and come from its owner. The core types of the installed Puppet stay available (its vendored
// modules, or the modules that a distribution splits from it, by name), and a release's own modules override them.
//
// Every started Puppet has an agent that ends it. Its own agent does so at the deadline. After that agent was killed,
// the next agent waits for the old Puppet until the deadline, and then ends it. Puppet writes its output directly to a
// file, so that an agent's death does not interrupt a catalog.
//
// The package must never decide whether Puppet runs or on which target. It must never talk to etcd. It must never write
// outside its Dir, except the catalog lock of the machine's own Puppet, which it holds during a run, and the files of
// LastRun. It must never stop a run, except at the run's deadline or at the end of its own process.
package puppet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/internal/child"
	"pulley/internal/model"
)

// The default limits of a run.
const (
	DefaultDeadline = time.Hour
	DefaultGrace    = 2 * time.Minute
)

// Puppet runs Puppet. Except for Dir, the zero value of each field is usable.
type Puppet struct {
	Program  string        // path or name; "" finds `puppet` in the PATH of Puppet's environment
	Dir      string        // the agent's state folder; Dir/puppet belongs to Puppet, Dir/runs/<id> to a run
	Deadline time.Duration // of a run; 0 means DefaultDeadline
	Grace    time.Duration // between SIGTERM and SIGKILL; 0 means DefaultGrace

	// StateDirs are the folders where the machine's own Puppet may keep its locks. nil means DefaultStateDirs("/").
	StateDirs []string

	// Own is the message of a lock that Pulley itself set against puppet agent. This lock does not forbid runs of
	// Pulley's agent. "" means no such lock.
	Own string

	// ExtraFiles are open files that Puppet inherits. A file lock among them stays held while Puppet lives, even after
	// the agent is killed. Only Reap then ends a Puppet that hangs.
	ExtraFiles []*os.File

	Root string // the machine's root folder; "" means "/"

	// Certificate is what $settings::hostcert and its relatives point at.
	Certificate Certificate

	// StaysOff are the services that no run changes: those of a puppet agent that Pulley replaces.
	StaysOff []string

	// LastRun is where monitoring reads the result of a run.
	LastRun LastRun

	// Reports receive the report of each run that changes the machine. Without processors, those of the release do.
	Reports  Reports
	ConfDirs []string // folders with the settings of the processors

	// CoreModules is the folder of the modules that the distribution splits from Puppet. "" means that of Debian.
	CoreModules string

	// Installer installs what a release needs: hiera-eyaml, and missing core types. nil: a run that needs them fails.
	Installer *Installer
	fetched   string // folder of the core types that were fetched for a noop run

	// Reveal returns the job's data with its secrets decrypted, in a folder that done removes. Without secrets it returns
	// job.Data. nil: no run has secrets.
	Reveal  func(ctx context.Context, job model.Job) (data string, done func() error, err error)
	secrets bool   // this run has secrets
	seen    string // name of the folder of this run for Puppet; "": RunDir

	Logger *slog.Logger // nil: silent
	Stdout io.Writer    // receives Puppet's output during the run; may be nil
}

// Apply runs Puppet on the job's release and data and returns the result. An error means that Puppet never started:
// ErrMissing, *DisabledError, *BusyError, or a folder that cannot be written. ctx must end only when this process ends.
// Puppet then receives SIGTERM, as at its deadline.
func (p *Puppet) Apply(ctx context.Context, job model.Job) (r model.Result, err error) {
	if err := p.Reap(ctx); err != nil {
		return model.Result{}, err
	}
	if err := p.Locks(); err != nil {
		return model.Result{}, err
	}
	vanish, err := p.appear(job.ID)
	if err != nil {
		return model.Result{}, err
	}
	defer vanish()
	from, none, err := p.servedBy(ctx, job)
	switch refused := (*ReleaseError)(nil); {
	case errors.As(err, &refused):
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, Noop: job.Noop, Problem: model.Problem{Code: model.ReleaseUnusable, Text: model.Prose(refused.Error())}}, nil
	case err != nil:
		return model.Result{}, err
	case none != nil:
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, Noop: job.Noop, Problem: *none}, nil
	case from != nil:
		r, err := p.applyServed(ctx, job, from)
		if err == nil {
			p.blameVersion(ctx, &r)
			p.showLastRun(job, r)
		}
		return r, err
	}
	data, done, err := p.reveal(ctx, job)
	if err != nil {
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, Noop: job.Noop, Problem: model.Problem{Code: model.SecretsUnusable, Text: model.Prose(err.Error())}}, nil
	}
	p.secrets, job.Data = data != job.Data, data
	defer func() {
		if job.Preview {
			err = errors.Join(err, os.RemoveAll(p.RunDir(job.ID)))
		}
		err = errors.Join(err, done())
	}()
	r, err = p.apply(ctx, job)
	if err == nil && p.supplyTypes(ctx, job, r.Problem) {
		r, err = p.apply(ctx, job)
	}
	if p.fetched != "" {
		err = errors.Join(err, os.RemoveAll(p.fetched))
		p.fetched = ""
	}
	if err != nil {
		return model.Result{}, err
	}
	p.blameVersion(ctx, &r)
	p.showLastRun(job, r)
	p.keepFacts(job)
	if to, err := p.reportsOf(job); err == nil {
		p.queueReport(job, r, to)
	}
	return r, nil
}

// blameVersion makes a Puppet that is too old the problem of a run without a report: it refuses options of newer versions, and names no version. A
// package can replace it at any time.
func (p *Puppet) blameVersion(ctx context.Context, r *model.Result) {
	refused := func(l model.LogLine) bool { return strings.HasPrefix(l.Message, "Could not parse application options") } // puppet/application.rb
	if r.Outcome != model.Failed || r.Problem.Code != model.NoReport && !slices.ContainsFunc(r.Log, refused) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name, err := p.find()
	if err != nil {
		return
	}
	out, err := p.child(name, []string{"--version"}).Output(ctx, 64<<10)
	var old *tooOldError
	if _, refused := usable(name, string(out)); err == nil && errors.As(refused, &old) {
		r.Problem = model.Problem{Code: model.PuppetTooOld, Text: model.Prose(old.Error())}
	}
}

func (p *Puppet) reveal(ctx context.Context, job model.Job) (data string, done func() error, err error) {
	if p.Reveal == nil || job.Data == "" {
		return job.Data, func() error { return nil }, nil
	}
	return p.Reveal(ctx, job)
}

// apply runs Puppet once.
func (p *Puppet) apply(ctx context.Context, job model.Job) (model.Result, error) {
	args := append([]string{"apply", "--detailed-exitcodes"}, partOptions(job)...)
	// Empty code makes Puppet use the environment's own manifest setting. Without it, Puppet would read standard input.
	cmd, err := p.command(job, append(args, "-e", job.Code)...)
	if refused := (*ReleaseError)(nil); errors.As(err, &refused) {
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, Noop: job.Noop, Problem: model.Problem{Code: model.ReleaseUnusable, Text: model.Prose(refused.Error())}}, nil
	}
	if err != nil {
		return model.Result{}, err
	}
	p.prepareEyaml(ctx, job)
	version, err := p.setVersion(ctx, job)
	if err != nil {
		return model.Result{}, fmt.Errorf("cannot prepare run %s: %w", job.ID, err)
	}
	e, err := p.run(ctx, cmd, job)
	if err != nil {
		return model.Result{}, err
	}
	r := p.result(job, e)
	r.ConfigVersion, r.Commit = version, Deployed(job.Tree)
	return r, nil
}

// Command returns a command that runs any Puppet subcommand with exactly the settings of the job's run. It prepares the
// run's folder first. Example: Command(job, "lookup", "ntp::servers", "--explain").
//
// The caller sets the standard streams and removes the folder (RunDir).
func (p *Puppet) Command(job model.Job, args ...string) (*child.Command, error) {
	if release, err := ReadReleaseSettings(job.Tree); err == nil && release.PuppetEnvironment != "" {
		return nil, fmt.Errorf("cannot run Puppet with release %s: it names environment %s of a Puppet server, and has neither code nor data\n"+
			"run Puppet itself against the server: puppet agent --test --noop --environment %s", job.Target.Release, release.PuppetEnvironment, release.PuppetEnvironment)
	}
	cmd, err := p.command(job, args...)
	if err != nil {
		return nil, err
	}
	cmd.Terminal = true
	p.log().Info("running puppet", "command", cmd.String())
	return cmd, nil
}

// hasSecrets reports whether the job's data or release has secrets. No diff and no backup then shows the content of a file.
func (p *Puppet) hasSecrets(job model.Job) bool {
	return p.secrets || keepsSecrets(job.Tree, job.PuppetEnvironment)
}

// RunDir returns the folder of the run with this id: settings, log and Puppet's own report.
func (p *Puppet) RunDir(id string) string { return filepath.Join(p.Dir, "runs", id) }

// result reads the output of the ended run from its folder and judges it.
func (p *Puppet) result(job model.Job, e end) model.Result {
	r, report, console := p.readResult(job)
	r.ExitCode = e.code
	r.Kind, r.Outcome, r.Problem = classify(e, job.Noop, report, console)
	r.Log = limited(r.Log, maxLogLines, report.cutLines())
	return r
}

// readResult reads the output of the ended run from its folder. The report is nil without a usable one.
func (p *Puppet) readResult(job model.Job) (model.Result, *runReport, console) {
	dir := p.RunDir(job.ID)
	console := readConsole(filepath.Join(dir, "puppet.log"))
	path := filepath.Join(dir, "report.yaml")
	report, err := readReport(path, job.Preview)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.log().Warn("puppet's report is not usable", "error", err)
	}
	seen := p.seenDir(job.ID)
	rel := relativeTo(filepath.Join(seen, "code", "environments", job.PuppetEnvironment), p.environmentDir(job), seen, dir, job.Tree)
	console.relative(rel)
	r := model.Result{Noop: job.Noop, Log: console.lines}
	if report != nil {
		hidePrivate(report.Resources)
		report.relative(rel)
		if len(job.Tags) > 0 {
			report.Tags = nil // requested
		}
		r.Counts, r.Durations, r.Resources, r.Report, r.Left = report.Counts, report.Durations, report.Resources, path, report.left
		r.Log = report.Log
		for _, i := range slices.Backward(console.stray) { // Puppet's report lacks it
			r.Log = slices.Insert(r.Log, 0, model.LogLine{Level: "notice", Message: console.lines[i].Message})
		}
		r.Unclassified = !report.declares && classifiesNothing(filepath.Join(dir, "classes.txt"), job.Certname)
	}
	r.NoDiffs = job.Preview && p.hasSecrets(job)
	return r, report, console
}

// relativeTo returns a replacer that removes the run's and the release's folder from a text. A message then names
// `manifests/site.pp`, equal on every node and in every run.
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

func (p *Puppet) grace() time.Duration { return cmp.Or(p.Grace, DefaultGrace) }
