package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/drivers/local"
)

type demoOptions struct {
	*options
	once    bool
	noColor bool
}

func newDemo(o *options) *cobra.Command {
	d := demoOptions{options: o}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "play the life of a small fleet on this machine: real etcd, real Puppet, nothing left behind",
		Long: `demo starts a private etcd and three machines, each a copy-on-write view of this one, and shows what operators do: a first
release, a change of data, a second release, a broken one, and the way back. Then the fleet stays up for playing until
Ctrl-C. Nothing of this machine is changed, and nothing stays of the fleet, however the demo ends.

It needs root, Puppet and ssh-keygen.

EXIT STATUS
  0 done; with --once, every step came true; 1 failed, or stopped before the end; 2 wrong usage`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("endpoints") {
				return cli.Usagef("the demo runs an etcd of its own, and leaves yours alone\ndo without --endpoints")
			}
			return d.run(c.Context())
		},
	}
	cmd.Flags().BoolVar(&d.once, "once", false, "end after the last step")
	cmd.Flags().BoolVar(&d.noColor, "no-color", false, "no colours, also on a terminal")
	cmd.AddCommand(newDemoKeeper(o))
	return cmd
}

// run plays the story between setting the stage and clearing it. The keeper is there before anything else, and outlives
// everything else.
func (o demoOptions) run(ctx context.Context) error {
	s := &stage{env: o.environ(), machines: map[string]*local.Machine{}, broke: make(chan error, 1)}
	if err := s.find(ctx); err != nil {
		return err
	}
	k, err := startKeeper(s.self, s.env)
	if err != nil {
		return fmt.Errorf("cannot start the demo: %w", err)
	}
	s.dir = k.dir
	d := &demo{stage: s, screen: newScreen(o.env, o.noColor)}
	err = d.play(ctx)
	if err != nil && ctx.Err() == nil {
		d.showLogs()
	}
	if !o.once && ctx.Err() == nil {
		d.invite(err)
		err = errors.Join(err, d.stay(ctx))
	}
	d.line("")
	d.say("The fleet ends.")
	return errors.Join(err, s.close(), k.close())
}

// environ is what the operator's commands get: nothing that points at another fleet.
func (o demoOptions) environ() []string {
	env := []string{"PATH=" + o.env.Getenv("PATH") + ":/opt/puppetlabs/bin"}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "SUDO_USER", "LANG", "TMPDIR"} {
		if v := o.env.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// find looks for everything that the demo needs of this machine.
func (s *stage) find(ctx context.Context) error {
	if err := local.Check(ctx); err != nil {
		return err
	}
	for _, need := range []struct{ program, otherwise, debianPackage string }{
		{"puppet", "/opt/puppetlabs/bin/puppet", "puppet-agent"},
		{"cron", "/usr/sbin/cron", "cron"}, // else each machine's first run of Puppet would install it
		{"ssh-keygen", "/usr/bin/ssh-keygen", "openssh-client"},
	} {
		_, err := exec.LookPath(need.program)
		if _, otherwise := exec.LookPath(need.otherwise); err != nil && otherwise != nil {
			return fmt.Errorf("cannot start the demo: its machines see this machine's programs, and %s is not installed\napt-get install --no-install-recommends %s",
				need.program, need.debianPackage)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	s.self, s.agent = self, filepath.Join(filepath.Dir(self), "pulley-agent")
	if _, err := exec.LookPath(s.agent); err != nil {
		return fmt.Errorf("cannot find pulley-agent beside pulley: %w\n`make build` makes both", err)
	}
	return nil
}

// stay waits for Ctrl-C, or for the fleet to fall apart.
func (d *demo) stay(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-d.broke:
		d.showLogs()
		return err
	}
}
