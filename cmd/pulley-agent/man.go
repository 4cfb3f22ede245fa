//go:build man

package main

import (
	"github.com/spf13/cobra"

	"pulley/cmd/manpages"
)

// addMan adds the verb that `make man` runs. Only its build links the generator.
func addMan(root *cobra.Command) { root.AddCommand(manpages.Command(root)) }
