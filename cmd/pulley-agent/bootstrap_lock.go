package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pulley/agent"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/firstboot"
	"pulley/internal/join"
	"pulley/internal/nodeconfig"
)

// bootReason is why cron's ticks wait while a first boot is under way.
const bootReason = "its first boot is under way"

// Where a reboot goes on. Userdata may have put its own script there, which fetches the agent first; it is left alone.
const (
	resumeUnit   = "etc/systemd/system/pulley-first-boot.service"
	resumeWanted = "etc/systemd/system/multi-user.target.wants/pulley-first-boot.service"
	resumeCron   = "etc/cron.d/pulley-first-boot"
	resumeScript = "var/lib/pulley/first-boot.sh"
)

// resumeHeader begins what this program wrote there itself.
const resumeHeader = "# Goes on with a first boot that a reboot cut off. Written by pulley-agent, which removes it.\n"

// lockLeft: by flags alone somebody is there who starts it again, and an agent that works goes on working.
func (b *bootstrap) lockLeft(context.Context) (string, error) {
	if !b.planned {
		return "", nil
	}
	return "go on after a reboot, keep cron's ticks away, and hold the node's name", nil
}

func (b *bootstrap) lockBoot(context.Context) error {
	if err := b.resumeAfterReboot(); err != nil {
		return fmt.Errorf("cannot make a reboot go on here: %w", err)
	}
	if err := b.keepTicksAway(); err != nil {
		return err
	}
	// Serve was told that the lock was begun. Whether the name is this machine's, if it did not answer, the join decides.
	var refused *join.RefusedError
	if errors.As(b.untold, &refused) && (refused.Reason == join.LockedByAnother || refused.Reason == join.HeldByAnother) {
		return refused
	}
	return nil
}

// keepTicksAway disables the agent. One that worked before goes on working: should this first boot fail, the machine is still
// the node that it was.
func (b *bootstrap) keepTicksAway() error {
	state, err := b.memory().Load()
	if err != nil || !state.Before.IsZero() {
		return err
	}
	return b.withDisk(func(d *agent.Disk) error {
		if reason, err := d.Disabled(); err != nil || reason != "" {
			return err // somebody else's reason is to outlive the first boot
		}
		return d.Disable(bootReason)
	})
}

// resumed is what starts this program at the next boot.
type resumed struct{ path, text string }

// resumption names the installed program once it is there: the one that was started may lie in /tmp.
func (b *bootstrap) resumption() (resumed, error) {
	program := b.path(nodeconfig.AgentPath)
	there, err := b.inPlace()
	if err == nil && !there {
		program, err = os.Executable()
	}
	if err != nil {
		return resumed{}, err
	}
	args := []string{program, "bootstrap", "--plan", b.planPath}
	if b.Root != "/" {
		args = append(args, "--root", b.Root)
	}
	if b.Flags.Path != "" {
		args = append(args, "--config", b.Flags.Path)
	}
	for _, a := range args {
		if strings.ContainsAny(a, " \t\r\n%'\"\\$") {
			return resumed{}, fmt.Errorf("%q has characters that systemd and cron read otherwise", a)
		}
	}
	if !b.systemd() {
		return resumed{resumeCron, resumeHeader + "@reboot root " + strings.Join(args, " ") + "\n"}, nil
	}
	return resumed{resumeUnit, resumeHeader + `[Unit]
Description=First boot of this machine as a node of Pulley
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
ExecStart=` + strings.Join(args, " ") + `
Restart=on-failure
RestartSec=5min
RestartPreventExitStatus=2

[Install]
WantedBy=multi-user.target
`}, nil
}

// resumeAfterReboot has a reboot go on here, unless userdata's script does.
func (b *bootstrap) resumeAfterReboot() error {
	r, err := b.resumption()
	if err != nil {
		return err
	}
	if _, err := os.Stat(b.path(r.path)); errors.Is(err, fs.ErrNotExist) {
		if err := b.writeResumption(r); err != nil {
			return err
		}
	}
	if r.path == resumeUnit {
		return b.link(resumeWanted)
	}
	return nil
}

// resumesElsewhere is what a reboot should go on with, where this program wrote what names another; nil when all is well.
func (b *bootstrap) resumesElsewhere() (*resumed, error) {
	if !b.planned {
		return nil, nil
	}
	r, err := b.resumption()
	if err != nil {
		return nil, err
	}
	there, err := os.ReadFile(b.path(r.path))
	if errors.Is(err, fs.ErrNotExist) || err == nil && (string(there) == r.text || !strings.HasPrefix(string(there), resumeHeader)) {
		return nil, nil
	}
	return &r, err
}

func (b *bootstrap) writeResumption(r resumed) error {
	path := b.path(r.path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, []byte(r.text), 0o644)
}

// link has systemd start a unit with the machine (systemctl(1), enable).
func (b *bootstrap) link(wanted string) error {
	path := b.path(wanted)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Symlink("../"+filepath.Base(path), path)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (b *bootstrap) enableLeft(context.Context) (string, error) {
	var left []string
	d, err := agent.ReadDisk(b.stateDir())
	if err == nil {
		var reason agent.Prose
		if reason, err = d.Disabled(); reason == bootReason {
			left = append(left, "let cron's ticks work")
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

// enable takes back what the lock did to the agent, and nobody else's word.
func (b *bootstrap) enable(ctx context.Context) error {
	if b.plan.Leave == firstboot.LeavePoweroff {
		if err := b.leaveAtPoweroff(ctx); err != nil {
			return err
		}
	}
	return b.withDisk(func(d *agent.Disk) error {
		if reason, err := d.Disabled(); err != nil || reason != bootReason {
			return err
		}
		return d.Enable()
	})
}

func (b *bootstrap) notifyLeft(context.Context) (string, error) {
	if len(b.plan.Servers) == 0 {
		return "", nil
	}
	return "tell pulley serve, which tells people", nil
}

func (b *bootstrap) notify(ctx context.Context) error {
	b.finished = true
	return passingJoin(b.tell(ctx, join.Progress{Step: string(firstboot.Notify), State: string(firstboot.Done), Finished: true}))
}

func (b *bootstrap) unlockLeft(context.Context) (string, error) {
	if !b.planned {
		return "", nil
	}
	return "remove the token, and what goes on after a reboot", nil
}

// unlockBoot removes the token from the plan. What goes on after a reboot is removed when the state says that nothing is left
// to go on with: see tidy.
func (b *bootstrap) unlockBoot(context.Context) error {
	text, err := bounded.ReadFile(b.planPath, nodeconfig.MaxFileBytes)
	if err != nil {
		return err
	}
	plan, err := firstboot.ParsePlan(b.planPath, text)
	if err != nil || plan.Token == "" {
		return err
	}
	plan.Token = ""
	if text, err = plan.Encode(); err != nil {
		return err
	}
	return atomicfile.Write(b.planPath, text, 0o600)
}

// tidy removes what went on after a reboot, whoever unlocks, and a token that came back meanwhile. It comes last: without it
// the next boot finds that all is done, and tidies.
func (b *bootstrap) tidy() error {
	if !b.planned {
		return nil
	}
	if b.plan.Steps[string(firstboot.Unlock)] == "" {
		if err := b.unlockBoot(context.Background()); err != nil {
			return fmt.Errorf("cannot remove the token from the plan: %w", err)
		}
	}
	if err := b.removeFiles(resumeScript, resumeWanted, resumeUnit, resumeCron); err != nil {
		return fmt.Errorf("cannot remove what goes on with a first boot: %w", err)
	}
	return nil
}
