package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/agent/nodeconfig"
	"pulley/internal/child"
	"pulley/internal/cli"
	"pulley/internal/join"
	"pulley/internal/model"
)

// leaveTimeout limits the verb: a machine that powers off does not wait for long.
const leaveTimeout = time.Minute

// Leave removes this machine from its fleet, and returns its former node. With atPoweroff, it does so only while
// systemd powers the machine off; left reports whether it did.
func Leave(ctx context.Context, flags nodeconfig.Flags, env cli.Env, atPoweroff bool) (node model.Identity, left bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if atPoweroff {
		going, err := poweringOff(ctx)
		if err != nil {
			return node, false, fmt.Errorf("cannot determine whether this machine is powered off: %w", err)
		}
		if !going {
			return node, false, nil
		}
	}
	c, err := flags.Load(env)
	if err != nil {
		return node, false, err
	}
	if len(c.Servers) == 0 {
		return node, false, fmt.Errorf("cannot leave: no `servers:` in %s\nan operator can remove this node: `pulley nodes remove %s -e %s`",
			c.Path, c.Identity.Node, c.Identity.Environment)
	}
	client, err := c.ServeClient(c.Servers)
	if errors.Is(err, fs.ErrNotExist) {
		return node, false, fmt.Errorf("cannot leave: this machine has no identity in %s: it left before, or never joined", c.IdentityFile())
	}
	if err != nil {
		return node, false, err
	}
	if _, err := leaveFleet(ctx, client); err != nil {
		return node, false, fmt.Errorf("cannot leave: %w", err)
	}
	reason := fmt.Sprintf("it left the fleet (%s, %s)", env.User, env.Now().UTC().Format("2006-01-02 15:04Z"))
	b := &boot{Options: Options{Flags: nodeconfig.Flags{Root: c.Root}}}
	if err := b.withDisk(func(d *agent.Disk) error { return d.AwaitFirstBoot(reason) }); err != nil {
		return node, false, err
	}
	if err = os.Remove(c.Crontab()); errors.Is(err, fs.ErrNotExist) { // cron would start an agent without a node for ever
		err = nil
	}
	return c.Identity, true, errors.Join(err, forgetCertname(c), forgetKeys(c.Root))
}

// leaveFleet ends the membership of a node. unknown means that serve does not know its certificate, as after a restore: the node may be listed.
func leaveFleet(ctx context.Context, client *join.Client) (unknown bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	err = client.Leave(ctx)
	var refused *join.RefusedError
	if errors.As(err, &refused) && (refused.Reason == join.WasRemoved || refused.Reason == join.WrongCertificate || refused.Reason == join.UntrustedCertificate) {
		return refused.Reason != join.WasRemoved, nil // it left before: by an operator, or before a crash that kept its identity
	}
	return false, err
}

func poweringOff(ctx context.Context) (bool, error) {
	out, err := systemctl(ctx, "list-jobs", "--no-legend", "--plain", "--full")
	return endsForGood(string(out)), err
}

// systemdTime exceeds every call of systemd, except the start of a service that hangs.
const systemdTime = 2 * time.Minute

func systemctl(ctx context.Context, args ...string) ([]byte, error) {
	return systemd(ctx, "systemctl", args...)
}

// systemd runs a program of systemd, and returns its output.
func systemd(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, systemdTime)
	defer cancel()
	c := child.Command{Path: program, Args: args, Env: child.Filtered(os.Environ()), Grace: 5 * time.Second}
	out, err := c.Output(ctx, 1<<20)
	if err != nil {
		return out, fmt.Errorf("cannot run %s: %s", c, cli.Clean(err.Error()))
	}
	return out, nil
}

// endsForGood reads systemd's jobs. A machine that powers off or halts has a start job of that target, and none of the
// reboot target.
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
