package main

import (
	"bytes"
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

// machine checks what a run must leave alone: the agent's own schedule, and who may sign for it; and what the release itself wants checked.
type machine struct {
	schedule string // the cron file; a machine on which there is none runs the agent in some other way
	signers  keptSigners
	log      *slog.Logger
	timeout  time.Duration
	before   []byte
	mode     fs.FileMode
}

var _ agent.Machine = (*machine)(nil)

// Schedule remembers the cron file as it is before the run.
func (m *machine) Schedule() error {
	m.before = nil
	m.signers.remember()
	info, err := os.Stat(m.schedule)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		m.mode = info.Mode().Perm()
		m.before, err = os.ReadFile(m.schedule)
	}
	if err != nil {
		return fmt.Errorf("cannot read the agent's schedule: %w", err)
	}
	return nil
}

// Verify puts the schedule back when the run removed it, and says so: else this run would have been the node's last. Then
// it runs the release's own checks.
func (m *machine) Verify(ctx context.Context, job agent.Job) error {
	if err := errors.Join(m.keepSchedule(), m.signers.check()); err != nil {
		return err
	}
	return m.validate(ctx, job)
}

// keepSchedule accepts a schedule that a release changed, as long as it still starts this agent.
func (m *machine) keepSchedule() error {
	before := agentJobs(m.before)
	if len(before) == 0 {
		return nil
	}
	now, err := os.ReadFile(m.schedule)
	if err == nil && startsSame(before, agentJobs(now)) {
		return nil
	}
	if err := os.WriteFile(m.schedule, m.before, m.mode); err != nil {
		return fmt.Errorf("the release removed the agent's schedule %s, and it cannot be put back: %w", m.schedule, err)
	}
	return fmt.Errorf("the release removed the agent's schedule %s (it was put back)", m.schedule)
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
