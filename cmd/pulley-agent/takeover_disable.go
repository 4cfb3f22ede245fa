package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/firstboot/steps"
	"pulley/internal/schedule"
	"pulley/internal/takeover"
)

func newTakeoverDisable(o *options) *cobra.Command {
	var cron string
	var noCron bool
	cmd := &cobra.Command{
		Use: "disable", Short: "Disable puppet agent, and let cron start Pulley",
		Long: `disable writes Puppet's own lock with a message (as puppet agent --disable does), disables and stops the agent's service,
comments out cron's lines that start it, and lets cron start Pulley. It refuses when the agent is disabled already.

EXIT STATUS
  0 done; 1 failed; 2 wrong usage`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.takeoverDisable(c.Context(), cron, noCron)
		},
	}
	cmd.Flags().StringVar(&cron, "schedule", "", "when cron starts Pulley, five fields (default: as the bootstrap was told, else '"+schedule.Default+"')")
	cmd.Flags().BoolVar(&noCron, "no-cron", false, "no schedule: something else starts Pulley, such as pulley-agent daemon")
	return cmd
}

func (o *options) takeoverDisable(ctx context.Context, cron string, noCron bool) error {
	c, err := o.load()
	if err != nil {
		return err
	}
	s, err := takeover.Load(c.StateDir())
	if err != nil {
		return err
	}
	chosen := s.Choose(cron, noCron, schedule.Default)
	switch err := steps.CheckSchedule(first(cron, chosen.Cron, schedule.Default)); {
	case err != nil:
		return err
	case c.Root != "/" && !chosen.None:
		return cli.Usagef("cannot set up cron under --root %s: cron is this machine's own\nwith --no-cron, something else has to start `pulley-agent run --root %s`", c.Root, c.Root)
	}
	n, err := o.setup(c).Open(ctx)
	if err != nil {
		return fmt.Errorf("cannot disable the old agent: %w", err)
	}
	err = o.oldAgent(c.Puppet.StateDirs).Disable(ctx, o.env.User, chosen, func(ctx context.Context) error {
		if chosen.None {
			return nil
		}
		n.Puppet.Own = takeover.Own(c.StateDir())
		return steps.SetUpCron(ctx, n, chosen.Cron)
	})
	if err := errors.Join(err, n.Close()); err != nil {
		return err
	}
	fmt.Fprintln(o.env.Stdout, "puppet agent is disabled, and all of it still there")
	if chosen.None {
		fmt.Fprintln(o.env.Stdout, "Pulley has no schedule: something else has to start it")
	}
	fmt.Fprintln(o.env.Stdout, "next: pulley-agent takeover remove, after a good run of Pulley; or pulley-agent takeover undo")
	return nil
}
