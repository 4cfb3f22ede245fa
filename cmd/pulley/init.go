package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/controlrepo"
)

func newInit(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "init DIR",
		Short: "Write a small control repository to start from",
		Long: `init writes environments/dev.yaml, hieradata, hiera.yaml, manifests/site.pp and the module that keeps the agent's
schedule into DIR, which has to be empty or missing.

EXIT STATUS
  0 done, 1 failed, 2 wrong usage`,
		Args: arguments(1, 1, "takes the folder to write"),
		RunE: func(_ *cobra.Command, args []string) error {
			files, err := controlrepo.Init(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(o.env.Stdout, "wrote %d files to %s\nnext: pulley validate %s; pulley publish %s --version 1.0.0\n",
				len(files), args[0], args[0], args[0])
			return nil
		},
	}
}
