package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/store"
)

func newReleasesDiff(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff FROM TO [PATH...]",
		Short: "List the files that differ between two releases",
		Long: `diff lists the files that were added (A), removed (D), changed (M) or renamed (R) from one release to the other. Paths
narrow the list to files, or to the contents of folders.

To see the lines that differ, export both releases and compare the folders.

EXIT STATUS
  0 done, whether they differ or not; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Example: `  pulley releases diff 1.3.0 1.4.0 manifests hieradata
  pulley releases export 1.3.0 --to old && pulley releases export 1.4.0 --to new && diff -ru old new`,
		Args: arguments(2, 1<<20, "takes two versions, and optional paths"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.withStore(c, func(ctx context.Context, s *store.Store) error {
				r, err := publish.Compare(ctx, s, args[0], args[1], args[2:])
				if err != nil {
					return err
				}
				return o.out.Print(o.env, r, func(t *cli.Table) error {
					o.showComparison(t, r, args[2:])
					return nil
				})
			})
		},
	}
	o.out.AddFlags(cmd.Flags())
	return cmd
}

func (o *options) showComparison(t *cli.Table, r publish.Comparison, paths []string) {
	letters := map[publish.ChangeKind]string{publish.Added: "A", publish.Removed: "D", publish.Changed: "M", publish.Renamed: "R"}
	switch {
	case len(r.Changes) == 0 && len(paths) > 0:
		cli.Cleanf(o.env.Stdout, "no differences in %s\n", strings.Join(paths, ", "))
		return
	case len(r.Changes) == 0:
		fmt.Fprintf(o.env.Stdout, "%s and %s have the same files\n", r.From, r.To)
		return
	}
	t.Row("", "PATH", "NOTE")
	for _, f := range r.Changes {
		t.Row(letters[f.Change], f.Path, f.Describe())
	}
}
