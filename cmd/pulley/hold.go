package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/specs"
)

// maxHold is the longest hold with an end.
const maxHold = 366 * 24 * time.Hour

func newHold(o *options) *cobra.Command {
	var stop, replace, drain bool
	var lasts, wait time.Duration
	var why string
	cmd := &cobra.Command{
		Use:   "hold -e ENVIRONMENT --why REASON",
		Short: "Freeze an environment, a role or a node on its target, or stop Puppet there",
		Long: `hold freezes nodes: they stay on their target and keep enforcing it. With --stop Puppet does not run on them. With --for etcd
ends the hold, and no node's clock matters. A node that cannot reach etcd obeys the last hold that it read.

A scope has one hold: a second one replaces the first. hold refuses one that is weaker than the hold in force, because it
freezes where that one stops, or ends earlier: --replace sets it. ` + "`pulley holds`" + ` lists the holds.

A hold interrupts no run. With --drain, hold waits until the runs in progress on its nodes have ended.

EXIT STATUS
  0 done; 1 failed, 2 wrong usage, 3 etcd unreachable; with --drain, 5 a run did not end in time`,
		Args: arguments(0, 0, "takes no arguments; --role or --node limits the hold"),
		RunE: func(c *cobra.Command, _ []string) error {
			if why == "" {
				return cli.Usagef("cannot hold without a reason: give --why REASON")
			}
			if c.Flags().Changed("for") && (lasts < time.Second || lasts > maxHold) {
				return cli.Usagef("cannot hold for %s: give at least 1s and at most a year, as in --for 4h", lasts)
			}
			if wait < time.Second {
				return cli.Usagef("cannot wait for %s: give a duration of at least 1s, as in --wait 30m", wait)
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				sc, err := o.scope.find(ctx, s, ref)
				if err != nil {
					return err
				}
				h := model.Hold{Mode: model.Freeze, Kind: model.OperatorHold, Who: o.env.User, Why: model.Prose(why), Since: o.env.Now().UTC().Truncate(time.Second)}
				if stop {
					h.Mode = model.Stop
				}
				ends := fmt.Sprintf("until `pulley unhold -e %s%s`", ref, promotion.Flags(sc))
				if lasts > 0 {
					h.Until = h.Since.Add(lasts)
					ends = "until " + h.Until.Format(time.RFC3339)
				}
				replaced, err := promotion.Hold(ctx, fleet.In(s), ref, sc, h, lasts, replace)
				if err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: %s %s\n", sc, ref, h.Mode, ends)
				if replaced != nil {
					cli.Cleanf(o.env.Stdout, "  it replaces a hold: %s\n", promotion.DescribeHold(*replaced))
				}
				if !drain || o.dryRun {
					return nil
				}
				return o.drain(ctx, s, ref, sc, wait)
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "the nodes")
	cmd.Flags().BoolVar(&stop, "stop", false, "do not run Puppet at all (default: stay on the target and enforce it)")
	cli.DurationVar(cmd.Flags(), &lasts, "for", 0, "duration of the hold, as in 4h or 7d (default: until unhold)")
	cmd.Flags().StringVar(&why, "why", "", "reason, shown with the hold")
	cmd.Flags().BoolVar(&drain, "drain", false, "wait until the runs in progress on the nodes have ended")
	cli.DurationVar(cmd.Flags(), &wait, "wait", time.Hour, "with --drain, wait up to this long")
	cmd.Flags().BoolVar(&replace, "replace", false, "replace a stronger hold of the same scope")
	o.addDryRun(cmd)
	return cmd
}

// drain waits until the runs have ended that were in progress when a hold was set.
func (o *options) drain(ctx context.Context, s *etcd.DB, ref model.Ref, sc etcd.Scope, limit time.Duration) error {
	line := o.newWaitLine()
	d, err := fleet.Drain(ctx, fleet.In(s), ref, sc, limit, o.env.Now, func(d fleet.Drained) { line.show(d.Sentence()) })
	line.done()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("cannot wait: %w\nthe hold stays in force: `pulley status -e %s` shows which nodes run", ctx.Err(), ref)
	case err != nil:
		return err
	}
	fmt.Fprintf(o.env.Stdout, "no run is in progress: %s\n", d.Sentence())
	if len(d.Silent) > 0 {
		o.warn([]string{"silent nodes may run Puppet until they read the hold: " + nodeNames(d.Silent)})
	}
	return nil
}

func newUnhold(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unhold -e ENVIRONMENT", Short: "End a hold", Args: arguments(0, 0, "takes no arguments; --role or --node names the hold"),
		RunE: func(c *cobra.Command, _ []string) error {
			sc, err := o.scope.value()
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				// Not checked against the environment: a hold of a removed role must stay removable.
				err := fleet.In(s).Unhold(ctx, ref, sc)
				if errors.Is(err, etcd.ErrNotFound) {
					err = fmt.Errorf("%w\n`pulley holds -e %s` lists the holds", err, ref)
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: hold ended\n", sc, ref)
				return nil
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "the hold")
	o.addDryRun(cmd)
	return cmd
}

func newHolds(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "holds -e ENVIRONMENT", Short: "List the holds of an environment", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error { return o.inFleet(c, o.holds) },
	}
	o.fleet.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) holds(ctx context.Context, s *etcd.DB, ref model.Ref) error {
	if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
		return err
	}
	holds, damaged, err := fleet.In(s).Holds(ctx, ref)
	if err != nil {
		return err
	}
	o.warn(damaged)
	all := []model.Hold{}
	scopes := slices.SortedFunc(maps.Keys(holds), promotion.CompareScopes)
	for _, scope := range scopes {
		all = append(all, holds[scope])
	}
	return o.out.Print(o.env, all, func(t *cli.Table) error {
		if len(all) == 0 {
			fmt.Fprintf(o.env.Stdout, "no hold is in force in %s\n", ref)
			return nil
		}
		t.Row("SCOPE", "MODE", "KIND", "SINCE", "UNTIL", "BY", "WHY")
		for i, h := range all {
			until := "unhold"
			if !h.Until.IsZero() {
				until = h.Until.UTC().Format(time.RFC3339)
			}
			t.Row(scopes[i].String(), string(h.Mode), string(h.Kind), cli.Ago(o.env.Now(), h.Since), until, h.Who, string(h.Why))
		}
		return nil
	})
}
