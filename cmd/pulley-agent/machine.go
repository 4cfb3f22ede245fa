package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"pulley/agent"
)

// validateTimeout is how long one script of validate.d may take.
const validateTimeout = 5 * time.Minute

// machine keeps what a run must leave alone: the agent's own schedule, and who may sign for it; and checks what the release
// itself wants checked.
type machine struct {
	schedule string // the cron file; a machine on which there is none runs the agent in some other way
	signers  keptSigners
	kept     string // file of what both were before a run
	log      *slog.Logger
	timeout  time.Duration
}

var _ agent.Machine = (*machine)(nil)

// Remember keeps both as they are before a run. What an earlier run spoilt and nobody could put back yet stays as it was
// kept then: else what is spoilt would be what there is to go back to.
func (m *machine) Remember() error {
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
func (m *machine) Mend() error {
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
func (m *machine) Verify(ctx context.Context, job agent.Job) error {
	return m.validate(ctx, job)
}

// crontab is the agent's cron file; nil when there is none.
func (m *machine) crontab() ([]byte, fs.FileMode, error) {
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
func (m *machine) lost(before *kept) bool {
	jobs := agentJobs(before.Schedule)
	if len(jobs) == 0 {
		return false
	}
	now, _, err := m.crontab()
	return err != nil || !startsSame(jobs, agentJobs(now))
}

func (m *machine) keepSchedule(before *kept) (put bool, err error) {
	if !m.lost(before) {
		return true, nil
	}
	if err := putBack(m.schedule, before.Schedule, before.Mode); err != nil {
		return false, fmt.Errorf("the release removed the agent's schedule %s, and it cannot be put back: %w", m.schedule, err)
	}
	return true, fmt.Errorf("the release removed the agent's schedule %s (it was put back)", m.schedule)
}

// validate runs the executables of the release's validate.d in the order of their names; the first that fails is the
// verdict.
func (m *machine) validate(ctx context.Context, job agent.Job) error {
	dir := filepath.Join(job.Tree, "validate.d")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read validate.d: %w", err)
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		if err := m.check(ctx, filepath.Join(dir, e.Name()), job); err != nil {
			return err
		}
	}
	return nil
}

const shownOutput = 600 // bytes of a failed check's output

func (m *machine) check(ctx context.Context, script string, job agent.Job) error {
	parent := ctx
	ctx, cancel := context.WithTimeout(parent, m.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, script)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root",
		"PULLEY_NODE=" + job.Node, "PULLEY_ROLE=" + job.Role, "PULLEY_ENVIRONMENT=" + job.Environment,
		"PULLEY_RELEASE=" + job.Target.Release, "PULLEY_TREE=" + job.Tree,
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	output := &tail{limit: shownOutput}
	cmd.Stdout, cmd.Stderr = output, output
	m.log.Info("checks the release", "command", script)
	err := cmd.Run()
	if err == nil {
		return nil
	}
	switch {
	case parent.Err() != nil:
		err = parent.Err()
	case ctx.Err() != nil:
		err = fmt.Errorf("it took longer than %s", m.timeout)
	}
	return fmt.Errorf("validate.d/%s: %w: %s", filepath.Base(script), err, bytes.TrimSpace(output.bytes))
}

// tail keeps the last bytes that are written to it.
type tail struct {
	limit int
	bytes []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p...)
	if extra := len(t.bytes) - t.limit; extra > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[extra:]...)
	}
	return len(p), nil
}
