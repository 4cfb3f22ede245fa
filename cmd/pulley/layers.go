package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/data"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

func newDataLayers(o *options) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "layers --node NODE -e ENVIRONMENT", Short: "Show the layers of a node's live data, the highest first",
		Long: `layers shows the layers in the order in which the node's Puppet reads them, with its desired target. The environment file of the
release has the order (layers) and the node's attributes; without them the layers are node, role, environment, common.

EXIT STATUS
  0 done; 1 failed, or there is no such node; 2 wrong usage, 3 etcd unreachable`,
		Example: `  pulley data layers --node web1 -e production`,
		Args:    arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if node == "" {
				return cli.Usagef("cannot show layers without a node: give --node NODE")
			}
			return o.inFleet(c, func(ctx context.Context, s *etcd.DB, ref model.Ref) error {
				of, err := data.LayersOf(ctx, s, ref, node)
				if err != nil {
					return err
				}
				return o.out.Print(o.env, of, func(t *cli.Table) error {
					fmt.Fprintf(o.env.Stdout, "%s with release %s and data %d:\n", of.Node, cmp.Or(of.Release, "none"), of.Generation)
					t.Row("LEVEL", "LAYER", "DIGEST")
					for _, l := range of.Layers {
						t.Row(l.Name, cmp.Or(string(l.Layer), "none"), cmp.Or(l.Digest, "none"))
					}
					return nil
				})
			})
		},
	}
	o.fleet.AddFlag(cmd.Flags())
	cmd.Flags().StringVar(&node, "node", "", "the node")
	o.out.AddFlags(cmd.Flags())
	return cmd
}
