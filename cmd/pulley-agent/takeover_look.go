package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/cli"
	"pulley/internal/takeover"
)

func newTakeoverLook(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "look", Short: "Show what starts puppet agent here, and what Pulley would change", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.takeoverLook(c.Context()) },
	}
}

func (o *options) takeoverLook(ctx context.Context) error {
	c, unknown := o.load()
	found, err := o.oldAgent(c.Puppet.StateDirs).Look(ctx)
	if err != nil {
		return err
	}
	o.printFindings(found)
	if unknown != nil {
		fmt.Fprintf(o.env.Stdout, "what Pulley would change can't be told: this machine is no node yet\nnext: pulley-agent bootstrap\n")
		return nil
	}
	r := runOptions{Options: agent.Options{Noop: true}}
	report, err := o.setup(c).Tick(ctx, r.Options)
	if err != nil {
		return err
	}
	return o.conclude(c, r, report)
}

func (o *options) printFindings(f takeover.Findings) {
	out := o.env.Stdout
	if f.Empty() {
		fmt.Fprintln(out, "nothing starts puppet agent on this machine")
		return
	}
	for _, u := range f.Units {
		now := ""
		if u.Active {
			now = ", and runs"
		}
		cli.Cleanf(out, "starts puppet agent: %s is %s%s\n", u.Name, u.Was, now)
	}
	for _, l := range f.Lines {
		cli.Cleanf(out, "starts puppet agent: /%s: %s\n", l.Path, l.Text)
	}
	for _, s := range f.Scripts {
		cli.Cleanf(out, "starts puppet agent: /%s (it stays; disabled, the agent does nothing)\n", s)
	}
	for _, p := range f.Daemons {
		cli.Cleanf(out, "runs: %s (pid %d)\n", p.Command, p.Pid)
	}
}
