package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pulley/agent"
	"pulley/internal/takeover"
)

func newTakeoverRemove(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "remove", Short: "Remove what starts puppet agent, after a successful run of Pulley", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withNodeLock(func(d *agent.Disk) error {
				m := o.oldAgent(nil)
				s, err := takeover.Load(m.StateDir)
				if err != nil {
					return err
				}
				state, err := d.Load()
				if err != nil {
					return err
				}
				if s.Stage == takeover.Disabled && !verifiedSince(state, s.At) {
					return fmt.Errorf("cannot remove the old agent: Pulley has done no good run since that was disabled (%s)\n`pulley-agent run` does one; `pulley-agent status` says how the last one went", s.At.Format(time.RFC3339))
				}
				if err := m.Remove(c.Context(), o.env.User); err != nil {
					return err
				}
				fmt.Fprintln(o.env.Stdout, "what started puppet agent is gone; its packages are still there, and pulley-agent takeover undo brings the rest back")
				return nil
			})
		},
	}
}

// verifiedSince reports whether a Pulley run has reached the machine's target since then without a failure.
func verifiedSince(s agent.State, since time.Time) bool {
	return !s.LastGood.IsZero() && s.Enforcing == s.LastGood && s.OpenRun == "" && s.Outcome != agent.Failed && s.RanAt.After(since)
}
