package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent/puppet"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/nodeconfig"
)

type bootstrapOptions struct {
	*options
	installer puppet.Installer
	planPath  string
	said      firstboot.Plan // by flags
	from      string
	dryRun    bool
	noCron    bool
	overwrite bool
	alone     bool
}

func newBootstrap(o *options) *cobra.Command {
	b := bootstrapOptions{options: o}
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Turn this machine into a node, on its first boot",
		Long: `bootstrap goes through the steps of a first boot: ` + steps() + `.

Userdata says in /etc/pulley/first-boot.yaml what the machine is to become; flags override it. With that file each step is
done once: a machine that is rebooted in the middle goes on by itself. Without it, flags say everything, and a start looks
at each step what is left to do. It may be run again at any point.

EXIT STATUS
  0 done, or finished before, or another one is in progress
  1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return b.run(c.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&b.planPath, "plan", "", "what the first boot is told (default <root>/"+firstboot.PlanPath+" where there is one)")
	b.said.AddFlags(f, "servers", "ca", "token", "puppet_package", "puppet_version", "package_repo", "schedule")
	f.BoolVar(&b.noCron, "no-cron", false, "no schedule: something else starts the agent, such as pulley-agent daemon")
	f.BoolVar(&b.alone, "ignore-puppet-agent", false, "set up the schedule although puppet agent seems to manage this machine")
	f.BoolVar(&b.overwrite, "overwrite", false, "write the settings anew where the command line says something else than the file")
	f.StringVar(&b.from, "from", "", "do this step, and those behind it, again")
	f.BoolVar(&b.dryRun, "dry-run", false, "say what each step would do, and change nothing")
	return cmd
}

func steps() string {
	var names []string
	for _, n := range firstboot.Names() {
		names = append(names, string(n))
	}
	return strings.Join(names, ", ")
}

// bootstrap is the work of one start.
type bootstrap struct {
	bootstrapOptions
	log      *slog.Logger
	plan     firstboot.Plan // the file, overridden by the flags
	planned  bool           // there is a file: a first boot that goes on after a reboot
	digest   string         // of the plan without its token
	given    string         // digest of the token that the file has, "" without
	self     *config        // who this machine is, once that was asked for
	named    bool           // that can be known: before its join nobody knows
	again    bool           // somebody gave a first boot that was over another token
	finished bool           // the machine is a node, and people were told
	untold   error          // what serve answered last
	waits    time.Time      // since when a time server is waited for
}

func (o bootstrapOptions) run(ctx context.Context) error {
	b, err := o.prepare()
	if err != nil {
		return err
	}
	beside, err := b.standBack(ctx)
	if err != nil {
		return err
	}
	engine := b.engine()
	opts := firstboot.Options{From: firstboot.Name(o.from)}
	if b.again && o.from == "" {
		opts.From = firstboot.Names()[0]
	}
	if o.dryRun {
		return engine.DryRun(ctx, opts, o.env.Stdout)
	}
	lock, err := b.takeLock()
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	if err := errors.Join(b.forgetCopy(), b.goDirectly(), beside.remember()); err != nil {
		return err
	}
	err = engine.Run(ctx, opts)
	if errors.Is(err, firstboot.ErrFinished) {
		fmt.Fprintln(o.env.Stdout, "the first boot of this machine is finished; --from STEP does that step, and those behind it, again")
		return b.tidy()
	}
	if err == nil {
		err = b.tidy()
	}
	if err != nil {
		return err
	}
	c, err := b.known()
	if err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "%s: is a node of %s\n", c.Identity.Node, c.Identity.Environment)
	beside.tell(o.env)
	return nil
}

// prepare reads the plan and finds out as much as can be known before the first step, so that a command line or a file that
// can't be meant changes nothing.
func (o bootstrapOptions) prepare() (*bootstrap, error) {
	o.Optional = true
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("cannot use root %s: %w", o.Root, err)
	}
	shared := *o.options
	o.options = &shared
	o.Root = root
	b := &bootstrap{bootstrapOptions: o, log: o.logger()}
	if err := b.readPlan(); err != nil {
		return nil, err
	}
	if err := b.absolute(); err != nil {
		return nil, err
	}
	b.override()
	if err := b.plan.Check(); err != nil {
		return nil, &cli.UsageError{Problem: "cannot bootstrap this machine: " + err.Error()}
	}
	if o.from != "" && !slices.Contains(firstboot.Names(), firstboot.Name(o.from)) {
		return nil, cli.Usagef("cannot start from step %q: the steps are %s", o.from, steps())
	}
	if err := checkSchedule(b.plan.Schedule); err != nil {
		return nil, err
	}
	if b.Root != "/" && b.plan.Steps[string(firstboot.Schedule)] == "" {
		return nil, cli.Usagef("cannot set up cron under --root %s: cron is this machine's own\nwith --no-cron, something else has to start `pulley-agent run --root %s`", b.Root, b.Root)
	}
	b.named = !b.joins() || b.hasJoined()
	if b.named && b.plan.Steps[string(firstboot.Join)] == "" { // else the operator's program says it
		_, err = b.known()
	}
	return b, err
}

// joins says whether this machine gets its identity from pulley serve.
func (b *bootstrap) joins() bool {
	return len(b.plan.Servers) > 0 && b.plan.Steps[string(firstboot.Join)] == ""
}

// known is who this machine is; before its join nobody knows.
func (b *bootstrap) known() (config, error) {
	if b.self == nil {
		if !b.named {
			return config{}, errors.New("the join tells which node this is")
		}
		c, err := b.load()
		if err != nil {
			return config{}, err
		}
		b.self = &c
	}
	return *b.self, nil
}

func (b *bootstrap) stateDir() string         { return nodeconfig.Under(b.Root).StateDir() }
func (b *bootstrap) memory() firstboot.Disk   { return firstboot.Disk{Dir: b.stateDir()} }
func (b *bootstrap) path(under string) string { return filepath.Join(b.Root, under) }

func (b *bootstrap) engine() *firstboot.Engine {
	e := &firstboot.Engine{
		Steps: b.steps(), Replaced: b.plan.Steps, Program: b.replacement, Machine: nodeconfig.MachineID(b.Root), Plan: b.digest, Token: b.given,
		Patient: b.planned, Log: b.log, Now: b.env.Now,
	}
	if b.planned {
		e.Memory = b.memory()
	}
	if len(b.plan.Servers) > 0 {
		e.Teller = b
	}
	return e
}

// takeLock keeps a second first boot out; nil says that there is one.
func (b *bootstrap) takeLock() (*os.File, error) {
	if err := os.MkdirAll(b.stateDir(), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the state folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(b.stateDir(), "first-boot.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of the first boot: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		fmt.Fprintln(b.env.Stdout, "another first boot is in progress")
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock the first boot: %w", err), f.Close())
	}
	return f, nil
}

// forgetCopy drops what a copied disk brought of the machine that it was copied from: its identity is that machine's.
func (b *bootstrap) forgetCopy() error {
	state, err := b.memory().Load()
	if err != nil {
		return err
	}
	if !b.joins() || b.plan.Token == "" || state.Machine == "" || state.Machine == nodeconfig.MachineID(b.Root) {
		return nil
	}
	b.log.Warn("this disk was another machine's; its identity is forgotten", "machine", state.Machine)
	for _, path := range []string{nodeconfig.Under(b.Root).IdentityFile(), nodeconfig.Under(b.Root).JoinKeyFile()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot forget another machine's identity: %w", err)
		}
	}
	return nil
}

// goDirectly keeps the plan's proxy, which userdata's script exports for its downloads, from those whom it is not for: servers
// and etcd. What this program starts is told of it anyway.
func (b *bootstrap) goDirectly() error {
	if b.plan.Proxy == "" {
		return nil
	}
	var all []error
	for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"} {
		all = append(all, os.Unsetenv(name))
	}
	return errors.Join(all...)
}

// patience of each step, with all its tries.
const (
	networkDeadline  = 5 * time.Minute
	quickDeadline    = time.Minute
	scriptsDeadline  = 30 * time.Minute
	joinDeadline     = 15 * time.Minute
	puppetDeadline   = 45 * time.Minute
	registerDeadline = 15 * time.Minute
	scheduleDeadline = 15 * time.Minute
	notifyDeadline   = time.Minute
)

// steps is the list of a first boot, in its order.
func (b *bootstrap) steps() []firstboot.Step {
	settings := "write the settings"
	if b.joins() {
		settings = "join the fleet"
	}
	return []firstboot.Step{
		{Name: firstboot.Network, Words: "wait for the network and the time", Deadline: networkDeadline, Left: b.networkLeft, Do: b.waitForNetwork},
		{Name: firstboot.Lock, Words: "lock the first boot", Deadline: quickDeadline, Left: b.lockLeft, Do: b.lockBoot},
		{Name: firstboot.Pre, Words: "run the scripts before", Deadline: scriptsDeadline, Left: b.scriptsLeft(preDir), Do: b.runScripts(firstboot.Pre, preDir)},
		{Name: firstboot.Agent, Words: "put the agent in place", Deadline: quickDeadline, Left: b.agentLeft, Do: b.placeAgent},
		{Name: firstboot.Join, Words: settings, Deadline: joinDeadline, Left: b.joinLeft, Do: b.join},
		{Name: firstboot.Hostname, Words: "name the machine", Deadline: quickDeadline, Left: b.hostnameLeft, Do: b.setHostname},
		{Name: firstboot.Puppet, Words: "install Puppet", Deadline: puppetDeadline, Left: b.puppetLeft, Do: b.installPuppet},
		{Name: firstboot.Register, Words: "register", Deadline: registerDeadline, Left: b.registerLeft, Do: b.register},
		{Name: firstboot.Schedule, Words: "set up the schedule", Deadline: scheduleDeadline, Left: b.scheduleLeft, Do: b.setUpSchedule},
		{Name: firstboot.Enable, Words: "enable the agent", Deadline: quickDeadline, Left: b.enableLeft, Do: b.enable},
		{Name: firstboot.Notify, Words: "say that the first boot is over", Deadline: notifyDeadline, Optional: true, Left: b.notifyLeft, Do: b.notify},
		{Name: firstboot.Post, Words: "run the scripts after", Deadline: scriptsDeadline, Left: b.scriptsLeft(postDir), Do: b.runScripts(firstboot.Post, postDir)},
		{Name: firstboot.Unlock, Words: "unlock the first boot", Deadline: quickDeadline, Left: b.unlockLeft, Do: b.unlockBoot},
	}
}
