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

// maxHold is longer than anybody means; what lasts longer has no end.
const maxHold = 366 * 24 * time.Hour

func newHold(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var scope scopeFlags
	var stop bool
	var lasts time.Duration
	var why string
	cmd := &cobra.Command{
		Use:   "hold -e ENVIRONMENT --why REASON",
		Short: "Freeze an environment, a role or a node on its target, or stop Puppet there",
		Long: `hold freezes: the nodes stay on the target that they have, and go on enforcing it. With --stop Puppet does not run there.
With --for the hold ends by itself: etcd ends it, so no node's clock matters. A node that can't reach etcd obeys the hold
that it saw last.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 0, "takes no arguments; --role or --node names whom"),
		RunE: func(c *cobra.Command, _ []string) error {
			if why == "" {
				return cli.Usagef("why? give --why REASON: whoever meets the hold will want to know")
			}
			if c.Flags().Changed("for") && (lasts < time.Second || lasts > maxHold) {
				return cli.Usagef("cannot hold for %s: give at least 1s and at most a year, as in --for 4h", lasts)
			}
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				_, sc, err := scope.find(ctx, s, ref)
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
	fleet.AddFlag(cmd.Flags())
	scope.add(cmd, "the nodes")
	cmd.Flags().BoolVar(&stop, "stop", false, "don't run Puppet at all (default: stay on the target, enforce it)")
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long, as in 4h (default: until unhold)")
	cmd.Flags().StringVar(&why, "why", "", "reason, shown wherever the hold is met")
	return cmd
}

func newUnhold(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var scope scopeFlags
	cmd := &cobra.Command{
		Use: "unhold -e ENVIRONMENT", Short: "End a hold", Args: arguments(0, 0, "takes no arguments; --role or --node names whose"),
		RunE: func(c *cobra.Command, _ []string) error {
			if scope.role != "" && scope.node != "" {
				return cli.Usagef("--role and --node exclude each other")
			}
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				// Not checked against the environment: a hold of a role that is gone must still go away.
				sc := store.Scope{Role: scope.role, Node: scope.node}
				if err := s.Fleet.Unhold(ctx, ref, sc); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: not held any more\n", sc, ref)
				return nil
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	scope.add(cmd, "the hold")
	return cmd
}
