package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/publish"
	"pulley/internal/store"
)

type exportOptions struct {
	*options
	to, record, mirror string
}

func newReleasesExport(o *options) *cobra.Command {
	e := exportOptions{options: o}
	cmd := &cobra.Command{
		Use:   "export VERSION --to DIR|FILE.tar[.gz]",
		Short: "Write a release to a folder, a tar file or a mirror, or its record to a file",
		Long: `export writes the content of a release. It checks the content as a node does.

  --to DIR          a new or empty folder
  --to FILE.tar     a tar file, the same bytes each time; also .tar.gz and .tgz
  --record FILE     its record, and FILE.sig with its signatures for ssh-keygen -Y verify
  --mirror DIR      all files that installing it takes, for any web server; without a version, of all releases. Undamaged
                    files stay, even if etcd's copies are damaged; nothing is removed

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1<<20, "takes one version; --mirror takes any number"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case e.to == "" && e.record == "" && e.mirror == "":
				return cli.Usagef("give --to, --record or --mirror")
			case e.mirror != "" && (e.to != "" || e.record != ""):
				return cli.Usagef("--mirror excludes --to and --record")
			case publish.CheckExport(e.to) != nil:
				return cli.Usagef("%v", publish.CheckExport(e.to))
			case e.mirror == "" && len(args) != 1:
				return cli.Usagef("`%s` takes one version with --to or --record", c.CommandPath())
			}
			return e.withStore(c, func(ctx context.Context, s *store.Store) error {
				if e.mirror != "" {
					return e.exportMirror(ctx, s, args)
				}
				return e.exportRelease(ctx, s, args[0])
			})
		},
	}
	cmd.Flags().StringVar(&e.to, "to", "", "folder or tar file to write the release to")
	cmd.Flags().StringVar(&e.record, "record", "", "file to write its record to")
	cmd.Flags().StringVar(&e.mirror, "mirror", "", "folder of a mirror to bring up to date")
	return cmd
}

func (e exportOptions) exportRelease(ctx context.Context, s *store.Store, version string) error {
	r, err := s.Releases.Get(ctx, version)
	if err != nil {
		return err
	}
	if e.record != "" {
		signed, err := publish.ExportRecord(r, e.record)
		if err != nil {
			return err
		}
		if signed {
			fmt.Fprintf(e.env.Stdout, "the record of %s is in %s, its signatures are in %s.sig; to verify the first signature:\n"+
				"ssh-keygen -Y verify -f allowed_signers -I NAME@ENVIRONMENT -n pulley-release -s %s.sig < %s\n",
				r.Version, e.record, e.record, e.record, e.record)
		} else {
			fmt.Fprintf(e.env.Stdout, "the record of %s is in %s; it is not signed\n", r.Version, e.record)
		}
	}
	if e.to == "" {
		return nil
	}
	if err := publish.ExportTree(ctx, s, r, e.to); err != nil {
		return err
	}
	fmt.Fprintf(e.env.Stdout, "%s is in %s: %s, %s, tree %.12s\n",
		version, e.to, cli.Count(r.Content.Files, "file"), cli.Bytes(r.Content.Bytes), r.Content.Tree)
	return nil
}

func (e exportOptions) exportMirror(ctx context.Context, s *store.Store, versions []string) error {
	r, progress := e.reporter()
	defer progress.Done()
	done, err := publish.ExportMirror(ctx, s, e.mirror, versions, r)
	if err != nil {
		return err
	}
	progress.Done()
	fmt.Fprintf(e.env.Stdout, "%s has %s: %s, %s of them new with %s\n", e.mirror, cli.Count(done.Releases, "release"),
		cli.Count(done.Files, "file"), cli.Count(done.New, "file"), cli.Bytes(done.NewBytes))
	if done.Unreadable != nil {
		return fmt.Errorf("cannot mirror all releases: %w", done.Unreadable)
	}
	return nil
}
