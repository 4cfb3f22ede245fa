package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/machines/render"
	"pulley/internal/store"
)

func newEnvHistory(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var since time.Duration
	cmd := &cobra.Command{
		Use: "history -e ENVIRONMENT", Short: "Show the history of an environment's machines", Args: arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				var from time.Time
				if since > 0 {
					from = o.env.Now().Add(-since)
				}
				acts, damaged, err := s.Machines.Acts(ctx, ref, from)
				if err != nil {
					return err
				}
				for _, d := range damaged {
					cli.Complain(o.env, program, fmt.Errorf("warning: %s", d))
				}
				if len(acts)+len(damaged) == 0 {
					if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
						return err
					}
				}
				if acts == nil {
					acts = []machines.Act{}
				}
				return o.out.Print(o.env, acts, func(t *cli.Table) error {
					t.Row("WHEN", "NODE", "DID", "BY", "WHY")
					for _, a := range acts {
						t.Row(a.At.UTC().Format(time.RFC3339), a.Node, string(a.Did), a.By, render.Reasons(a.Reasons))
					}
					return nil
				})
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	cmd.Flags().DurationVar(&since, "since", 0, "only what was done in this time until now, as in 24h (default: all that is kept, the newest 1,000)")
	o.out.AddFlags(cmd.Flags())
	return cmd
}
