// Package host manages the machine around a Puppet run. It restores the agent's schedule and the lists of signers after
// a release that damaged them, and it runs the release's checks and hooks. It must never decide whether Puppet runs.
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
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/pattern"
	"pulley/internal/release/trust"
)

// Machine restores the agent's schedule and the lists of signers after a run that damaged them, and runs a release's
// scripts.
type Machine struct {
	schedule string // the cron file; without it, something other than cron runs the agent
	signers  keptSigners
	kept     string // copies of the schedule and the lists from before a run
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

// Remember copies both before a run. It keeps a copy by an earlier run that is not restored yet.
func (m *Machine) Remember() error {
	before, err := loadKept(m.kept)
	if err != nil {
		m.log.Warn("the copies of the schedule and the lists of signers are damaged; the agent makes new ones", "err", err)
	}
	k := kept{Signers: m.signers.remember()}
	if k.Schedule, k.Mode, err = m.crontab(); err != nil {
		return fmt.Errorf("cannot read the agent's schedule: %w", err)
	}
	if before != nil && m.lost(before) {
		k.Schedule, k.Mode = before.Schedule, before.Mode
	}
	if before != nil && m.signers.damage(before.Signers) != nil {
		k.Signers = before.Signers
	}
	return k.save(m.kept)
}

// Restore restores the schedule and the lists. Without them, the run could be the node's last one.
func (m *Machine) Restore() error {
	before, err := loadKept(m.kept)
	if before == nil {
		return err
	}
	scheduled, scheduleErr := m.keepSchedule(before)
	listed, listErr := m.signers.restoreDamaged(before.Signers)
	if err = both(scheduleErr, listErr); !scheduled || !listed {
		return err // keep the copies for the next tick
	}
	if removeErr := os.Remove(m.kept); removeErr != nil {
		return errors.Join(err, fmt.Errorf("cannot remove the copies of the schedule and the lists of signers: %w", removeErr))
	}
	return err
}

// both joins two errors into one line, for a run's problem.
func both(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// Verify runs the release's own checks.
func (m *Machine) Verify(ctx context.Context, job model.Job) error {
	return scripts{folder: "validate.d", shown: 600, timeout: m.timeout, log: m.log}.run(ctx, job)
}

// maxWhy limits the reason that a hook receives, in bytes.
const maxWhy = 1000

// Retire runs the release's retire hooks. Their output is shortened to fit into an answer.
func (m *Machine) Retire(ctx context.Context, job model.Job, why model.Prose) error {
	env := []string{"PULLEY_WHY=" + clip.Line(string(why), maxWhy)}
	return scripts{folder: "retire.d", env: env, shown: 140, timeout: m.timeout, log: m.log}.run(ctx, job)
}

// Tell runs the release's hooks for changed nodes.
func (m *Machine) Tell(ctx context.Context, job model.Job, difference []byte, after string, acknowledge func(string) error) error {
	return scripts{folder: "hosts.d", shown: 600, timeout: m.timeout, log: m.log, stdin: difference, after: after, done: acknowledge}.run(ctx, job)
}

// crontab returns the agent's cron file, or nil if it is missing.
func (m *Machine) crontab() ([]byte, fs.FileMode, error) {
	info, err := os.Stat(m.schedule)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	b, err := bounded.ReadFile(m.schedule, 1<<20)
	return b, info.Mode().Perm(), err
}

// lost reports whether no schedule starts this agent any more. A changed schedule is fine if it starts the agent with
// the same settings.
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
		return false, fmt.Errorf("the release removed the agent's schedule %s, and it cannot be restored: %w", m.schedule, err)
	}
	return true, fmt.Errorf("the release removed the agent's schedule %s (it was restored)", m.schedule)
}

// A CronJob is a line of a crontab that runs the agent: its settings file and its root ("" means the default).
type CronJob struct{ config, root string }

// cronLine matches a line of /etc/cron.d, see crontab(5): five fields or an @word, the user, the command.
var cronLine = pattern.Lazy(`^\s*(?:@[a-z]+|[-0-9*/,~A-Za-z]+(?:\s+[-0-9*/,~A-Za-z]+){4})\s+[^\s=]+\s+(\S.*)$`)

var agentRun = pattern.Lazy(`(?:^|[\s/'"])pulley-agent\s+run(?:\s|['"]|$)`)

// AgentJobs returns the jobs that run the agent. It skips comments, variables, and commands that only name the agent.
func AgentJobs(crontab []byte) []CronJob {
	var jobs []CronJob
	for line := range strings.Lines(string(crontab)) {
		m := cronLine().FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		command, _, _ := strings.Cut(m[1], " #")
		if agentRun().MatchString(command) {
			jobs = append(jobs, CronJob{config: flagOf(command, "--config"), root: flagOf(command, "--root")})
		}
	}
	return jobs
}

// startsSame reports whether a job still starts an agent with the settings and the root of an earlier job. A setting
// that no earlier job named does not count.
func startsSame(before, now []CronJob) bool {
	return slices.ContainsFunc(before, func(b CronJob) bool {
		return slices.ContainsFunc(now, func(n CronJob) bool {
			return (b.config == "" || b.config == n.config) && (b.root == "" || b.root == n.root)
		})
	})
}

// flagOf returns the value of a flag in a command line, or "".
func flagOf(command, flag string) string {
	words := strings.Fields(command)
	for i, w := range words {
		if value, ok := strings.CutPrefix(w, flag+"="); ok {
			return value
		}
		if w == flag && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}
