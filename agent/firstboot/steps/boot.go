package steps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"pulley/agent"
	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/internal/atomicfile"
	"pulley/internal/child"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
	"pulley/internal/puppet"
)

// Options are the options of one start of `pulley-agent bootstrap`.
type Options struct {
	nodeconfig.Flags
	Given     firstboot.Plan // from flags, which override the plan of the machine
	PlanPath  string         // path of that plan; "" means the default path, where it may be missing
	From      string         // repeat this step and the later ones
	DryRun    bool
	NoCron    bool
	Overwrite bool // replace an agent.yaml that differs

	IgnorePuppetAgent bool // set up the schedule beside a puppet agent that manages the machine

	Env   cli.Env
	Log   *slog.Logger
	Setup func(nodeconfig.Config) node.Setup // of the node's agent
}

// Outcome is the outcome of a start.
type Outcome string

// The outcomes.
const (
	Done       Outcome = "done"
	Finished   Outcome = "finished"    // an earlier start did all steps
	InProgress Outcome = "in_progress" // another process does the steps
	Shown      Outcome = "shown"       // a dry run
)

// Result is the result of a start.
type Result struct {
	Outcome           Outcome
	Node, Environment string
	BesidePuppetAgent bool // a puppet agent manages the machine, and Pulley has no schedule
}

// boot is one start. The groups of steps share it.
type boot struct {
	Options
	installer   puppet.Installer
	plan        firstboot.Plan     // of the machine, overridden by the flags
	planned     bool               // the machine has a plan: the first boot resumes after a reboot
	digest      string             // of the plan without its token
	tokenDigest string             // of the token of the plan, a flag or PULLEY_TOKEN; "" without one
	self        *nodeconfig.Config // configuration of this node, once it was read
	named       bool               // self can be read: before a join the node is unknown
	again       bool               // a finished first boot got another token
}

// Run does the remaining steps of this machine's first boot.
func Run(ctx context.Context, o Options) (Result, error) {
	b, err := prepare(o)
	if err != nil {
		return Result{}, err
	}
	beside, err := b.standBack(ctx)
	if err != nil {
		return Result{}, err
	}
	engine, lock := b.engine()
	opts := firstboot.Options{From: firstboot.Name(o.From)}
	if b.again && o.From == "" {
		opts.From = firstboot.Names()[0]
	}
	if o.DryRun {
		return Result{Outcome: Shown}, engine.DryRun(ctx, opts, o.Env.Stdout)
	}
	held, err := b.takeLock()
	if err != nil || held == nil {
		return Result{Outcome: InProgress}, err
	}
	defer held.Close()
	if err := errors.Join(b.forgetCopy(), beside.remember()); err != nil {
		return Result{}, err
	}
	if err := child.CanRun(b.stateDir()); err != nil {
		b.Log.Warn("hooks of releases and new agents cannot run on this machine", "err", err)
	}
	err = engine.Run(ctx, opts)
	if errors.Is(err, firstboot.ErrFinished) {
		return Result{Outcome: Finished}, lock.tidy()
	}
	if err == nil {
		err = lock.tidy()
	}
	if err != nil {
		return Result{}, err
	}
	c, err := b.known()
	return Result{Outcome: Done, Node: c.Identity.Node, Environment: c.Identity.Environment, BesidePuppetAgent: beside.inCharge()}, err
}

// prepare reads the plan, and checks everything that can be checked before the first step: invalid flags or an invalid
// plan change nothing.
func prepare(o Options) (*boot, error) {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("cannot use root %s: %w", o.Root, err)
	}
	o.Root, o.Optional = root, true
	b := &boot{Options: o}
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
	if o.From != "" && !slices.Contains(firstboot.Names(), firstboot.Name(o.From)) {
		return nil, cli.Usagef("cannot start from step %q: the steps are %s", o.From, firstboot.NameList())
	}
	if b.Root != "/" && b.plan.Steps[string(firstboot.Schedule)] == "" {
		return nil, cli.Usagef("cannot set up cron under --root %s: cron is this machine's own\nwith --no-cron, something else has to start `pulley-agent run --root %s`", b.Root, b.Root)
	}
	b.named = !b.joins() || b.hasJoined()
	if b.named && b.plan.Steps[string(firstboot.Join)] == "" { // else the operator's program provides it
		_, err = b.known()
	}
	return b, err
}

// engine returns the engine with its steps, and the steps lock and unlock.
func (b *boot) engine() (*firstboot.Engine, *lock) {
	members := &member{boot: b}
	locks := &lock{b, &program{b}, members}
	e := &firstboot.Engine{
		Steps: b.steps(locks, members), Replaced: b.plan.Steps, Program: b.replacement, Machine: nodeconfig.MachineID(b.Root), Plan: b.digest,
		Token: b.tokenDigest, Patient: b.planned, Log: b.Log, Now: b.Env.Now,
	}
	if b.planned {
		e.Memory = b.memory()
	}
	if len(b.plan.Servers) > 0 {
		e.Reporter = members
	}
	return e, locks
}

// The deadlines of the steps.
const (
	networkDeadline  = 5 * time.Minute
	quickDeadline    = time.Minute
	scriptsDeadline  = 30 * time.Minute
	joinDeadline     = 15 * time.Minute
	puppetDeadline   = 45 * time.Minute
	registerDeadline = 15 * time.Minute
	scheduleDeadline = 15 * time.Minute
	serverDeadline   = 15 * time.Minute
	turnDeadline     = 24 * time.Hour // also of the steps that wait for a turn again
	runDeadline      = 2 * time.Hour  // Puppet has its own deadline of an hour
)

// steps is the list of the steps of a first boot, in their order.
func (b *boot) steps(l *lock, m *member) []firstboot.Step {
	n, p, host, c, s := &network{boot: b}, l.program, &machine{b}, &cron{b}, &server{boot: b}
	settings := "write the settings"
	if b.joins() {
		settings = "join the fleet"
	}
	return []firstboot.Step{
		{Name: firstboot.Network, Words: "wait for the network and the time", Deadline: networkDeadline, Left: n.networkLeft, Do: n.waitForNetwork},
		{Name: firstboot.Lock, Words: "lock the first boot", Deadline: quickDeadline, Left: l.lockLeft, Do: l.lockBoot},
		{Name: firstboot.Pre, Words: "run the scripts before", Deadline: scriptsDeadline, Left: host.scriptsLeft(preDir), Do: host.runScripts(firstboot.Pre, preDir)},
		{Name: firstboot.Agent, Words: "put the agent in place", Deadline: quickDeadline, Left: p.agentLeft, Do: p.placeAgent},
		{Name: firstboot.Join, Words: settings, Deadline: joinDeadline, Left: m.joinLeft, Do: m.join},
		{Name: firstboot.Hostname, Words: "name the machine", Deadline: quickDeadline, Left: host.hostnameLeft, Do: host.setHostname},
		{Name: firstboot.Puppet, Words: "install Puppet", Deadline: puppetDeadline, Left: host.puppetLeft, Do: host.installPuppet},
		{Name: firstboot.Register, Words: "register", Deadline: registerDeadline, Left: m.registerLeft, Do: m.register},
		{Name: firstboot.Server, Words: "choose a Puppet server", Deadline: serverDeadline, Applies: s.applies, Left: s.serverLeft, Do: s.useServer},
		{Name: firstboot.Turn, Words: "wait for the machine's turn", Deadline: turnDeadline, Applies: s.applies, Left: s.turnLeft, Do: s.waitForTurn},
		{Name: firstboot.Hosts, Words: "name the Puppet server", Deadline: quickDeadline, Applies: s.applies, Left: s.hostsLeft, Do: s.writeHosts},
		{Name: firstboot.PuppetConf, Words: "configure Puppet's own agent", Deadline: quickDeadline, Applies: s.applies, Left: s.confLeft, Do: s.writeConf},
		{Name: firstboot.Certificate, Words: "get a certificate of Puppet's CA", Deadline: joinDeadline, Patience: turnDeadline, Applies: s.applies, Left: s.inTurn(s.certificateLeft), Do: s.getCertificate},
		{Name: firstboot.Bootstrap, Words: "run Puppet in the bootstrap environment", Deadline: runDeadline, Patience: turnDeadline, Applies: s.applies, Left: s.inTurn(s.bootstrapLeft), Do: s.runBootstrap},
		{Name: firstboot.Schedule, Words: "set up the schedule", Deadline: scheduleDeadline, Left: c.scheduleLeft, Do: c.setUpSchedule},
		{Name: firstboot.Enable, Words: "enable the agent", Deadline: quickDeadline, Left: l.enableLeft, Do: l.enable},
		{Name: firstboot.FirstRun, Words: "run Puppet", Deadline: runDeadline, Patience: turnDeadline, Applies: s.applies, Left: s.inTurn(s.firstRunLeft), Do: s.runFirst},
		{Name: firstboot.Daemon, Words: "enable Puppet's own daemon", Deadline: quickDeadline, Applies: s.applies, Left: s.daemonLeft, Do: s.enableDaemon},
		{Name: firstboot.Notify, Words: "report the end of the first boot", Deadline: quickDeadline, Optional: true, Left: m.notifyLeft, Do: m.notify},
		{Name: firstboot.Post, Words: "run the scripts after", Deadline: scriptsDeadline, Left: host.scriptsLeft(postDir), Do: host.runScripts(firstboot.Post, postDir)},
		{Name: firstboot.Unlock, Words: "unlock the first boot", Deadline: quickDeadline, Left: l.unlockLeft, Do: l.unlockBoot},
	}
}

// withDisk calls do with the agent's state.
func (b *boot) withDisk(do func(*agent.Disk) error) error {
	d, err := agent.OpenDisk(b.stateDir())
	if err != nil {
		return err
	}
	return errors.Join(do(d), d.Close())
}

// joins reports whether this machine gets its identity from pulley serve.
func (b *boot) joins() bool {
	return len(b.plan.Servers) > 0 && b.plan.Steps[string(firstboot.Join)] == ""
}

// known returns the configuration of this node; before a join there is none.
func (b *boot) known() (nodeconfig.Config, error) {
	if b.self == nil {
		if !b.named {
			return nodeconfig.Config{}, errors.New("the join decides which node this is")
		}
		c, err := b.Load(b.Env)
		if err != nil {
			return nodeconfig.Config{}, err
		}
		b.self = &c
	}
	return *b.self, nil
}

func (b *boot) stateDir() string         { return nodeconfig.Under(b.Root).StateDir() }
func (b *boot) memory() firstboot.Disk   { return firstboot.Disk{Dir: b.stateDir()} }
func (b *boot) path(under string) string { return filepath.Join(b.Root, under) }

// takeLock locks out a second first boot; nil means that one is running.
func (b *boot) takeLock() (*os.File, error) {
	if err := os.MkdirAll(b.stateDir(), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the state folder: %w", err)
	}
	f, err := atomicfile.OpenLock(filepath.Join(b.stateDir(), "first-boot.lock"))
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of the first boot: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock the first boot: %w", err), f.Close())
	}
	return f, nil
}

// forgetCopy removes every key of the node that a copied disk contains: it belongs to the original machine.
func (b *boot) forgetCopy() error {
	state, err := b.memory().Load()
	if err != nil {
		return err
	}
	if !b.joins() || b.plan.Token == "" || state.Machine == "" || state.Machine == nodeconfig.MachineID(b.Root) {
		return nil
	}
	b.Log.Warn("this disk was another machine's; its identity is removed", "machine", state.Machine)
	if err := b.forgetServerKeys(); err != nil {
		return err
	}
	return forgetKeys(b.Root)
}
