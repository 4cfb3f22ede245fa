package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/mirror"
	"pulley/internal/store"
)

// mirrorFolder is a mirror that is brought up to date.
type mirrorFolder struct {
	dir     string
	seen    map[string]bool
	written int
	bytes   int64
}

// exportMirror writes what installing these releases takes as files. A node that reads while it runs finds whole files, or
// none, and asks etcd.
func (e exportOptions) exportMirror(ctx context.Context, s *store.Store, versions []string) error {
	releases, err := releasesOf(ctx, s, versions)
	if err != nil {
		return err
	}
	m := &mirrorFolder{dir: e.mirror, seen: map[string]bool{}}
	progress := cli.NewProgress(e.env)
	defer progress.Done()
	for _, r := range releases {
		progress.Show(fmt.Sprintf("mirroring %s: %s, %s new", r.Version, cli.Count(len(m.seen), "file"), cli.Bytes(m.bytes)))
		if err := m.release(ctx, s, r); err != nil {
			return fmt.Errorf("cannot mirror %s to %s: %w", r.Version, m.dir, err)
		}
	}
	progress.Done()
	fmt.Fprintf(e.env.Stdout, "%s has %s: %s, %s of them new with %s\n",
		m.dir, cli.Count(len(releases), "release"), cli.Count(len(m.seen), "file"), cli.Count(m.written, "file"), cli.Bytes(m.bytes))
	return nil
}

func (m *mirrorFolder) release(ctx context.Context, s *store.Store, r store.SignedRelease) error {
	src := mirror.Checked(s)
	objects, err := content.References(ctx, src, r.Content)
	if err != nil {
		return err
	}
	for _, o := range objects {
		name, err := mirror.ObjectName(o.Hash)
		if err != nil {
			return err
		}
		err = m.file(name, o.Hash, func() ([]byte, error) { return src.Object(ctx, o.Hash) })
		if err != nil {
			return err
		}
	}
	chain := r.Content.Chain
	for seq := r.Content.Base.Seq + 1; seq <= chain.Seq; seq++ {
		want := "" // only the record of the release at that position says
		if seq == chain.Seq && chain.Delta != nil {
			want = chain.Delta.Hash
		}
		if err := m.delta(ctx, s, chain.Line, seq, want); err != nil {
			return err
		}
	}
	// Of a release with a base of its own, for nodes that come from the one before.
	if chain.Delta != nil && r.Content.Base.Seq == chain.Seq {
		if err := m.delta(ctx, s, chain.Line, chain.Seq, chain.Delta.Hash); !errors.Is(err, store.ErrNotFound) { // pruned, with those before
			return err
		}
	}
	return nil
}

func (m *mirrorFolder) delta(ctx context.Context, s *store.Store, line string, seq int64, want string) error {
	name, err := mirror.DeltaName(line, seq)
	if err != nil {
		return err
	}
	return m.file(name, want, func() ([]byte, error) {
		deltas, err := s.Deltas(ctx, line, seq, seq)
		if err != nil {
			return nil, err
		}
		if want != "" && hashOf(deltas[0]) != want {
			return nil, errors.New("delta " + name + " is damaged\n`pulley releases verify` says what else is")
		}
		return deltas[0], nil
	})
}

// file makes sure that a file is there. One that is there and whole stays; where nobody says what it has to be, it is read
// and compared.
func (m *mirrorFolder) file(name, want string, read func() ([]byte, error)) error {
	if m.seen[name] && want == "" {
		return nil
	}
	m.seen[name] = true
	file := filepath.Join(m.dir, filepath.FromSlash(name))
	have, err := os.ReadFile(file)
	switch {
	case err == nil && want != "" && hashOf(have) == want:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	there := err == nil
	b, err := read()
	if err != nil {
		return err
	}
	if there && string(have) == string(b) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	m.written++
	m.bytes += int64(len(b))
	return writeWhole(file, b)
}
