package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/store"
)

// maxHold is the longest hold with an end.
const maxHold = 366 * 24 * time.Hour

func newHold(o *options) *cobra.Command {
	var stop bool
	var lasts time.Duration
	var why string
	cmd := &cobra.Command{
		Use:   "hold -e ENVIRONMENT --why REASON",
		Short: "Freeze an environment, a role or a node on its target, or stop Puppet there",
		Long: `hold freezes nodes: they stay on their target and keep enforcing it. With --stop Puppet does not run on them. With --for etcd
ends the hold, and no node's clock matters. A node that cannot reach etcd obeys the last hold that it read.`,
		Args: arguments(0, 0, "takes no arguments; --role or --node limits the hold"),
		RunE: func(c *cobra.Command, _ []string) error {
			if why == "" {
				return cli.Usagef("cannot hold without a reason: give --why REASON")
			}
			if c.Flags().Changed("for") && (lasts < time.Second || lasts > maxHold) {
				return cli.Usagef("cannot hold for %s: give at least 1s and at most a year, as in --for 4h", lasts)
			}
			return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				_, sc, err := o.scope.find(ctx, s, ref)
				if err != nil {
					return err
				}
				h := agent.Hold{Mode: agent.Freeze, Kind: agent.OperatorHold, Who: o.env.User, Why: agent.Prose(why), Since: o.env.Now().UTC().Truncate(time.Second)}
				if stop {
					h.Mode = agent.Stop
				}
				ends := "until `pulley unhold`"
				if lasts > 0 {
					h.Until = h.Since.Add(lasts)
					ends = "until " + h.Until.Format(time.RFC3339)
				}
				if err := s.Fleet.Hold(ctx, ref, sc, h, lasts); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: %s %s\n", sc, ref, h.Mode, ends)
				return nil
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "the nodes")
	cmd.Flags().BoolVar(&stop, "stop", false, "do not run Puppet at all (default: stay on the target and enforce it)")
	cmd.Flags().DurationVar(&lasts, "for", 0, "duration of the hold, as in 4h (default: until unhold)")
	cmd.Flags().StringVar(&why, "why", "", "reason, shown with the hold")
	return cmd
}

func newUnhold(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unhold -e ENVIRONMENT", Short: "End a hold", Args: arguments(0, 0, "takes no arguments; --role or --node names the hold"),
		RunE: func(c *cobra.Command, _ []string) error {
			sc, err := o.scope.value()
			if err != nil {
				return err
			}
			return o.inFleet(c, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				// Not checked against the environment: a hold of a removed role must stay removable.
				if err := s.Fleet.Unhold(ctx, ref, sc); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: hold ended\n", sc, ref)
				return nil
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	o.scope.add(cmd, "the hold")
	return cmd
}
