// Package node assembles a node's agent from its configuration: the lock, etcd, mirrors and Puppet. It runs the ticks,
// renews the node's certificate, tests itself and upgrades the agent. A turn is a tick by this agent, or by a newer
// agent that this one watches. It must never decide which target a node runs: model.Decide does.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pulley/agent"
	"pulley/agent/host"
	"pulley/agent/nodeconfig"
	"pulley/agent/stage"
	"pulley/agent/takeover"
	"pulley/internal/clip"
	"pulley/internal/desired/control"
	"pulley/internal/model"
	"pulley/internal/puppet"
)

// Setup is a node's configuration, with the agent's streams, clock and root.
type Setup struct {
	nodeconfig.Config
	Version        string // of this program
	Now            func() time.Time
	Log            *slog.Logger
	Stdout, Stderr io.Writer
	Warn           func(error)       // receives errors that are not a tick's failure
	Step           func(name string) // receives each step of a tick; may be nil
}

// OwnVersion returns this program's version in the form of published versions: git tags often begin with a v.
func (s Setup) OwnVersion() string { return strings.TrimPrefix(s.Version, "v") }

// Node contains everything that a tick needs. It holds the node's lock.
type Node struct {
	Setup
	Puppet *puppet.Puppet

	disk  *agent.Disk
	lock  *os.File
	store *control.Client
	parts *stage.Content
	agent *agent.Agent
}

// Open takes the node's lock and assembles the parts of a tick. agent.ErrLocked means that another run is in progress.
func (s Setup) Open(ctx context.Context) (*Node, error) {
	disk, err := agent.OpenDisk(s.StateDir())
	if err != nil {
		return nil, err
	}
	n := &Node{Setup: s, disk: disk, Puppet: s.NewPuppet()}
	if err := n.Puppet.Reports.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot use %s: %w", s.Path, err), disk.Close())
	}
	if n.lock, err = TakeLock(ctx, disk, n.Puppet); err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	if err := ForgetSecrets(n.Config); err != nil {
		n.Log.Warn("decrypted secrets of an earlier run could not be removed", "error", err)
	}
	n.Puppet.Reveal = n.reveal
	n.Puppet.ExtraFiles = []*os.File{n.lock} // Puppet also holds the lock, because it may outlive the agent
	if n.parts, err = stage.Open(s.Config, s.Now, s.Log); err != nil {
		return nil, errors.Join(err, n.lock.Close(), disk.Close())
	}
	n.store = n.parts.Store
	n.agent = &agent.Agent{
		Identity: s.Identity, Settings: s.Settings, Version: s.Version, MachineID: nodeconfig.MachineID(s.Root), Boot: nodeconfig.BootID(),
		Control: n.store.Node, Content: n.parts, Puppet: n.Puppet, Machine: host.New(s.Config, stage.Signers(s.Config), s.Now, s.Log),
		Memory: disk, Now: s.Now, Log: s.Log, VerifyTimeout: s.VerifyTimeout,
		Step: s.Step, Upgrade: s.standing, Signatures: func() *model.Signatures { return stage.Report(n.parts.Verifier.Files) },
		Rivals: s.rivals, Unscheduled: func() error { return host.Unscheduled(s.Root, s.Crontab(), s.Now()) },
		Facts: n.Puppet.Facts, Inquire: n.Puppet.Inquire, Hosts: n.parts,
		Current: func(d model.Desired) (*model.Refusal, func() error) {
			return stage.Current(n.parts.Verifier, s.Identity, d)
		},
	}
	return n, nil
}

// The limits of a look at what else starts Puppet.
const (
	rivalsTime = time.Minute
	maxRivals  = 200
)

// rivals names the first units and files that start another Puppet on this machine.
func (s Setup) rivals(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, rivalsTime)
	defer cancel()
	m := takeover.Machine{Root: filepath.Join("/", s.Root), StateDir: s.StateDir(), StateDirs: s.Config.Puppet.StateDirs, Now: s.Now}
	if m.StateDirs == nil {
		m.StateDirs = puppet.DefaultStateDirs(m.Root)
	}
	found, err := m.Look(ctx)
	if err != nil {
		return "", err
	}
	names := strings.Join(found.Rivals(), ", ")
	if names != "" {
		s.Log.Warn("another Puppet changes this machine", "started_by", names)
	}
	return clip.Text(names, maxRivals), nil
}

// State reads what the node remembers of its runs.
func (n *Node) State() (model.State, error) { return n.disk.Load() }

// Close releases the lock and closes the connections.
func (n *Node) Close() error {
	return errors.Join(n.parts.Close(), n.disk.Close(), n.lock.Close())
}

// Tick runs one tick with the node's lock held, and renews the certificate if it is due.
func (s Setup) Tick(ctx context.Context, opts agent.Options) (agent.Report, error) {
	n, err := s.Open(ctx)
	if err != nil {
		return agent.Report{}, err
	}
	return n.tick(ctx, opts), n.Close()
}

// Look runs a noop tick on a release, promoted or not. The release must be authentic, as one that the node takes.
func (s Setup) Look(ctx context.Context, release string, opts agent.Options) (agent.Report, error) {
	n, err := s.Open(ctx)
	if err != nil {
		return agent.Report{}, err
	}
	r, err := n.store.Releases.Get(ctx, release)
	if err != nil {
		return agent.Report{}, errors.Join(err, n.Close())
	}
	opts.Noop, opts.Look = true, model.Target{Release: release, Tree: r.Content.Tree}
	return n.tick(ctx, opts), n.Close()
}

// Stage fetches the release and the data that etcd wants for this node, and returns the job of a run on them. Both must
// be authentic. No attempt is counted. done lets them be removed again. Without a promoted release, the job
// has no tree.
func (n *Node) Stage(ctx context.Context) (job model.Job, done func(), err error) {
	d, err := n.store.Node.Desire(ctx, n.Identity)
	if err != nil {
		return job, nil, err
	}
	job = model.Job{Identity: n.Identity, Target: d.Wanted()}
	if job.Target.Release == "" {
		return job, func() {}, nil
	}
	if stale, _ := stage.Current(n.parts.Verifier, n.Identity, d); stale != nil {
		return job, nil, &stale.Error
	}
	s, err := n.parts.Stage(ctx, n.Identity, job.Target, agent.Staging{Taking: true}) // Puppet uses it: the high-water mark rises
	if err == nil {
		seen, failed := n.stageHosts(ctx, d)
		if failed != nil { // the first tick repeats it
			n.Log.Warn("cannot read the nodes that this node sees", "err", failed)
		}
		job.Hosts = seen.File
	}
	job.Tree, job.Data = s.Tree, s.Data
	return job, s.Release, err
}

// stageHosts reads the host list if the staged release shows other nodes to this one, and records its revision. It returns
// the data file with these nodes.
func (n *Node) stageHosts(ctx context.Context, d model.Desired) (model.Seen, error) {
	tree := d.Wanted().Tree
	seen, err := n.parts.ShowHosts(n.Identity, tree, model.Watch{})
	if err == nil && seen.Digest == "" || err != nil && !errors.Is(err, model.ErrNoHosts) {
		return model.Seen{}, err
	}
	state, err := n.disk.Load()
	if err == nil {
		err = n.parts.FetchHosts(ctx, n.Identity)
	}
	if err == nil {
		state.Hosts.List = d.HostList
		err = n.disk.Save(state)
	}
	if err != nil {
		return model.Seen{}, err
	}
	return n.parts.ShowHosts(n.Identity, tree, model.Watch{})
}

func (n *Node) tick(ctx context.Context, opts agent.Options) agent.Report {
	if opts.Noop || opts.Partial() {
		n.Puppet.Stdout = n.Stdout // shows the changes to a person
	}
	report := n.agent.Tick(ctx, opts)
	if !opts.Noop {
		n.Puppet.SendReports(ctx)
		n.renew(ctx)
	}
	return report
}

// TakeLock takes the node's lock. It ends an earlier agent's Puppet that holds the lock past its deadline.
func TakeLock(ctx context.Context, disk *agent.Disk, p *puppet.Puppet) (*os.File, error) {
	f, err := disk.Lock()
	if !errors.Is(err, agent.ErrLocked) {
		return f, err
	}
	reaped := p.Reap(ctx)
	var busy *puppet.BusyError
	switch {
	case errors.As(reaped, &busy):
		return nil, fmt.Errorf("%w: its Puppet is pid %d", agent.ErrLocked, busy.Pid)
	case reaped != nil:
		return nil, fmt.Errorf("cannot end the Puppet of an earlier run: %w", reaped)
	}
	return disk.Lock()
}

// NewPuppet returns a Puppet with this node's settings.
func (s Setup) NewPuppet() *puppet.Puppet {
	c := s.Config.Puppet
	t, err := takeover.Load(s.StateDir())
	if err != nil {
		s.Log.Warn("cannot read the state of the takeover", "err", err)
	}
	var installer *puppet.Installer
	if s.Root == "" || s.Root == "/" { // Puppet under another root is the machine's own
		installer = &puppet.Installer{Logger: s.Log, Proxy: s.Config.Proxy, NoProxy: s.Config.NoProxy}
	}
	return &puppet.Puppet{
		Installer: installer,
		Program:   c.Program, Dir: s.StateDir(), Deadline: s.deadline(), Grace: s.grace(),
		Root: s.Root, StateDirs: c.StateDirs, Own: takeover.Own(s.StateDir()), Logger: s.Log,
		Certificate: puppet.Certificate{Identity: s.Config.IdentityFile(), CAs: s.Config.BundleFile(), SSLDir: c.SSLDir},
		LastRun:     s.lastRun(t),
		StaysOff:    t.Services(),
		Reports:     puppet.Reports{Processors: c.Reports, URL: c.ReportURL},
		ConfDirs:    puppet.ConfDirs(s.Root),
	}
}

// lastRun returns where monitoring reads the result of Puppet's last run, by default only where Pulley replaces a puppet
// agent.
func (s Setup) lastRun(t takeover.State) puppet.LastRun {
	wanted := t.Replaces()
	if set := s.Config.Puppet.LastRunFiles; set != nil {
		wanted = *set
	}
	if !wanted {
		return puppet.LastRun{}
	}
	conf, err := puppet.ReadConf(s.Root)
	if err != nil {
		s.Log.Warn("cannot write the files of the last run for monitoring", "err", err)
		return puppet.LastRun{}
	}
	return conf.LastRun(s.Root)
}

func (s Setup) deadline() time.Duration {
	return cmp.Or(s.Config.Puppet.Deadline, puppet.DefaultDeadline)
}

func (s Setup) grace() time.Duration { return cmp.Or(s.Config.Puppet.Grace, puppet.DefaultGrace) }
