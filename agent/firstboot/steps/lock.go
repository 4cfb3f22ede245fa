package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/firstboot"
	"pulley/internal/join"
)

// lock begins and ends a first boot: it manages the unit that resumes it, the ticks of cron, and the token.
type lock struct {
	*boot
	*program
	*member
}

// lockLeft returns the remaining work of the lock. With flags only, an operator restarts the first boot, and a working
// agent keeps working.
func (b *lock) lockLeft(context.Context) (string, error) {
	if !b.planned {
		return "", nil
	}
	return "resume after a reboot, keep cron's ticks away, and reserve the node's name", nil
}

func (b *lock) lockBoot(context.Context) error {
	if err := b.resumeAfterReboot(); err != nil {
		return fmt.Errorf("cannot make a reboot resume the first boot: %w", err)
	}
	if err := b.keepTicksAway(); err != nil {
		return err
	}
	// Serve got the report of this step. If it did not answer, the join decides on the name.
	var refused *join.RefusedError
	if errors.As(b.unreported, &refused) && (refused.Reason == join.LockedByAnother || refused.Reason == join.HeldByAnother) {
		return refused
	}
	return nil
}

// keepTicksAway disables the agent. An agent that worked before keeps working: if this first boot fails, the node stays
// unchanged.
func (b *lock) keepTicksAway() error {
	state, err := b.memory().Load()
	if err != nil || !state.Before.IsZero() {
		return err
	}
	return b.withDisk(func(d *agent.Disk) error { return d.AwaitFirstBoot("") })
}

func (b *lock) enableLeft(context.Context) (string, error) {
	var left []string
	d, err := agent.ReadDisk(b.stateDir())
	if err == nil {
		var booting bool
		if booting, err = d.InFirstBoot(); booting {
			left = append(left, "enable cron's ticks")
		}
		err = errors.Join(err, d.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if b.plan.Leave == firstboot.LeavePoweroff && !b.leavesAtPoweroff() {
		left = append(left, "leave the fleet when the machine is powered off")
	}
	return strings.Join(left, ", and "), nil
}

// enable enables the agent that the lock disabled; an operator's reason stays.
func (b *lock) enable(ctx context.Context) error {
	if b.plan.Leave == firstboot.LeavePoweroff {
		if err := b.leaveAtPoweroff(ctx); err != nil {
			return err
		}
	}
	return b.withDisk((*agent.Disk).EndFirstBoot)
}

func (b *member) notifyLeft(context.Context) (string, error) {
	if len(b.plan.Servers) == 0 {
		return "", nil
	}
	return "notify pulley serve", nil
}

func (b *member) notify(ctx context.Context) error {
	b.finished = true
	return passingJoin(b.report(ctx, join.Progress{Step: string(firstboot.Notify), State: string(firstboot.Done), Finished: true}))
}

func (b *lock) unlockLeft(context.Context) (string, error) {
	if !b.planned {
		return "", nil
	}
	return "remove the token, and the unit that resumes after a reboot", nil
}

// unlockBoot removes the token from the plan. tidy removes the unit, when the state has no step left.
func (b *lock) unlockBoot(context.Context) error {
	text, err := bounded.ReadFile(b.PlanPath, nodeconfig.MaxFileBytes)
	if err != nil {
		return err
	}
	plan, err := firstboot.ParsePlan(b.PlanPath, text)
	if err != nil || plan.Token == "" {
		return err
	}
	plan.Token = ""
	if text, err = plan.Encode(); err != nil {
		return err
	}
	return atomicfile.Write(b.PlanPath, text, 0o600)
}

// tidy removes the unit that resumes after a reboot, and a token that reappeared meanwhile. It comes last: if it is
// interrupted, the next boot repeats it.
func (b *lock) tidy() error {
	if !b.planned {
		return nil
	}
	if b.plan.Steps[string(firstboot.Unlock)] == "" {
		if err := b.unlockBoot(context.Background()); err != nil {
			return fmt.Errorf("cannot remove the token from the plan: %w", err)
		}
	}
	if err := b.removeFiles(resumeScript, resumeWanted, resumeUnit, resumeCron); err != nil {
		return fmt.Errorf("cannot remove the unit of the first boot: %w", err)
	}
	return nil
}

// The unit runs leave when the machine powers off. It starts after the network, and therefore stops before it.
const (
	leaveUnit   = "etc/systemd/system/pulley-leave.service"
	leaveWanted = "etc/systemd/system/multi-user.target.wants/pulley-leave.service"
	leaveText   = `# Takes this machine off the fleet when it is powered off. Written by pulley-agent at the first boot.
[Unit]
Description=Leaves the fleet of Pulley when this machine is powered off
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=/usr/local/bin/pulley-agent leave --at-poweroff
TimeoutStopSec=70

[Install]
WantedBy=multi-user.target
`
)

func (b *lock) leavesAtPoweroff() bool {
	text, err := os.ReadFile(b.path(leaveUnit))
	_, linked := os.Lstat(b.path(leaveWanted))
	return err == nil && string(text) == leaveText && linked == nil
}

// leaveAtPoweroff installs the unit and starts it: a unit that never started is never stopped.
func (b *lock) leaveAtPoweroff(ctx context.Context) error {
	if !b.systemd() {
		return errors.New("this machine has no systemd to distinguish a poweroff from a reboot\nleave out `leave: poweroff`; a hook of the autoscaling group can run `pulley-agent leave`")
	}
	if err := os.MkdirAll(filepath.Dir(b.path(leaveUnit)), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(b.path(leaveUnit), []byte(leaveText), 0o644); err != nil {
		return err
	}
	if err := b.link(leaveWanted); err != nil || b.Root != "/" {
		return err
	}
	for _, args := range [][]string{{"daemon-reload"}, {"start", "--no-block", "pulley-leave.service"}} {
		if _, err := systemctl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}
