package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"pulley/agent"
	"pulley/agent/puppet"
	"pulley/internal/content"
	"pulley/internal/mirror"
	"pulley/internal/nodeconfig"
	"pulley/internal/store"
	"pulley/internal/takeover"
	"pulley/internal/trust"
)

// node is this machine with everything that a tick needs, its lock held.
type node struct {
	config
	disk   *agent.Disk
	lock   *os.File
	store  *store.Store
	puppet *puppet.Puppet
	parts  *parts
	agent  *agent.Agent
}

// open takes the node's lock and wires a tick's parts together. agent.ErrLocked means that another run is in progress.
func (c config) open(ctx context.Context, version string, now func() time.Time, log *slog.Logger) (*node, error) {
	disk, err := agent.OpenDisk(c.StateDir())
	if err != nil {
		return nil, err
	}
	n := &node{config: c, disk: disk}
	n.puppet = c.newPuppet(log)
	if n.lock, err = c.takeLock(ctx, disk, n.puppet); err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	n.puppet.ExtraFiles = []*os.File{n.lock} // Puppet holds the lock too: it may outlive the agent
	if n.parts, err = c.openParts(now, log); err != nil {
		return nil, errors.Join(err, n.lock.Close(), disk.Close())
	}
	n.store = n.parts.store
	n.agent = &agent.Agent{
		Identity: c.Identity, Settings: c.Settings, Version: version, MachineID: nodeconfig.MachineID(c.Root), Boot: nodeconfig.BootID(),
		Control: n.store, Content: n.parts, Puppet: n.puppet,
		Machine: c.machine(now, log),
		Memory:  disk, Now: now, Log: log, RunDeadline: c.Puppet.Deadline, VerifyTimeout: c.VerifyTimeout,
	}
	return n, nil
}

func (c config) machine(now func() time.Time, log *slog.Logger) *machine {
	return &machine{
		schedule: c.Crontab(), signers: keptSigners{files: c.signers(), environment: c.Identity.Environment, now: now},
		kept: filepath.Join(c.StateDir(), keptFile), log: log, timeout: scriptTimeout,
	}
}

// openParts connects to etcd, and to the mirrors where there are any. What is large comes from a mirror first, as thousands
// of nodes may want it at once; deltas come from etcd. Each is the other's fallback.
func (c config) openParts(now func() time.Time, log *slog.Logger) (*parts, error) {
	trees, err := content.OpenStore(c.StateDir())
	if err != nil {
		return nil, err
	}
	trees.Now = now
	mirrors, err := c.Mirror()
	if err != nil {
		return nil, err
	}
	s, err := store.Open(c.Store)
	if err != nil {
		return nil, err
	}
	p := &parts{
		store: s, objects: s, mirrors: mirrors, verifier: &trust.Verifier{Files: c.signers(), Permits: s.Permits, Now: now},
		trees: trees, dir: filepath.Join(c.StateDir(), "data"), log: log,
	}
	if mirrors != nil {
		p.objects = mirror.Fallback(mirrors, s)
	}
	return p, nil
}

func (p *parts) close() error {
	if p.mirrors != nil {
		p.mirrors.Close()
	}
	return p.store.Close()
}

// split is one source for objects and another for deltas.
type split struct{ objects, deltas content.Source }

func (s split) Object(ctx context.Context, hash string) ([]byte, error) {
	return s.objects.Object(ctx, hash)
}

func (s split) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	return s.deltas.Deltas(ctx, line, from, to)
}

// takeLock takes the node's lock. When a Puppet holds it that an agent left behind, that Puppet is ended once it is past
// its deadline.
func (c config) takeLock(ctx context.Context, disk *agent.Disk, p *puppet.Puppet) (*os.File, error) {
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
		return nil, fmt.Errorf("cannot take over from an earlier run: %w", reaped)
	}
	return disk.Lock()
}

func (c config) newPuppet(log *slog.Logger) *puppet.Puppet {
	return &puppet.Puppet{
		Program: c.Puppet.Program, Dir: c.StateDir(), Deadline: c.Puppet.Deadline, Grace: c.Puppet.Grace,
		StateDirs: c.Puppet.StateDirs, Own: takeover.Own(c.StateDir()), Logger: log,
	}
}

func (n *node) close() error {
	return errors.Join(n.parts.close(), n.disk.Close(), n.lock.Close())
}
