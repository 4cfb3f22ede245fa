package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/change"
	"pulley/internal/cli"
	"pulley/internal/store"
)

func newAgentsPromote(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var scope scopeFlags
	var downgrade bool
	var message string
	cmd := &cobra.Command{
		Use:   "promote VERSION -e ENVIRONMENT",
		Short: "Set the version of pulley-agent for an environment, a role or a node",
		Long: `promote sets the wanted version. Each node of the scope fetches it after a tick without other work, tests it, and watches it
for some time before it takes over. If the version fails on a node, the node keeps its old one.

EXIT STATUS
  0 done, or it was wanted already; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(1, 1, "takes one version"),
		RunE: func(c *cobra.Command, args []string) error {
			sc, err := scope.scope()
			if err != nil {
				return err
			}
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				done, err := change.PromoteAgent(ctx, s, ref, sc, args[0], downgrade, o.changing(message, signFlag{}))
				if err != nil {
					return err
				}
				if !done.Made {
					fmt.Fprintf(o.env.Stdout, "%s in %s wants agent %s already\n", sc, ref, done.After)
					return nil
				}
				fmt.Fprintf(o.env.Stdout, "%s in %s: agent %s → %s; %s, each after a tick without other work\n",
					sc, ref, cmp.Or(done.Before, "any"), done.After, takers(done.Takes, "tries", "try"))
				for _, c := range done.Pinned {
					fmt.Fprintf(o.env.Stdout, "  %s stays on its own %s (to remove it: `pulley agents unpin`)\n", c.Scope, c.Version)
				}
				return nil
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	scope.add(cmd, "only the agent")
	cmd.Flags().BoolVar(&downgrade, "allow-downgrade", false, "let nodes go back to it from a newer version")
	cmd.Flags().StringVarP(&message, "message", "m", "", "reason")
	return cmd
}

func newAgentsUnpin(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var scope scopeFlags
	var message string
	cmd := &cobra.Command{
		Use:   "unpin -e ENVIRONMENT",
		Short: "Unset the wanted version of an environment, a role or a node",
		Args:  arguments(0, 0, "takes no arguments; give --role or --node"),
		RunE: func(c *cobra.Command, _ []string) error {
			sc, err := scope.scope()
			if err != nil {
				return err
			}
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				done, err := change.UnpinAgent(ctx, s, ref, sc, o.changing(message, signFlag{}))
				switch {
				case err != nil:
					return err
				case !done.Made:
					fmt.Fprintf(o.env.Stdout, "%s in %s has no version of its own\n", sc, ref)
				default:
					fmt.Fprintf(o.env.Stdout, "%s in %s: agent %s → %s\n", sc, ref, done.Before, cmp.Or(done.After, "any"))
				}
				return nil
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	scope.add(cmd, "the version")
	cmd.Flags().StringVarP(&message, "message", "m", "", "reason")
	return cmd
}

func newAgentsRetry(o *options) *cobra.Command {
	var fleet cli.EnvironmentFlag
	var message string
	cmd := &cobra.Command{
		Use:   "retry -e ENVIRONMENT",
		Short: "Let nodes try versions again that failed on them",
		Args:  arguments(0, 0, "takes no arguments; -e names the environment"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.inFleet(c, fleet, func(ctx context.Context, s *store.Store, ref environments.Ref) error {
				if err := change.RetryAgent(ctx, s, ref, o.changing(message, signFlag{})); err != nil {
					return err
				}
				fmt.Fprintf(o.env.Stdout, "nodes of %s try versions again that failed on them\n", ref)
				return nil
			})
		},
	}
	fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVarP(&message, "message", "m", "", "reason")
	return cmd
}
