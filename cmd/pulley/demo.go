package main

import "github.com/spf13/cobra"

func newDemo(*options) *cobra.Command { return &cobra.Command{Use: "demo"} }
