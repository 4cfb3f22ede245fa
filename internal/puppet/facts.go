package puppet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"pulley/environments/settings"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/facts"
	"pulley/internal/model"
)

// runFacts is the file in a run's folder where the terminus leaves the facts.
const runFacts = "facts.json"

// maxRunFacts limits that file, in bytes.
const maxRunFacts = 8 << 20

// factsFile is the file with the machine's facts in the form that is published. It changes only when they do, and its
// time is that of the last run that gathered them.
func (p *Puppet) factsFile() string { return filepath.Join(p.Dir, "facts.zst") }

// Facts returns the machine's facts in the form that is published, as the last run gathered them; nil before the first.
func (p *Puppet) Facts() ([]byte, error) {
	b, err := bounded.ReadFile(p.factsFile(), facts.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// KnownFacts is Facts, and gathers the facts with the job's release if the node never did.
func (p *Puppet) KnownFacts(ctx context.Context, job model.Job) ([]byte, error) {
	known, err := p.Facts()
	if err != nil {
		p.log().Warn("cannot read the facts of this machine", "error", err)
	}
	if known != nil {
		return known, nil
	}
	if err := p.gather(ctx, job.Identity, job.Tree); err != nil {
		return nil, err
	}
	return p.Facts()
}

// keepFacts keeps the facts that a run gathered. They never end a run.
func (p *Puppet) keepFacts(job model.Job) {
	if job.Noop { // it may show another release, with other custom facts
		return
	}
	if err := p.gathered(job, time.Now()); err != nil && !errors.Is(err, fs.ErrNotExist) { // without a file, Puppet did not get that far
		p.log().Warn("cannot keep the facts of this machine", "error", err)
	}
}

func (p *Puppet) gathered(job model.Job, now time.Time) error {
	b, err := bounded.ReadFile(filepath.Join(p.RunDir(job.ID), runFacts), maxRunFacts)
	if err != nil {
		return err
	}
	source, err := facts.ParseSource(b)
	if err != nil {
		return err
	}
	volatile, err := volatileFacts(job)
	if err != nil {
		p.log().Warn("cannot read which facts are volatile", "error", err)
	}
	published, err := source.From(volatile, now)
	if err != nil {
		return err
	}
	if old, err := p.Facts(); err == nil && old != nil {
		if before, err := facts.Decode(old); err == nil && before.Same(published) {
			return os.Chtimes(p.factsFile(), now, now)
		}
	}
	packed, err := published.Encode()
	if err != nil {
		return err
	}
	return atomicfile.Write(p.factsFile(), packed, 0o600)
}

// volatileFacts returns the facts that the environment file of the release adds to facts.Volatile.
func volatileFacts(job model.Job) ([]string, error) {
	name, root, err := environmentFile(job, mentionsPuppet())
	if err != nil {
		return nil, err
	}
	var of struct {
		Volatile []string `yaml:"volatile_facts"`
	}
	if part := entry(root, "puppet"); part != nil {
		if err := part.Decode(&of); err != nil {
			return nil, &ReleaseError{File: name, Err: err}
		}
	}
	for _, pattern := range of.Volatile {
		if err := facts.CheckPattern(pattern); err != nil {
			return nil, &ReleaseError{File: name, Err: fmt.Errorf("volatile_facts: %w", err)}
		}
	}
	return of.Volatile, nil
}

// The limits of an inquiry.
const (
	inquiryEvery    = 24 * time.Hour   // after the last run or inquiry
	inquiryFirst    = 15 * time.Minute // after the first idle tick of a node without facts: as a rule, it soon has a run
	inquiryDeadline = 2 * time.Minute
	inquiryRun      = "facts" // names its folder in place of a run's id
)

// triedFile has the time of the last inquiry, also of one that failed.
func (p *Puppet) triedFile() string { return filepath.Join(p.Dir, "facts.tried") }

// Inquire gathers the facts of the release in place, or of the machine without one, if no run and no inquiry did so for a day.
// It reports whether it did. A node that never had facts gathers them a quarter of an hour after its first call.
func (p *Puppet) Inquire(ctx context.Context, id model.Identity) (bool, error) {
	now := time.Now()
	due, err := p.inquiryDue(now)
	if err != nil || !due {
		return false, err
	}
	if err := cmp.Or(p.Reap(ctx), p.Locks()); err != nil { // a Puppet of the machine runs, or is forbidden
		return false, nil
	}
	if err := atomicfile.Write(p.triedFile(), nil, 0o600); err != nil { // before the inquiry: it may end the agent
		return false, err
	}
	tree, err := filepath.EvalSymlinks(filepath.Join(p.Dir, "current"))
	if errors.Is(err, fs.ErrNotExist) {
		tree = filepath.Join(p.Dir, "puppet", "empty")
		err = os.MkdirAll(tree, 0o700)
	}
	if err != nil {
		return false, err
	}
	return true, p.gather(ctx, id, tree)
}

// gather gathers the facts of the machine, with the custom facts of a release, or of the Puppet server that the release names.
func (p *Puppet) gather(ctx context.Context, id model.Identity, tree string) error {
	job := model.Job{Identity: id, ID: inquiryRun, Tree: tree}
	defer os.RemoveAll(p.RunDir(job.ID))
	release, err := ReadReleaseSettings(tree)
	if err != nil {
		return err
	}
	args := []string{"facts", "find", id.Certname, "--render-as", "json"}
	plugins := filepath.Join(p.agentDir(), "var", "lib") // that the server synchronised
	if release.PuppetEnvironment != "" {
		given, err := givenSettings(job)
		if err != nil {
			return err
		}
		args = append(args, "--factpath", settings.FactPath(filepath.Join(plugins, "facter"), given))
	}
	quiet := *p
	quiet.Deadline, quiet.Stdout, quiet.seen = inquiryDeadline, nil, "" // a run may have asked
	cmd, err := quiet.command(job, args...)
	if err != nil {
		return err
	}
	if release.PuppetEnvironment != "" {
		cmd.Env = append(cmd.Env, "RUBYLIB="+plugins) // code that custom facts share
	}
	e, err := quiet.run(ctx, cmd, job)
	if err != nil {
		return err
	}
	if e.code != 0 {
		return fmt.Errorf("cannot gather facts: `puppet facts find` ended with exit code %d%s", e.code, because(e.why))
	}
	return p.gathered(job, time.Now())
}

// inquiryDue reports whether the last facts, and the last inquiry, are a day old.
func (p *Puppet) inquiryDue(now time.Time) (bool, error) {
	var last time.Time
	for _, file := range []string{p.factsFile(), p.triedFile()} {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		if at := info.ModTime(); at.After(last) {
			last = at
		}
	}
	if last.IsZero() {
		counts := now.Add(inquiryFirst - inquiryEvery)
		if err := atomicfile.Write(p.triedFile(), nil, 0o600); err != nil {
			return false, err
		}
		return false, os.Chtimes(p.triedFile(), counts, counts)
	}
	age := now.Sub(last)
	return age >= inquiryEvery || age < -inquiryEvery, nil // a clock that was wrong by days
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
