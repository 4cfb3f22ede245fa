package main

import (
	"github.com/spf13/cobra"

	"pulley/internal/cli"
)

func newDemo(o *options) *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play the life of a small fleet on this machine, and leave nothing behind",
		Long: `demo starts a private etcd and three machines, each a copy-on-write view of this one. It runs real Puppet and shows an
operator's work: a first release, a change of data, a second release, a rollout that stops by itself, and its revert. Then
the fleet stays up until Ctrl-C. The demo changes nothing on this machine and leaves nothing of the fleet, however it ends.

It needs Linux, root, Puppet and ssh-keygen.

EXIT STATUS
  0 done, with --once: every step succeeded; 1 failed, or stopped before the end; 2 wrong usage`,
		Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("endpoints") {
				return cli.Usagef("cannot use --endpoints: the demo runs its own etcd\nrun it without --endpoints")
			}
			return runDemo(c.Context(), o.env, once)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "end after the last step")
	return cmd
}
