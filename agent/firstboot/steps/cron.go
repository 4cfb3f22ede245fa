package steps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pulley/agent"
	"pulley/agent/host"
	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/internal/bounded"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/model"
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
		var state model.State
		state, err = disk.Load()
		err = errors.Join(err, disk.Close())
		if schedule, missing := bounded.ReadFile(c.Crontab(), nodeconfig.MaxFileBytes); err == nil && missing == nil && len(host.AgentJobs(schedule)) > 0 && !state.LastGood.IsZero() {
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

// setUpSchedule runs Puppet once, with a catalog that only sets up cron: with the module pulley and the data of the
// promoted release, else with the module of this program and the schedule of the plan.
func (b *cron) setUpSchedule(ctx context.Context) error {
	c, err := b.known()
	if err != nil {
		return err
	}
	if err := host.CronRefuses(b.Root, b.Env.Now()); err != nil {
		return err
	}
	n, err := b.Setup(c).Open(ctx)
	if errors.Is(err, agent.ErrLocked) {
		return firstboot.Passing(err)
	}
	if err != nil {
		return err
	}
	switch err := b.fromRelease(ctx, n, c.Crontab()); {
	case err == nil:
		return n.Close()
	case errors.Is(err, errNoModule):
	default: // the first run of the release names its problem to everybody
		b.Log.Warn("the schedule is the one of the plan until the first run", "cause", err)
	}
	return errors.Join(SetUpCron(ctx, n, b.plan.Schedule), n.Close())
}

// errNoModule means that no release is promoted, or that it has no module pulley.
var errNoModule = errors.New("there is no module pulley")

// fromRelease stages the promoted release and its data, and applies its class pulley and nothing else. The first tick
// then has nothing to fetch.
func (b *cron) fromRelease(ctx context.Context, n *node.Node, crontab string) error {
	job, done, err := n.Stage(ctx)
	if err != nil {
		return fmt.Errorf("cannot stage the promoted release: %w", err)
	}
	defer done()
	found, err := filepath.Glob(filepath.Join(job.Tree, "*", "pulley", "manifests", "init.pp"))
	if err != nil || job.Tree == "" || len(found) == 0 {
		return errNoModule
	}
	b.Log.Info("staged the promoted release", "release", job.Target.Release, "data", job.Target.Data)
	command, err := agentCommand(n.Path)
	if err != nil {
		return err
	}
	job.ID, job.Code = "bootstrap", "include pulley\n"
	if command != "" {
		job.Code = fmt.Sprintf("class { 'pulley': command => '%s' }\n", command)
	}
	result, err := n.Puppet.Apply(ctx, job)
	if err != nil {
		return err
	}
	if result.Kind != model.Success {
		return fmt.Errorf("release %s cannot set up the schedule: %s", job.Target.Release, cli.Clean(result.Problem.String()))
	}
	if text, err := bounded.ReadFile(crontab, nodeconfig.MaxFileBytes); err != nil || len(host.AgentJobs(text)) == 0 {
		return fmt.Errorf("release %s sets up no schedule in %s", job.Target.Release, crontab)
	}
	return nil
}

// agentCommand returns the command of the schedule for an agent with these settings; "" is the default of the module.
func agentCommand(config string) (string, error) {
	if strings.ContainsAny(config, "'\\\n\r%") {
		return "", fmt.Errorf("cannot start the agent from cron with the settings %s: cron and Puppet interpret some of its characters", config)
	}
	if config == "/etc/pulley/agent.yaml" {
		return "", nil
	}
	return "/" + nodeconfig.AgentPath + " run --splay --config " + config, nil
}

// SetUpCron runs Puppet with a catalog that makes cron start this agent, and nothing else.
func SetUpCron(ctx context.Context, n *node.Node, schedule string) error {
	tree := filepath.Join(n.StateDir(), "bootstrap")
	if err := writeBootstrapTree(tree, schedule, n.Path); err != nil {
		return err
	}
	defer os.RemoveAll(tree) // the next start writes it again
	result, err := n.Puppet.Apply(ctx, model.Job{Identity: n.Identity, ID: "bootstrap", Tree: tree})
	if err != nil {
		return err
	}
	if result.Kind != model.Success {
		return fmt.Errorf("the first run of Puppet did not succeed: %s", cli.Clean(result.Problem.String()))
	}
	return nil
}

// writeBootstrapTree writes a release with one module, which manages the agent's schedule, and one class.
func writeBootstrapTree(dir, cron, config string) error {
	if err := CheckSchedule(cron); err != nil {
		return err
	}
	command, err := agentCommand(config)
	if err != nil {
		return err
	}
	command = cmp.Or(command, "/"+nodeconfig.AgentPath+" run --splay")
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
