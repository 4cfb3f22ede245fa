package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/store"
)

func newReleases(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "releases", Short: "list what is published, newest version first", Args: arguments(0, 0, "takes no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				all, err := s.Releases(ctx)
				if err != nil {
					return err
				}
				slices.Reverse(all)
				if all == nil {
					all = []store.Release{}
				}
				return o.out.Print(o.env, all, func(t *cli.Table) error {
					if len(all) == 0 {
						fmt.Fprintln(o.env.Stdout, "no release is published; `pulley publish DIR --version 1.0.0` makes the first one")
						return nil
					}
					t.Row("VERSION", "TREE", "FILES", "SIZE", "STORED", "PUBLISHED", "BY", "COMMIT", "MESSAGE")
					for _, r := range all {
						commit := fmt.Sprintf("%.10s", r.Commit)
						if r.Dirty {
							commit += "+"
						}
						t.Row(r.Version, r.Content.Tree[:min(12, len(r.Content.Tree))], strconv.Itoa(r.Content.Files), cli.Bytes(r.Content.Bytes),
							cli.Bytes(r.Content.Stored), cli.Ago(o.env.Now(), r.At), r.Author, commit, r.Message)
					}
					return nil
				})
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}
