package main

import "github.com/spf13/cobra"

func newBootstrap(o *options) *cobra.Command {
	return &cobra.Command{Use: "bootstrap"}
}
