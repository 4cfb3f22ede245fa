package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pulley/agent"
	"pulley/agent/host"
	"pulley/agent/node"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/nodeconfig"
	"pulley/internal/schedule"
	"pulley/puppet"
)

// cron sets up the schedule.
type cron struct{ *boot }

// scheduleLeft returns the remaining work of the schedule. A node with a release keeps the schedule of the release.
func (b *cron) scheduleLeft(context.Context) (string, error) {
	c, err := b.known()
	if err != nil {
		return "", err
	}
	disk, err := agent.ReadDisk(c.StateDir())
	if err == nil {
		var state agent.State
		state, err = disk.Load()
		err = errors.Join(err, disk.Close())
		if schedule, missing := os.ReadFile(c.Crontab()); err == nil && missing == nil && len(host.AgentJobs(schedule)) > 0 && !state.LastGood.IsZero() {
			return "", nil
		}
	}
	var damaged *agent.DamagedError
	// the next run puts a damaged one aside
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.As(err, &damaged) {
		return "", err
	}
	return "run Puppet once, with a catalog that only sets up cron", nil
}

// setUpSchedule runs Puppet once, with a catalog that only sets up cron.
func (b *cron) setUpSchedule(ctx context.Context) error {
	c, err := b.known()
	if err != nil {
		return err
	}
	n, err := b.Setup(c).Open(ctx)
	if errors.Is(err, agent.ErrLocked) {
		return firstboot.Passing(err)
	}
	if err != nil {
		return err
	}
	return errors.Join(SetUpCron(ctx, n, b.plan.Schedule), n.Close())
}

// SetUpCron runs Puppet with a catalog that makes cron start this agent, and nothing else.
func SetUpCron(ctx context.Context, n *node.Node, schedule string) error {
	tree := filepath.Join(n.StateDir(), "bootstrap")
	if err := writeBootstrapTree(tree, schedule, n.Path); err != nil {
		return err
	}
	defer os.RemoveAll(tree) // the next start writes it again
	result, err := n.Puppet.Apply(ctx, agent.Job{Identity: n.Identity, ID: "bootstrap", Tree: tree})
	if err != nil {
		return err
	}
	if result.Kind != agent.Success {
		return fmt.Errorf("the first run of Puppet did not succeed: %s", cli.Clean(result.Problem.String()))
	}
	return nil
}

// writeBootstrapTree writes a release with one module, which manages the agent's schedule, and one class.
func writeBootstrapTree(dir, cron, config string) error {
	if err := CheckSchedule(cron); err != nil {
		return err
	}
	if strings.ContainsAny(config, "'\\\n\r%") {
		return fmt.Errorf("cannot start the agent from cron with the settings %s: cron and Puppet interpret some of its characters", config)
	}
	command := "/" + nodeconfig.AgentPath + " run --splay"
	if config != "/etc/pulley/agent.yaml" {
		command += " --config " + config
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(dir, "modules", "pulley"), puppet.Module()); err != nil {
		return err
	}
	site := fmt.Sprintf("class { 'pulley':\n  schedule => '%s',\n  command  => '%s',\n}\n", cron, command)
	if err := os.MkdirAll(filepath.Join(dir, "manifests"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifests", "site.pp"), []byte(site), 0o644)
}

// CheckSchedule refuses a schedule that cron would not accept.
func CheckSchedule(text string) error {
	if err := schedule.Check(text); err != nil {
		return cli.Usagef("cannot use schedule %q: %v\nwrite it like %s", text, err, schedule.Like)
	}
	return nil
}
