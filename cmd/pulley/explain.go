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

func newExplain(o *options) *cobra.Command {
	var env cli.EnvironmentFlag
	cmd := &cobra.Command{
		Use:   "explain NODE -e ENVIRONMENT",
		Short: "Explain why a node is in its state, and what its next tick will do",
		Long: `explain runs the node's own decision on its last report and on its desired state in etcd, and shows each check with
its result.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one node"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.inFleet(c, env, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				e, _, err := s.Environments.MustSpec(ctx, ref)
				if err != nil {
					return err
				}
				f, err := s.Fleet.State(ctx, ref)
				if err != nil {
					return err
				}
				if err := fleet.CheckNode(e, f.Known(), args[0]); err != nil {
					return err
				}
				x := fleet.Explain(f, ref, args[0], o.env.Now())
				return o.out.Print(o.env, x, func(*cli.Table) error {
					_, err := fmt.Fprint(o.env.Stdout, x.Words(o.env.Now()))
					return err
				})
			})
		},
	}
	env.AddFlag(cmd.Flags())
	o.out.AddFlags(cmd.Flags())
	return cmd
}
