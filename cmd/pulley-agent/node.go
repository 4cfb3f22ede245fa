package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"pulley/agent"
	"pulley/agent/host"
	"pulley/agent/puppet"
	"pulley/agent/stage"
	"pulley/internal/nodeconfig"
	"pulley/internal/store"
	"pulley/internal/takeover"
)

// node is this machine with everything that a tick needs, its lock held.
type node struct {
	config
	disk   *agent.Disk
	lock   *os.File
	store  *store.Store
	puppet *puppet.Puppet
	parts  *stage.Content
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
	if n.parts, err = stage.Open(c.Config, now, log); err != nil {
		return nil, errors.Join(err, n.lock.Close(), disk.Close())
	}
	n.store = n.parts.Store
	n.agent = &agent.Agent{
		Identity: c.Identity, Settings: c.Settings, Version: version, MachineID: nodeconfig.MachineID(c.Root), Boot: nodeconfig.BootID(),
		Control: n.store, Content: n.parts, Puppet: n.puppet,
		Machine: host.New(c.Config, c.signers(), now, log),
		Memory:  disk, Now: now, Log: log, RunDeadline: c.Puppet.Deadline, VerifyTimeout: c.VerifyTimeout,
	}
	return n, nil
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
	return errors.Join(n.parts.Close(), n.disk.Close(), n.lock.Close())
}
