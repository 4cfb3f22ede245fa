package main

import (
	"io"

	"github.com/spf13/cobra"

	"pulley/environments"
	"pulley/internal/cli"
)

func newEnvSchema(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "schema [cloud]", Short: "Print the JSON Schema of environment or cloud files",
		Args: arguments(0, 1, "takes nothing, or the word cloud"),
		RunE: func(_ *cobra.Command, args []string) error {
			schema := environments.Schema()
			if len(args) == 1 {
				if args[0] != "cloud" {
					return cli.Usagef("there is no schema of %s: `pulley env schema` and `pulley env schema cloud` print one", quoted(args[0]))
				}
				schema = environments.CloudSchema()
			}
			_, err := io.WriteString(o.env.Stdout, schema)
			return err
		},
	}
}
