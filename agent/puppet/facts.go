package puppet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"pulley/agent"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/facts"
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

// keepFacts keeps the facts that a run gathered. They never end a run.
func (p *Puppet) keepFacts(job agent.Job) {
	if job.Noop { // it may show another release, with other custom facts
		return
	}
	if err := p.gathered(job, time.Now()); err != nil && !errors.Is(err, fs.ErrNotExist) { // without a file, Puppet did not get that far
		p.log().Warn("cannot keep the facts of this machine", "error", err)
	}
}

func (p *Puppet) gathered(job agent.Job, now time.Time) error {
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
func volatileFacts(job agent.Job) ([]string, error) {
	name, root, err := environmentFile(job, mentionsPuppet)
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
