package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pulley/internal/cli"
	"pulley/internal/content"
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
		Short: "write a release to a folder, a tar file or a mirror, or its record to a file",
		Long: `export writes what a release contains, checked as a node checks it:

  --to DIR          as a folder, which must be new or empty
  --to FILE.tar     as a tar file, the same bytes each time; also .tar.gz and .tgz
  --record FILE     its record, and FILE.sig with its signatures, as ssh-keygen -Y verify takes them
  --mirror DIR      everything that installing it takes, as files that any web server can hand out to nodes; without a
                    version, all releases. Files that are there and whole stay, also where etcd's are damaged; nothing is removed

EXIT STATUS
  0 done, 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(0, 1<<20, "takes one version; --mirror takes any number"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case e.to == "" && e.record == "" && e.mirror == "":
				return cli.Usagef("where to? give --to, --record or --mirror")
			case e.mirror != "" && (e.to != "" || e.record != ""):
				return cli.Usagef("--mirror excludes --to and --record")
			case otherArchive(e.to) != "":
				return cli.Usagef("cannot write %s: there are a folder, .tar, .tar.gz and .tgz", cli.Clean(otherArchive(e.to)))
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
	r, err := s.Release(ctx, version)
	if err != nil {
		return err
	}
	if e.record != "" {
		if err := e.exportRecord(r); err != nil {
			return err
		}
	}
	if e.to == "" {
		return nil
	}
	if err := e.exportTree(ctx, s, r); err != nil {
		return fmt.Errorf("cannot export %s to %s: %w", version, e.to, err)
	}
	fmt.Fprintf(e.env.Stdout, "%s is in %s: %s, %s, tree %.12s\n",
		version, e.to, cli.Count(r.Content.Files, "file"), cli.Bytes(r.Content.Bytes), r.Content.Tree)
	return nil
}

// exportRecord writes the very bytes that the signatures are over, and the signatures beside them.
func (e exportOptions) exportRecord(r store.SignedRelease) error {
	if err := writeWhole(e.record, append(append([]byte{}, r.Record...), '\n')); err != nil {
		return fmt.Errorf("cannot export the record of %s: %w", r.Version, err)
	}
	if len(r.Signatures) == 0 {
		// What an earlier export left would be a signature of something else.
		if err := os.Remove(e.record + ".sig"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot export the record of %s: %w", r.Version, err)
		}
		fmt.Fprintf(e.env.Stdout, "the record of %s is in %s; it is not signed\n", r.Version, e.record)
		return nil
	}
	if err := writeWhole(e.record+".sig", r.Signatures); err != nil {
		return fmt.Errorf("cannot export the signatures of %s: %w", r.Version, err)
	}
	fmt.Fprintf(e.env.Stdout, "the record of %s is in %s, its signatures are in %s.sig; to check the first one of them:\n"+
		"ssh-keygen -Y verify -f allowed_signers -I NAME@ENVIRONMENT -n pulley-release -s %s.sig < %s\n",
		r.Version, e.record, e.record, e.record, e.record)
	return nil
}

// exportTree installs the release into a store of its own beside the target, as a node does, and makes the target of that.
func (e exportOptions) exportTree(ctx context.Context, s *store.Store, r store.SignedRelease) (err error) {
	to, err := filepath.Abs(e.to)
	if err != nil {
		return err
	}
	archive, zipped := archiveName(to)
	if !archive {
		if err := newOrEmpty(to); err != nil {
			return err
		}
	}
	if err := isFolder(filepath.Dir(to)); err != nil {
		return err
	}
	private, err := os.MkdirTemp(filepath.Dir(to), temporary)
	if err != nil {
		return besides(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	trees, err := content.OpenStore(private)
	if err != nil {
		return err
	}
	trees.Reserve = 0
	if err := trees.Install(ctx, s, r.Content); err != nil {
		if content.Audit(ctx, s, r.Content) != nil { // it is not this machine that is in the way
			err = damaged(ctx, err)
		}
		return err
	}
	root := trees.Path(r.Content.Tree)
	if archive {
		return writeArchive(ctx, to, zipped, root, r.At)
	}
	if err := loosen(root); err != nil {
		return err
	}
	return unix.Rename(root, to) // over an empty folder, should there be one, which os.Rename refuses
}

func archiveName(to string) (archive, zipped bool) {
	switch {
	case strings.HasSuffix(to, ".tar"):
		return true, false
	case strings.HasSuffix(to, ".tar.gz"), strings.HasSuffix(to, ".tgz"):
		return true, true
	}
	return false, false
}

// otherArchives end what somebody means to be a file, and would get as a folder.
var otherArchives = []string{
	".zip", ".7z", ".rar", ".cpio", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".tbz", ".tbz2", ".txz", ".tzst",
}

// otherArchive is the kind of file that is asked for and can't be written; "" when there is none.
func otherArchive(to string) string {
	if to == "-" {
		return to
	}
	if archive, _ := archiveName(to); archive {
		return ""
	}
	for _, end := range otherArchives {
		if rest, ok := strings.CutSuffix(to, end); ok {
			if strings.HasSuffix(rest, ".tar") {
				end = ".tar" + end
			}
			return end
		}
	}
	return ""
}

// newOrEmpty refuses a folder that has something in it: what is not of the release would pass for a part of it.
func newOrEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return errors.New("the folder is not empty\ngive a new one, or empty it first")
	}
	return nil
}

// loosen gives files the modes that they had when they were published: a node's are read-only.
func loosen(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.Chmod(path, exportedMode(info.Mode()))
	})
}

func exportedMode(mode fs.FileMode) fs.FileMode {
	if mode&0o111 != 0 {
		return 0o755
	}
	return 0o644
}
