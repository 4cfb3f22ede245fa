package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/agent/stage"
	"pulley/internal/cli"
	"pulley/internal/model"
)

func newPuppet(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "puppet -- SUBCOMMAND [ARG ...]",
		Short: "Run a Puppet command with the settings of this node's runs",
		Long: `puppet runs a Puppet subcommand on the release and data that this node enforces, with the same private folders and
facts as a run:

  pulley-agent puppet -- lookup --explain ntp::servers

A subcommand that may change the machine blocks runs until it ends. It has the deadline of a run (puppet.deadline).
` + "`apply`" + ` obeys a hold that stops this node, and ` + "`pulley-agent disable`" + `.

EXIT STATUS
  that of Puppet; 2 wrong usage`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no Puppet subcommand given\nrun for example `pulley-agent puppet -- lookup --explain KEY`")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return o.runPuppet(c.Context(), args) },
	}
}

func (o *options) runPuppet(ctx context.Context, args []string) (err error) {
	c, err := o.load()
	if err != nil {
		return err
	}
	p := o.setup(c).NewPuppet()
	disk, err := agent.OpenDisk(c.StateDir())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	if !readsOnly(args) {
		lock, err := node.TakeLock(ctx, disk, p)
		if err != nil {
			return fmt.Errorf("cannot run `puppet %s`: %w", args[0], err)
		}
		defer lock.Close()
		p.ExtraFiles = []*os.File{lock}
	}
	state, err := disk.Load()
	if err != nil {
		return err
	}
	if err := forbidden(args, disk, state); err != nil {
		return err
	}
	target, first := state.Enforcing, false
	if target.IsZero() && readsOnly(args) {
		target, first, err = o.wanted(ctx, c)
	}
	if err != nil {
		return err
	}
	if target.IsZero() {
		return errors.New("cannot run Puppet with this node's settings: no release is in place\nrun `pulley-agent run` first")
	}
	job, release, err := o.enforced(ctx, c, target, agent.Staging{Taking: first, Noop: first}, state.Hosts.Watch)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, p.Deadline)
	defer cancel()
	cmd, err := p.Command(job, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.RunDir(job.ID))) }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.env.Stdin, o.env.Stdout, o.env.Stderr
	err = cmd.Run(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cannot finish `puppet %s`: it reached its deadline of %s", args[0], p.Deadline)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return &cli.SilentError{Code: exit.ExitCode()}
	}
	return err
}

// readsOnly reports whether a Puppet command leaves the machine unchanged.
func readsOnly(args []string) bool {
	switch args[0] {
	case "lookup", "config", "facts", "parser", "describe", "help", "--version":
		return true
	case "module":
		return len(args) > 1 && args[1] == "list"
	}
	return false
}

// forbidden returns why a catalog must not be applied by hand on this machine. It uses the hold from the last run.
func forbidden(args []string, disk *agent.Disk, state model.State) error {
	if args[0] != "apply" {
		return nil
	}
	reason, err := disk.Disabled()
	if err != nil {
		return err
	}
	if reason != "" {
		return fmt.Errorf("cannot run `puppet apply`: runs were disabled on this machine: %s\nrun `pulley-agent enable` to allow them again", reason)
	}
	for _, h := range state.Holds {
		if h.Mode == model.Stop {
			return fmt.Errorf("cannot run `puppet apply`: %s holds %s: %s\nrun `pulley unhold -e ENVIRONMENT`, then `pulley-agent run`", h.Who, h.Scope, h.Reason())
		}
	}
	return nil
}

// wanted returns the target that etcd wants of a node without a release, for a look. It must be authentic.
func (o *options) wanted(ctx context.Context, c nodeconfig.Config) (t model.Target, first bool, err error) {
	p, err := stage.Open(c, o.env.Now, o.logger)
	if err != nil {
		return t, false, err
	}
	d, err := p.Store.Node.Desire(ctx, c.Identity)
	return d.Wanted(), true, errors.Join(err, p.Close())
}

// enforced returns the job of a target. It contacts etcd only for parts that are missing on disk.
func (o *options) enforced(ctx context.Context, c nodeconfig.Config, t model.Target, how agent.Staging, w model.Watch) (model.Job, func(), error) {
	p, err := stage.Open(c, o.env.Now, o.logger)
	if err != nil {
		return model.Job{}, nil, err
	}
	staged, err := p.Stage(ctx, c.Identity, t, how)
	var seen model.Seen
	if err == nil {
		if seen, err = p.ShowHosts(c.Identity, t.Tree, w); errors.Is(err, model.ErrNoHosts) {
			err = nil // the node never read the list
		}
	}
	if err := errors.Join(err, p.Close()); err != nil {
		return model.Job{}, nil, err
	}
	return model.Job{
		Identity: c.Identity, ID: fmt.Sprintf("command-%d", os.Getpid()), Target: t, Tree: staged.Tree, Data: staged.Data, Hosts: seen.File,
	}, staged.Release, nil
}
