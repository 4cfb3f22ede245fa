package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/store"
)

func newEnv(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "env", Short: "Check, plan, apply, watch and destroy environments",
		Args: arguments(0, 0, "takes a verb: plan, apply, validate, show, list, watch, history, destroy or schema"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(
		newEnvPlan(o), newEnvApply(o), newEnvValidate(o), newEnvShow(o), newEnvList(o),
		newEnvWatch(o), newEnvHistory(o), newEnvDestroy(o), newEnvSchema(o),
	)
	return cmd
}

func newEnvList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the stored environments", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				names, err := s.Environments.List(ctx)
				if err != nil {
					return err
				}
				if names == nil {
					names = []string{}
				}
				return o.out.Print(o.env, names, func(*cli.Table) error {
					if len(names) > 0 {
						fmt.Fprintln(o.env.Stdout, strings.Join(names, "\n"))
					}
					return nil
				})
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}
