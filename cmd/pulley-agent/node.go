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
	"pulley/internal/store"
)

// node is this machine with everything that a tick needs, its lock held.
type node struct {
	config
	disk   *agent.Disk
	lock   *os.File
	store  *store.Store
	puppet *puppet.Puppet
	agent  *agent.Agent
}

// open takes the node's lock and wires a tick's parts together. agent.ErrLocked means that another run is in progress.
func (c config) open(ctx context.Context, version string, now func() time.Time, log *slog.Logger) (*node, error) {
	disk, err := agent.OpenDisk(c.stateDir())
	if err != nil {
		return nil, err
	}
	n := &node{config: c, disk: disk}
	n.puppet = c.newPuppet(log)
	if n.lock, err = c.takeLock(ctx, disk, n.puppet); err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	n.puppet.ExtraFiles = []*os.File{n.lock} // Puppet holds the lock too: it may outlive the agent
	trees, err := content.OpenStore(c.stateDir())
	if err != nil {
		return nil, errors.Join(err, n.lock.Close(), disk.Close())
	}
	if n.store, err = store.Open(c.store); err != nil {
		return nil, errors.Join(err, n.lock.Close(), disk.Close())
	}
	n.agent = &agent.Agent{
		Identity: c.identity, Settings: c.settings, Version: version, Boot: machineID(),
		Control: n.store, Content: &parts{store: n.store, trees: trees, dir: filepath.Join(c.stateDir(), "data"), log: log},
		Puppet: &blockable{n.puppet}, Machine: &machine{schedule: c.schedule(), log: log, timeout: validateTimeout},
		Memory: disk, Now: now, Log: log, RunDeadline: c.Puppet.Deadline, VerifyTimeout: c.VerifyTimeout,
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
		Program: c.Puppet.Program, Dir: c.stateDir(), Deadline: c.Puppet.Deadline, Grace: c.Puppet.Grace,
		StateDirs: c.Puppet.StateDirs, Logger: log,
	}
}

func (n *node) close() error {
	return errors.Join(n.store.Close(), n.disk.Close(), n.lock.Close())
}

// blockable is Puppet as a tick sees it.
type blockable struct{ *puppet.Puppet }

func (b *blockable) Blocked() string {
	if err := b.Locks(); err != nil {
		return err.Error()
	}
	return ""
}
