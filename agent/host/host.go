package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"pulley/agent"
	"pulley/internal/clip"
	"pulley/internal/nodeconfig"
	"pulley/internal/trust"
)

// Machine restores what a run must not spoil, the agent's schedule and the lists of signers, and runs the scripts of a release.
type Machine struct {
	schedule string // the cron file; a machine on which there is none runs the agent in some other way
	signers  keptSigners
	kept     string // file of what both were before a run
	log      *slog.Logger
	timeout  time.Duration // of one script of the release
}

var _ agent.Machine = (*Machine)(nil)

// New returns the machine of a node.
func New(c nodeconfig.Config, signers trust.Files, now func() time.Time, log *slog.Logger) *Machine {
	return &Machine{
		schedule: c.Crontab(), signers: keptSigners{files: signers, environment: c.Identity.Environment, now: now},
		kept: filepath.Join(c.StateDir(), keptFile), log: log, timeout: scriptTimeout,
	}
}

// Remember keeps both as they are before a run. What an earlier run spoilt and nobody could put back yet stays as it was
// kept then: else what is spoilt would be what there is to go back to.
func (m *Machine) Remember() error {
	before, err := loadKept(m.kept)
	if err != nil {
		m.log.Warn("what was kept of the machine is damaged; it is kept anew", "err", err)
	}
	k := kept{Signers: m.signers.remember()}
	if k.Schedule, k.Mode, err = m.crontab(); err != nil {
		return fmt.Errorf("cannot read the agent's schedule: %w", err)
	}
	if before != nil && m.lost(before) {
		k.Schedule, k.Mode = before.Schedule, before.Mode
	}
	if before != nil && m.signers.spoilt(before.Signers) != nil {
		k.Signers = before.Signers
	}
	return k.save(m.kept)
}

// Mend puts back what the run since Remember spoilt: else it would have been the node's last.
func (m *Machine) Mend() error {
	before, err := loadKept(m.kept)
	if before == nil {
		return err
	}
	scheduled, scheduleErr := m.keepSchedule(before)
	listed, listErr := m.signers.mend(before.Signers)
	if err = both(scheduleErr, listErr); !scheduled || !listed {
		return err // it stays kept, for the next try
	}
	if removeErr := os.Remove(m.kept); removeErr != nil {
		return errors.Join(err, fmt.Errorf("cannot forget what a run must not spoil: %w", removeErr))
	}
	return err
}

// both is one line, as what it says becomes a run's problem.
func both(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// Verify runs the release's own checks.
func (m *Machine) Verify(ctx context.Context, job agent.Job) error {
	return scripts{folder: "validate.d", shown: 600, timeout: m.timeout, log: m.log}.run(ctx, job)
}

// maxWhy bounds the reason that a hook gets.
const maxWhy = 1000

// Retire runs the release's hooks that say goodbye. Less of their output is shown, as it has to fit into an answer.
func (m *Machine) Retire(ctx context.Context, job agent.Job, why agent.Prose) error {
	env := []string{"PULLEY_WHY=" + clip.Line(string(why), maxWhy)}
	return scripts{folder: "retire.d", env: env, shown: 140, timeout: m.timeout, log: m.log}.run(ctx, job)
}

// crontab is the agent's cron file; nil when there is none.
func (m *Machine) crontab() ([]byte, fs.FileMode, error) {
	info, err := os.Stat(m.schedule)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	b, err := os.ReadFile(m.schedule)
	return b, info.Mode().Perm(), err
}

// lost says whether nothing starts this agent any more as it did before. A schedule that a release changed is fine, as
// long as it does.
func (m *Machine) lost(before *kept) bool {
	jobs := AgentJobs(before.Schedule)
	if len(jobs) == 0 {
		return false
	}
	now, _, err := m.crontab()
	return err != nil || !startsSame(jobs, AgentJobs(now))
}

func (m *Machine) keepSchedule(before *kept) (put bool, err error) {
	if !m.lost(before) {
		return true, nil
	}
	if err := putBack(m.schedule, before.Schedule, before.Mode); err != nil {
		return false, fmt.Errorf("the release removed the agent's schedule %s, and it cannot be put back: %w", m.schedule, err)
	}
	return true, fmt.Errorf("the release removed the agent's schedule %s (it was put back)", m.schedule)
}
