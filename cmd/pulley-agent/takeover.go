package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/agent/puppet"
	"pulley/internal/nodeconfig"
	"pulley/internal/takeover"
)

func newTakeover(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "Replace the puppet agent of this machine by Pulley, in steps that can be undone",
		Long: `takeover lets Pulley manage a machine on which puppet agent runs, from cron or as a service:

  look      shows what starts the agent, and what Pulley would change; changes nothing
  disable   disables the agent with a message, and sets up Pulley's schedule
  remove    removes what starts the agent, after a successful run of Pulley
  undo      restores puppet agent as it was found, at any time, and removes Pulley's schedule
  status    shows the state of the takeover

/var/lib/pulley/takeover.json stores everything before it is changed. After an interruption, run the same command again.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newTakeoverLook(o), newTakeoverDisable(o), newTakeoverRemove(o), newTakeoverUndo(o), newTakeoverStatus(o))
	return cmd
}

// puppetStateDirs returns the folders of Puppet's own locks.
func puppetStateDirs(root string) []string { return puppet.DefaultStateDirs(root) }

// withNodeLock calls do while no Pulley run is in progress.
func (o *options) withNodeLock(do func(*agent.Disk) error) error {
	return o.withDisk(func(d *agent.Disk) error {
		lock, err := d.Lock()
		if err != nil {
			return fmt.Errorf("%w; try again when it is over", err)
		}
		return errors.Join(do(d), lock.Close())
	})
}

// oldAgent returns the machine for a takeover. dirs are Puppet's state folders; nil means the default folders of its
// packagings.
func (o *options) oldAgent(dirs []string) *takeover.Machine {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		root = o.Root // the operation on it reports the error
	}
	if dirs == nil {
		dirs = puppetStateDirs(root)
	}
	return &takeover.Machine{Root: root, StateDir: nodeconfig.Under(root).StateDir(), StateDirs: dirs, Now: o.env.Now}
}
