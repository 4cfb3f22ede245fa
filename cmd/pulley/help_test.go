package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
)

// Scripts need documented exit codes, for example to distinguish "not found" from an unreachable etcd.
func TestHelpNamesExitCodes(t *testing.T) {
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		if !strings.Contains(c.Long, "EXIT STATUS\n  0 ") && !c.Hidden {
			t.Errorf("the help of `%s` does not", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(newRoot(cli.Env{}))
}
