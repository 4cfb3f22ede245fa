package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/atomicfile"
	"pulley/internal/join"
)

func newLeave(o *options) *cobra.Command {
	var atPoweroff bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Remove this machine from the fleet and reject its certificate from now on",
		Long: `leave tells pulley serve that this node goes for good: its certificate is revoked, and it is no longer on the list of hosts
that should be alive. Its identity is removed from this machine, and no runs happen here any more. What Puppet set up stays.

EXIT STATUS
  0 left, or left before; 1 failed, 2 wrong usage`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.leave(c.Context(), atPoweroff) },
	}
	cmd.Flags().BoolVar(&atPoweroff, "at-poweroff", false, "only while systemd powers the machine off; not when it reboots")
	return cmd
}

// leaveTimeout bounds the whole of it: a machine that is powered off does not wait for long.
const leaveTimeout = time.Minute

func (o *options) leave(ctx context.Context, atPoweroff bool) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if atPoweroff {
		going, err := poweringOff(ctx)
		if err != nil {
			return fmt.Errorf("cannot tell whether this machine is powered off: %w", err)
		}
		if !going {
			fmt.Fprintln(o.env.Stdout, "this machine is not powered off: it stays in the fleet")
			return nil
		}
	}
	c, err := o.load()
	if err != nil {
		return err
	}
	if len(c.Servers) == 0 {
		return fmt.Errorf("cannot leave: there is no server to leave at: no `servers:` in %s\nan operator takes it off with `pulley nodes remove %s -e %s`",
			c.Path, c.Identity.Node, c.Identity.Environment)
	}
	client, err := c.ServeClient(c.Servers)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot leave: this machine has no identity in %s: it left before, or never joined", c.IdentityFile())
	}
	if err != nil {
		return err
	}
	err = client.Leave(ctx)
	var refused *join.RefusedError
	if errors.As(err, &refused) && (refused.Reason == join.WasRemoved || refused.Reason == join.WrongCertificate || refused.Reason == join.UntrustedCertificate) {
		err = nil // it left before: a crash came before its identity was removed, or an operator
	}
	if err != nil {
		return fmt.Errorf("cannot leave: %w", err)
	}
	reason := fmt.Sprintf("it left the fleet (%s, %s)", o.env.User, o.env.Now().UTC().Format("2006-01-02 15:04Z"))
	if err := o.withDisk(func(d *agent.Disk) error { return d.Disable(reason) }); err != nil {
		return err
	}
	for _, path := range []string{c.IdentityFile(), c.JoinKeyFile()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove the identity: %w", err)
		}
	}
	fmt.Fprintf(o.env.Stdout, "%s: left %s\n", c.Identity.Node, c.Identity.Environment)
	return nil
}

func poweringOff(ctx context.Context) (bool, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "list-jobs", "--no-legend", "--plain", "--full").Output()
	return endsForGood(string(out)), err
}

// endsForGood reads systemd's jobs: a machine that is powered off or halted has a start of that target among them, and none
// of the reboot's.
func endsForGood(jobs string) bool {
	var starts []string
	for line := range strings.Lines(jobs) {
		f := strings.Fields(line) // number, unit, type, state
		if len(f) >= 3 && f[2] == "start" {
			starts = append(starts, f[1])
		}
	}
	has := func(target string) bool { return slices.Contains(starts, target) }
	return (has("poweroff.target") || has("halt.target")) && !has("reboot.target") && !has("kexec.target") && !has("soft-reboot.target")
}

// A unit that does nothing but leave when the machine goes. It starts after the network, so it stops before it.
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

func (b *bootstrap) leavesAtPoweroff() bool {
	text, err := os.ReadFile(b.path(leaveUnit))
	_, linked := os.Lstat(b.path(leaveWanted))
	return err == nil && string(text) == leaveText && linked == nil
}

// leaveAtPoweroff sets the unit up and, as what was never started is never stopped, starts it.
func (b *bootstrap) leaveAtPoweroff(ctx context.Context) error {
	if !b.systemd() {
		return errors.New("this machine has no systemd, which tells a poweroff from a reboot\nleave out `leave: poweroff`; a hook of the autoscaling group can run `pulley-agent leave`")
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
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot run systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
