package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/agent/firstboot/steps"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
)

func newBootstrap(o *options) *cobra.Command {
	var b steps.Options
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Make this machine a node: once, on its first boot",
		Long: `bootstrap does the steps of a first boot: ` + firstboot.NameList() + `.

Userdata writes the plan of the machine, /etc/pulley/first-boot.yaml; flags override it. With a plan each step is done once,
and a machine that reboots in the middle resumes by itself. Without a plan the flags are the plan, and each start
checks which steps are not done yet. You may run bootstrap again at any time.

EXIT STATUS
  0 done, or finished before, or another one is in progress
  1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.bootstrap(c.Context(), b) },
	}
	f := cmd.Flags()
	f.StringVar(&b.PlanPath, "plan", "", "plan of the first boot (default <root>/"+firstboot.PlanPath+" where there is one)")
	b.Given.AddFlags(f, "servers", "ca", "token", "puppet_package", "puppet_version", "package_repo", "schedule")
	f.BoolVar(&b.NoCron, "no-cron", false, "set up no schedule: something else starts the agent, such as pulley-agent daemon")
	f.BoolVar(&b.IgnorePuppetAgent, "ignore-puppet-agent", false, "set up the schedule although puppet agent seems to manage this machine")
	f.BoolVar(&b.Overwrite, "overwrite", false, "overwrite the settings of agent.yaml that differ from the flags")
	f.StringVar(&b.From, "from", "", "repeat this step and the later ones")
	f.BoolVar(&b.DryRun, "dry-run", false, "print what each step would do, and change nothing")
	return cmd
}

func (o *options) bootstrap(ctx context.Context, b steps.Options) error {
	b.Flags, b.Env, b.Log = o.Flags, o.env, o.logger
	b.Setup = o.setup
	r, err := steps.Run(ctx, b)
	if err != nil {
		return err
	}
	switch r.Outcome {
	case steps.Finished:
		fmt.Fprintln(o.env.Stdout, "the first boot of this machine is finished; --from STEP repeats that step and the later ones")
	case steps.InProgress:
		fmt.Fprintln(o.env.Stdout, "another first boot is in progress")
	case steps.Done:
		fmt.Fprintf(o.env.Stdout, "%s: is a node of %s\n", r.Node, r.Environment)
	}
	if problem := o.unscheduled(); problem != nil {
		cli.Complain(o.env, program, problem)
		o.reportUnscheduled(ctx)
	}
	found, err := o.oldAgent(nil).Look(ctx)
	if err != nil {
		return err
	}
	if r.BesidePuppetAgent || len(found.Rivals()) > 0 {
		o.printFindings(found)
	}
	if r.BesidePuppetAgent {
		fmt.Fprint(o.env.Stdout, `Puppet manages this machine without Pulley, and still runs; Pulley has no schedule here yet
next: pulley-agent takeover look     shows what Pulley would change, and changes nothing
      pulley-agent takeover disable  lets Pulley manage the machine; takeover undo reverts it
`)
	}
	return nil
}

// reportUnscheduled reports the state of a new node, which no tick would report, and starts no Puppet.
func (o *options) reportUnscheduled(ctx context.Context) {
	s, err := o.localStatus()
	if err != nil || !s.Enforcing.IsZero() {
		return
	}
	c, err := o.load()
	if err == nil {
		var r agent.Report
		if r, err = o.setup(c).Tick(ctx, agent.Options{Keep: true}); err == nil {
			err = r.Err
		}
	}
	if err != nil {
		cli.Complain(o.env, program, fmt.Errorf("cannot report it: %w", err))
	}
}

func newLeave(o *options) *cobra.Command {
	var atPoweroff, clean, dry bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Remove this machine from the fleet and reject its certificate from now on",
		Long: `leave removes this node permanently: pulley serve revokes its certificate and removes it from the host list. leave removes the
identity from this machine, and no more runs start here. The changes that Puppet made stay.

With --clean, leave then removes everything that Pulley put on this machine: schedule, units, settings, releases, state, keys and
the program itself. It prints what it removes and what stays, and may be repeated after an interruption.

EXIT STATUS
  0 left, or left before; 1 failed, 2 wrong usage`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dry && !clean || clean && atPoweroff {
				return cli.Usagef("--dry-run needs --clean, and --at-poweroff excludes it")
			}
			if clean {
				return o.clean(c.Context(), dry)
			}
			node, left, err := steps.Leave(c.Context(), o.Flags, o.env, atPoweroff)
			switch {
			case err != nil:
				return err
			case !left:
				fmt.Fprintln(o.env.Stdout, "this machine is not powered off: it stays in the fleet")
			default:
				fmt.Fprintf(o.env.Stdout, "%s: left %s\n", node.Node, node.Environment)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&atPoweroff, "at-poweroff", false, "only while systemd powers the machine off; not when it reboots")
	cmd.Flags().BoolVar(&clean, "clean", false, "also remove everything that Pulley put on this machine")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "with --clean: print what it would remove, and change nothing")
	return cmd
}

func (o *options) clean(ctx context.Context, dry bool) error {
	k, err := steps.Clean(ctx, o.Flags, o.env, dry)
	would := ""
	if dry {
		would = "would be "
	}
	if k.Left.Node != "" && dry {
		cli.Cleanf(o.env.Stdout, "%s would leave %s\n", k.Left.Node, k.Left.Environment)
	} else if k.Left.Node != "" {
		cli.Cleanf(o.env.Stdout, "%s: left %s\n", k.Left.Node, k.Left.Environment)
	}
	for _, what := range k.Removed {
		cli.Cleanf(o.env.Stdout, "%sremoved: %s\n", would, what)
	}
	for _, what := range k.Stays {
		cli.Cleanf(o.env.Stdout, "stays: %s\n", what)
	}
	if k.Listed.Node != "" {
		cli.Cleanf(o.env.Stdout, "next: an operator removes the node: pulley nodes remove %s -e %s\n", k.Listed.Node, k.Listed.Environment)
	}
	return err
}
