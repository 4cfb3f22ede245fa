package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pulley/agent"
	"pulley/agent/node"
	"pulley/internal/cli"
	"pulley/internal/upgrade"
)

// turn runs one turn of the node and prints it. replaced reports that another program was installed.
func (o *options) turn(ctx context.Context, c config, r runOptions, flags []string) (replaced bool, err error) {
	opts := node.TurnOptions{Options: r.Options, Flags: flags}
	if r.detailed {
		opts.Run = []string{"--detailed-exitcodes"}
	}
	t, err := o.setup(c).Turn(ctx, opts)
	switch {
	case err != nil:
		return t.Replaced, err
	case t.Locked:
		fmt.Fprintf(o.env.Stdout, "%s: another run is in progress\n", c.Identity.Node)
	case t.Report != nil:
		return t.Replaced, o.conclude(c, r, *t.Report)
	case t.Code != cli.ExitDone:
		return t.Replaced, &cli.SilentError{Code: t.Code}
	}
	return t.Replaced, nil
}

// watched runs a tick of a new agent. The agent that watches it receives each step and the result of the tick.
func (o *options) watched(ctx context.Context, r runOptions) error {
	teller, err := upgrade.OpenTeller(r.supervised)
	if err != nil {
		return err
	}
	o.step, r.Keep = teller.Step, true
	end, err := o.watchedTick(ctx, r)
	end.Code = cli.Code(err)
	teller.End(end)
	return err
}

func (o *options) watchedTick(ctx context.Context, r runOptions) (upgrade.Ending, error) {
	c, err := o.load()
	if err != nil {
		return upgrade.Ending{Problem: agent.Prose(err.Error())}, err
	}
	report, err := o.setup(c).Tick(ctx, r.Options)
	if errors.Is(err, agent.ErrLocked) {
		fmt.Fprintf(o.env.Stdout, "%s: another run is in progress\n", c.Identity.Node)
		return upgrade.Ending{Locked: true}, nil
	}
	if err != nil {
		return upgrade.Ending{Problem: agent.Prose(err.Error()), Unreachable: errors.Is(err, agent.ErrUnreachable)}, err
	}
	return node.EndingOf(report), o.conclude(c, r, report)
}

// inherited returns the flags of every verb as given, for another agent.
func inherited(c *cobra.Command) []string {
	var args []string
	c.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				args = append(args, "--"+f.Name+"="+v)
			}
			return
		}
		args = append(args, "--"+f.Name+"="+f.Value.String())
	})
	return args
}
