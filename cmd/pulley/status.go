package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/fleet"
	"pulley/internal/store"
)

func newStatus(o *options) *cobra.Command {
	var env cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use: "status -e ENVIRONMENT", Short: "Show where every node of an environment stands", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		Long: `status shows each node's state: ` + fleet.States() + `.

An environment is healthy when every node that it calls for is registered and converged. The second line of a degraded
one names what it lacks.

EXIT STATUS
  0 done, whatever the states of the nodes; 1 failed; 2 wrong usage; 3 etcd unreachable`,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, env, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
					return err
				}
				f, err := s.Fleet.State(ctx, ref)
				if err != nil {
					return err
				}
				o.warn(f.Damaged)
				return o.showStatus(fleet.Look(f, ref, o.env.Now()))
			})
		},
	}
	env.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) showStatus(status fleet.Status) error {
	return o.out.Print(o.env, status, func(t *cli.Table) error {
		fmt.Fprint(o.env.Stdout, status.Summary())
		t.Row("NODE", "STATE", "RELEASE", "DATA", "OUTCOME", "LAST RUN", "WHY")
		for _, n := range status.Nodes {
			t.Row(n.Node, string(n.State), n.ReleaseCell(), n.DataCell(), string(n.Outcome), n.LastRun, cli.Shorten(n.Why(), o.env.Width))
		}
		return nil
	})
}
