package main

import (
	"fmt"

	"pulley/internal/firstboot/steps"

	"github.com/spf13/cobra"
)

func newLeave(o *options) *cobra.Command {
	var atPoweroff bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Remove this machine from the fleet and reject its certificate from now on",
		Long: `leave tells pulley serve that this node goes for good: its certificate is revoked, and it is no longer on the list of hosts
that should be alive. Its identity is removed from this machine, and no runs happen here any more. What Puppet set up stays.

EXIT STATUS
  0 left, or left before; 1 failed, 2 wrong usage`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			node, left, err := steps.Leave(c.Context(), o.Flags, o.env, atPoweroff)
			switch {
			case err != nil:
				return err
			case !left:
				fmt.Fprintln(o.env.Stdout, "this machine is not powered off: it stays in the fleet")
			default:
				fmt.Fprintf(o.env.Stdout, "%s: left %s\n", node.Node, node.Environment)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&atPoweroff, "at-poweroff", false, "only while systemd powers the machine off; not when it reboots")
	return cmd
}
