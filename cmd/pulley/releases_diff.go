package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/store"
)

type diffOptions struct {
	*options
	patch, stat bool
}

// releaseDiff is what -o json has.
type releaseDiff struct {
	From    string        `json:"from"`
	To      string        `json:"to"`
	Changes []*fileChange `json:"changes"`
}

func newReleasesDiff(o *options) *cobra.Command {
	d := diffOptions{options: o}
	cmd := &cobra.Command{
		Use:   "diff FROM TO [PATH...]",
		Short: "show what differs between two releases",
		Long: `diff lists the files that were added (A), removed (D), changed (M) or renamed (R) from one release to the other. Paths
narrow it down to files, or to what is in folders. --patch shows the lines that differ, as patch -p1 reads them; what it
can't say (renames, modes, links, empty folders, files that are no text or larger than 1 MiB) is only named.

EXIT STATUS
  0 done, whether they differ or not; 1 failed, 2 wrong usage, 3 etcd unreachable`,
		Args: arguments(2, 1<<20, "takes two versions, and paths if you like"),
		RunE: func(c *cobra.Command, args []string) error {
			return d.withStore(c, func(ctx context.Context, s *store.Store) error { return d.diff(ctx, s, args[0], args[1], args[2:]) })
		},
	}
	d.out.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&d.patch, "patch", false, "show the lines that differ")
	cmd.Flags().BoolVar(&d.stat, "stat", false, "count the lines that differ")
	return cmd
}

func (d diffOptions) diff(ctx context.Context, s *store.Store, from, to string, paths []string) error {
	for i, p := range paths {
		paths[i] = path.Clean(strings.Trim(p, "/"))
	}
	a, err := openRelease(ctx, s, from)
	if err != nil {
		return err
	}
	b, err := openRelease(ctx, s, to)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if !has(a.Manifest(), p) && !has(b.Manifest(), p) {
			return fmt.Errorf("cannot compare %s: neither %s nor %s has it\ngive paths from the root of a release, like manifests/site.pp", quoted(p), from, to)
		}
	}
	c := compare(a.Manifest(), b.Manifest(), func(p string) bool { return within(p, paths) })
	if d.patch || d.stat {
		if err := c.readPatches(ctx, a, b); err != nil {
			return damaged(ctx, err)
		}
	}
	result := releaseDiff{From: from, To: to, Changes: c.changes}
	if result.Changes == nil {
		result.Changes = []*fileChange{}
	}
	if !d.patch {
		for _, f := range c.changes {
			f.Patch = ""
		}
	}
	if d.patch && d.out.ForPeople() && len(result.Changes) > 0 {
		d.showPatches(result)
		return nil
	}
	return d.out.Print(d.env, result, func(t *cli.Table) error {
		d.table(t, result, paths)
		return nil
	})
}

func openRelease(ctx context.Context, s *store.Store, version string) (*content.View, error) {
	r, err := s.Release(ctx, version)
	if err != nil {
		return nil, err
	}
	v, err := content.OpenView(ctx, s, r.Content)
	if err != nil {
		return nil, damaged(ctx, fmt.Errorf("cannot read release %s: %w", version, err))
	}
	return v, nil
}

// damaged says where to look for what is wrong with content that can't be read from etcd.
func damaged(ctx context.Context, err error) error {
	if fatal(ctx, err) {
		return err
	}
	return fmt.Errorf("%w\n`pulley releases verify` names the key", err)
}

// has says whether a release has something under a path.
func has(m *content.Manifest, p string) bool {
	return p == "." || slices.ContainsFunc(m.Entries, func(e content.Entry) bool { return e.Path == p })
}

// within says whether a path is one of those that were asked for, or in one of these folders.
func within(p string, asked []string) bool {
	for _, a := range asked {
		if p == a || a == "." || strings.HasPrefix(p, a+"/") {
			return true
		}
	}
	return len(asked) == 0
}

// readPatches reads the contents of what differs, and only those, and compares them.
func (c *comparison) readPatches(ctx context.Context, a, b *content.View) error {
	before, after := map[string]bool{}, map[string]bool{}
	for _, f := range c.changes {
		was, is := c.entries[f][0], c.entries[f][1]
		if !needsContents(was, is) {
			continue
		}
		if isFile(was) {
			before[was.Path] = true
		}
		if isFile(is) {
			after[is.Path] = true
		}
	}
	old, err := a.ReadFiles(ctx, func(p string) bool { return before[p] })
	if err != nil {
		return err
	}
	now, err := b.ReadFiles(ctx, func(p string) bool { return after[p] })
	if err != nil {
		return err
	}
	for _, f := range c.changes {
		was, is := c.entries[f][0], c.entries[f][1]
		switch {
		case !sized(was) || !sized(is):
			f.note = fmt.Sprintf("has more than %s", cli.Bytes(maxPatchBytes))
		case needsContents(was, is):
			f.setPatch(bytesOf(was, old), bytesOf(is, now))
		}
	}
	return nil
}

func bytesOf(e *content.Entry, files map[string][]byte) []byte {
	if !isFile(e) {
		return nil
	}
	return files[e.Path]
}

var changeLetters = map[changeKind]string{fileAdded: "A", fileRemoved: "D", fileChanged: "M", fileRenamed: "R"}

func (d diffOptions) table(t *cli.Table, r releaseDiff, paths []string) {
	switch {
	case len(r.Changes) == 0 && len(paths) > 0:
		cli.Cleanf(d.env.Stdout, "nothing differs in %s\n", strings.Join(paths, ", "))
		return
	case len(r.Changes) == 0:
		fmt.Fprintf(d.env.Stdout, "%s and %s have the same files\n", r.From, r.To)
		return
	}
	if d.stat {
		t.Row("", "PATH", "+", "-", "NOTE")
	} else {
		t.Row("", "PATH", "NOTE")
	}
	for _, f := range r.Changes {
		cells := []string{changeLetters[f.Change], f.Path}
		if d.stat {
			cells = append(cells, counted(f.Added), counted(f.Removed))
		}
		t.Row(append(cells, f.notes())...)
	}
}

func counted(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

func (c *fileChange) notes() string {
	notes := []string{}
	for _, n := range []string{c.describe(), c.note} {
		if n != "" {
			notes = append(notes, n)
		}
	}
	if c.Binary {
		notes = append(notes, "no text")
	}
	return strings.Join(notes, ", ")
}

// showPatches prints all patches. What is no patch is a line that patch and git apply pass over.
func (d diffOptions) showPatches(r releaseDiff) {
	for _, f := range r.Changes {
		if notes := f.notes(); notes != "" || f.Patch == "" {
			cli.Cleanf(d.env.Stdout, "%s %s", f.Change, f.Path)
			if notes != "" {
				cli.Cleanf(d.env.Stdout, ": %s", notes)
			}
			fmt.Fprintln(d.env.Stdout)
		}
		if !d.env.Terminal {
			_, _ = io.WriteString(d.env.Stdout, f.Patch)
			continue
		}
		for line := range strings.Lines(f.Patch) {
			fmt.Fprintln(d.env.Stdout, strings.Join(cleanFields(line), "\t"))
		}
	}
}

// cleanFields makes a line of a file safe for a terminal and leaves its tabs.
func cleanFields(line string) []string {
	fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
	for i, f := range fields {
		fields[i] = cli.Clean(f)
	}
	return fields
}
