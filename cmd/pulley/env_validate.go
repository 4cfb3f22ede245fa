package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
)

func newEnvValidate(o *options) *cobra.Command {
	var f envFileFlags
	cmd := &cobra.Command{
		Use: "validate FILE…", Short: "Report every mistake in environment files, with its place",
		Args: arguments(1, 1000, "takes environment files"),
		RunE: func(c *cobra.Command, args []string) error {
			code := cli.ExitDone
			for _, file := range args {
				e, err := o.readEnvironment(c, file, f)
				if err != nil {
					code = max(code, cli.Code(err))
					cli.Complain(o.env, program, err)
					continue
				}
				fmt.Fprintf(o.env.Stdout, "%s: %s is right: %s of %s, made by %s\n", file, e.Ref(),
					cli.Count(e.Count(), "node"), cli.Count(len(e.Roles), "role"), e.Driver())
			}
			if code == cli.ExitDone {
				return nil
			}
			return &cli.SilentError{Code: code} // all messages are printed
		},
	}
	f.add(cmd)
	return cmd
}
