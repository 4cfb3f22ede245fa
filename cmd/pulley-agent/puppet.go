package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/store"
)

func newPuppet(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "puppet -- SUBCOMMAND [ARG ...]",
		Short: "run any Puppet command with exactly the settings of this node's runs",
		Long: `puppet runs a Puppet subcommand on the release and data that this node enforces, with the same private folders and
facts as a run:

  pulley-agent puppet -- lookup --explain ntp::servers

EXIT STATUS
  that of Puppet; 2 wrong usage`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("which Puppet command? for example `pulley-agent puppet -- lookup --explain KEY`")
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
	disk, err := agent.OpenDisk(c.stateDir())
	if err != nil {
		return err
	}
	state, err := disk.Load()
	if err := errors.Join(err, disk.Close()); err != nil {
		return err
	}
	if state.Enforcing.IsZero() {
		return errors.New("cannot run Puppet with this node's settings: no release is in place\n`pulley-agent run` puts one there")
	}
	job, release, err := c.enforced(ctx, state.Enforcing)
	if err != nil {
		return err
	}
	defer release()
	p := c.newPuppet(o.logger())
	cmd, err := p.Command(ctx, job, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.RunDir(job.ID))) }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.env.Stdin, o.env.Stdout, o.env.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return &cli.SilentError{Code: exit.ExitCode()}
	}
	return err
}

// enforced is the job of the target that is in place; etcd is asked only for what is missing on disk.
func (c config) enforced(ctx context.Context, t agent.Target) (agent.Job, func(), error) {
	trees, err := content.OpenStore(c.stateDir())
	if err != nil {
		return agent.Job{}, nil, err
	}
	s, err := store.Open(c.store)
	if err != nil {
		return agent.Job{}, nil, err
	}
	p := &parts{store: s, trees: trees, dir: filepath.Join(c.stateDir(), "data")}
	staged, err := p.Stage(ctx, c.identity, t)
	if err := errors.Join(err, s.Close()); err != nil {
		return agent.Job{}, nil, err
	}
	return agent.Job{
		Identity: c.identity, ID: fmt.Sprintf("command-%d", os.Getpid()), Target: t, Tree: staged.Tree, Data: staged.Data,
	}, staged.Release, nil
}
