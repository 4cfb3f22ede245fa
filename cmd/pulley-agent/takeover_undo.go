package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/nodeconfig"
)

func newTakeoverUndo(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "undo", Short: "Restore puppet agent as it was found, and remove Pulley's schedule", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withNodeLock(func(*agent.Disk) error {
				m := o.oldAgent(nil)
				err := m.Undo(c.Context(), o.env.User, func() error {
					err := os.Remove(nodeconfig.Under(m.Root).Crontab())
					if errors.Is(err, os.ErrNotExist) {
						return nil
					}
					return err
				})
				if err != nil {
					return err
				}
				fmt.Fprintln(o.env.Stdout, "puppet agent is as it was found; Pulley has no schedule, and this machine is still a node")
				return nil
			})
		},
	}
}
