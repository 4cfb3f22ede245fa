package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/agent/puppet"
	"pulley/internal/cli"
	"pulley/internal/store"
)

type bootstrapOptions struct {
	*options
	installer puppet.Installer
	schedule  string
	noCron    bool
	overwrite bool
}

func newBootstrap(o *options) *cobra.Command {
	b := bootstrapOptions{options: o}
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "make this machine a node: once, on its first boot",
		Long: `bootstrap writes the agent's settings, puts the agent in place, installs Puppet when it is missing, registers this host
under those that should be alive, and runs Puppet once with a catalog that only sets up cron. From then on cron runs the
agent. It may be run again at any point, and goes on where it stopped.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return b.run(c.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&b.installer.Package, "puppet-package", "", "package that brings Puppet (default: the first that the machine's repositories have)")
	f.StringVar(&b.installer.Version, "puppet-version", "", "its version, as the package manager spells it (default: the newest)")
	f.StringVar(&b.installer.Repository, "package-repo", "", "where to get it besides: a .deb or .rpm that sets up a repository, or an apt line 'deb …'")
	f.StringVar(&b.schedule, "schedule", "*/5 * * * *", "when cron starts the agent, five fields")
	f.BoolVar(&b.noCron, "no-cron", false, "no schedule: something else starts the agent (`pulley-agent daemon`)")
	f.BoolVar(&b.overwrite, "overwrite", false, "write the settings anew where the command line says something else than the file")
	return cmd
}

// bootstrap is the work of one start.
type bootstrap struct {
	bootstrapOptions
	config
	log *slog.Logger
}

// run does the steps in their order. Each looks first whether there is anything left for it to do.
func (o bootstrapOptions) run(ctx context.Context) error {
	o.bootstraps = true
	c, err := o.load()
	if err != nil {
		return err
	}
	if c.root != "/" && !o.noCron {
		return cli.Usagef("cannot set up cron under --root %s: cron is this machine's own\nwith --no-cron, something else has to start `pulley-agent run --root %s`", c.root, c.root)
	}
	for _, path := range []*string{&c.path, &c.store.CACert, &c.store.Cert, &c.store.Key, &c.AllowedSigners, &c.RevokedSigners} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil { // cron starts the agent in another folder
			return fmt.Errorf("cannot use %s: %w", *path, err)
		}
	}
	b := &bootstrap{bootstrapOptions: o, config: c, log: o.logger()}
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"write the settings", b.writeSettings},
		{"put the agent in place", b.placeAgent},
		{"install Puppet", b.installPuppet},
		{"register", b.register},
		{"set up the schedule", b.setUpSchedule},
	} {
		start := o.env.Now()
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("cannot %s: %w", s.name, err)
		}
		b.log.Info("bootstrap", "step", s.name, "took", o.env.Now().Sub(start).Round(time.Millisecond))
	}
	fmt.Fprintf(o.env.Stdout, "%s: is a node of %s\n", c.identity.Node, c.identity.Environment)
	return nil
}

// writeSettings keeps what the command line said for the runs that cron starts. A file that is there stays as it is, as
// long as those runs do what was said here: it is the operator's, or the userdata's.
func (b *bootstrap) writeSettings(context.Context) error {
	if _, err := os.Stat(b.path); err == nil && !b.overwrite {
		return b.agrees()
	}
	settings := b.file
	settings.Node, settings.Role, settings.Environment = b.identity.Node, b.identity.Role, b.identity.Environment
	settings.Endpoints, settings.Prefix = b.store.Endpoints, b.store.Prefix
	settings.CACert, settings.Cert, settings.Key = b.store.CACert, b.store.Cert, b.store.Key
	text, err := encodeYAML(settings)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(b.path), 0o755); err != nil {
		return err
	}
	return writeWhole(b.path, text, 0o600)
}

// agrees compares what was said here with what the file says alone, as to the runs that cron starts.
func (b *bootstrap) agrees() error {
	env := b.env
	env.Getenv = func(string) string { return "" }
	alone, err := (&options{env: env, root: b.root, config: b.path}).load()
	if err != nil {
		return fmt.Errorf("%w\nthis time the command line said it; `--overwrite` writes it into %s", err, b.path)
	}
	var differ []string
	for _, s := range []struct{ key, file, said string }{
		{"node", alone.identity.Node, b.identity.Node},
		{"role", alone.identity.Role, b.identity.Role},
		{"environment", alone.identity.Environment, b.identity.Environment},
		{"endpoints", strings.Join(alone.store.Endpoints, ","), strings.Join(b.store.Endpoints, ",")},
		{"prefix", alone.store.Prefix, b.store.Prefix},
		{"cacert", alone.store.CACert, b.store.CACert},
		{"cert", alone.store.Cert, b.store.Cert},
		{"key", alone.store.Key, b.store.Key},
		{"allowed_signers", alone.AllowedSigners, b.AllowedSigners},
		{"revoked_signers", alone.RevokedSigners, b.RevokedSigners},
		{"mirrors", strings.Join(alone.Mirrors, ","), strings.Join(b.Mirrors, ",")},
	} {
		if s.file != s.said {
			differ = append(differ, fmt.Sprintf("%s is %q there and %q here", s.key, s.file, s.said))
		}
	}
	if differ == nil {
		return nil
	}
	return fmt.Errorf("%s says something else than the command line: %s\nleave out what is in the file, or write it anew with `--overwrite`",
		b.path, strings.Join(differ, "; "))
}

const agentPath = "usr/local/bin/pulley-agent"

// placeAgent copies this very program to where cron looks for it, in the place of any other.
func (b *bootstrap) placeAgent(context.Context) error {
	target := filepath.Join(b.root, agentPath)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	there, err := os.ReadFile(target)
	if info, statErr := os.Stat(target); err == nil && statErr == nil && info.Mode()&0o111 != 0 && bytes.Equal(there, program) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return writeWhole(target, program, 0o755)
}

func (b *bootstrap) installPuppet(ctx context.Context) error {
	b.installer.Logger = b.log
	if program := b.Puppet.Program; program != "" {
		if _, err := os.Stat(program); err == nil {
			return nil
		}
	}
	return b.installer.Ensure(ctx)
}

// register puts this host on the list of those that should be alive. What is there already and says the same stays, with
// its time.
func (b *bootstrap) register(ctx context.Context) error {
	s, err := store.Open(b.config.store)
	if err != nil {
		return err
	}
	host := b.host()
	d, err := s.Desire(ctx, b.identity)
	if err == nil && (d.Host == nil || !sameHost(*d.Host, host)) {
		if d.Host != nil && d.Host.MachineID != "" && d.Host.MachineID != host.MachineID {
			b.log.Warn("another machine had this name", "node", host.Node, "machine", d.Host.MachineID, "registered", d.Host.At)
		}
		err = s.Register(ctx, b.identity.Environment, host)
	}
	return errors.Join(err, s.Close())
}

func (b *bootstrap) host() agent.Host {
	name, _ := os.Hostname() // shown to people only
	return agent.Host{
		Node: b.identity.Node, Role: b.identity.Role, Hostname: name, Addresses: addresses(), MachineID: machineID(),
		At: b.env.Now().UTC().Truncate(time.Second), By: "bootstrap",
	}
}

func sameHost(a, b agent.Host) bool {
	return a.Node == b.Node && a.Role == b.Role && a.Hostname == b.Hostname && a.MachineID == b.MachineID &&
		strings.Join(a.Addresses, " ") == strings.Join(b.Addresses, " ")
}

// maxAddresses keeps a host's entry small on machines with an address for each container.
const maxAddresses = 8

// addresses are the machine's own global ones, in the kernel's order.
func addresses() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var found []string
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && len(found) < maxAddresses {
			found = append(found, ip.IP.String())
		}
	}
	return found
}

// setUpSchedule runs Puppet once, with a catalog that only sets up cron. A node that has a release keeps the schedule
// that the release gave it.
func (b *bootstrap) setUpSchedule(ctx context.Context) error {
	if b.noCron {
		return nil
	}
	n, err := b.open(ctx, b.env.Version, b.env.Now, b.log)
	if err != nil {
		return err
	}
	return errors.Join(b.firstRun(ctx, n), n.close())
}

func (b *bootstrap) firstRun(ctx context.Context, n *node) error {
	state, err := n.disk.Load()
	var damaged *agent.DamagedError
	if err != nil && !errors.As(err, &damaged) { // a damaged one is for the next run to put aside
		return err
	}
	schedule, err := os.ReadFile(b.config.schedule())
	if err == nil && len(agentJobs(schedule)) > 0 && !state.LastGood.IsZero() {
		return nil
	}
	tree := filepath.Join(b.stateDir(), "bootstrap")
	if err := writeBootstrapTree(tree, b.bootstrapOptions.schedule, b.path); err != nil {
		return err
	}
	defer os.RemoveAll(tree) // what is left of it is written anew by the next start
	result, err := n.puppet.Apply(ctx, agent.Job{Identity: b.identity, ID: "bootstrap", Tree: tree})
	if err != nil {
		return err
	}
	if result.Kind != agent.Success {
		return fmt.Errorf("the first run of Puppet did not succeed: %s", cli.Clean(result.Problem))
	}
	return nil
}
