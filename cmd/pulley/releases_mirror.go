package main

import (
	"bytes"
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
	want    map[string]string // hashes of deltas by their names, as records of releases say
	written int
	bytes   int64
}

// exportMirror writes what installing these releases takes as files. A node that reads while it runs finds whole files, or
// none, and asks etcd.
func (e exportOptions) exportMirror(ctx context.Context, s *store.Store, versions []string) error {
	var unreadable *store.UnreadableReleases
	releases, err := releasesOf(ctx, s, versions)
	if err != nil && !errors.As(err, &unreadable) {
		return err
	}
	m := &mirrorFolder{dir: e.mirror, seen: map[string]bool{}}
	if m.want, err = deltaHashes(ctx, s); err != nil {
		return err
	}
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
	if unreadable != nil {
		return fmt.Errorf("cannot mirror all: %w", unreadable)
	}
	return nil
}

// deltaHashes are the hashes of all deltas that a release's record tells, whichever releases are asked for.
func deltaHashes(ctx context.Context, s *store.Store) (map[string]string, error) {
	all, err := s.Releases(ctx)
	var unreadable *store.UnreadableReleases
	if err != nil && !errors.As(err, &unreadable) {
		return nil, err
	}
	hashes := map[string]string{}
	for _, r := range all {
		if chain := r.Content.Chain; chain.Delta != nil {
			name, err := mirror.DeltaName(chain.Line, chain.Seq)
			if err != nil {
				return nil, err
			}
			hashes[name] = chain.Delta.Hash
		}
	}
	return hashes, nil
}

func (m *mirrorFolder) release(ctx context.Context, s *store.Store, r store.SignedRelease) error {
	src := mirror.Checked(s)
	objects, err := content.References(ctx, src, r.Content)
	if err != nil {
		return damaged(ctx, err)
	}
	for _, o := range objects {
		name, err := mirror.ObjectName(o.Hash)
		if err != nil {
			return err
		}
		err = m.file(name, o.Hash, func([]byte) ([]byte, error) {
			b, err := src.Object(ctx, o.Hash)
			if err != nil {
				err = damaged(ctx, err)
			}
			return b, err
		})
		if err != nil {
			return err
		}
	}
	chain := r.Content.Chain
	for seq := r.Content.Base.Seq + 1; seq <= chain.Seq; seq++ {
		if err := m.delta(ctx, s, r, seq); err != nil {
			return err
		}
	}
	// Of a release with a base of its own, for nodes that come from the one before.
	if chain.Delta != nil && r.Content.Base.Seq == chain.Seq {
		if err := m.delta(ctx, s, r, chain.Seq); !errors.Is(err, store.ErrNotFound) { // pruned, with those before
			return err
		}
	}
	return nil
}

// delta writes the delta to a position of a release's line. What its bytes have to be, the record of the release at that
// position says; where that is pruned, only the whole chain does.
func (m *mirrorFolder) delta(ctx context.Context, s *store.Store, r store.SignedRelease, seq int64) error {
	line := r.Content.Chain.Line
	name, err := mirror.DeltaName(line, seq)
	if err != nil {
		return err
	}
	want := m.want[name]
	return m.file(name, want, func(have []byte) ([]byte, error) {
		deltas, err := s.Deltas(ctx, line, seq, seq)
		if err != nil {
			return nil, damaged(ctx, err)
		}
		b := deltas[0]
		wrong := want != "" && hashOf(b) != want
		if want == "" && have != nil && !bytes.Equal(have, b) {
			if err := content.Audit(ctx, s, r.Content); fatal(ctx, err) {
				return nil, err
			} else if err != nil {
				wrong = true
			}
		}
		switch {
		case wrong && have != nil:
			return nil, fmt.Errorf("delta %s is damaged in etcd, or one behind it; the mirror keeps its own\n`pulley releases verify` says what else is", name)
		case wrong:
			return nil, fmt.Errorf("delta %s is damaged in etcd\n`pulley releases verify` says what else is", name)
		}
		return b, nil
	})
}

// file makes sure that a file is there. One that is there and whole stays. Read gets what is there, nil for nothing, and
// returns what is to be there; an error leaves it.
func (m *mirrorFolder) file(name, want string, read func(have []byte) ([]byte, error)) error {
	if m.seen[name] {
		return nil
	}
	file := filepath.Join(m.dir, filepath.FromSlash(name))
	have, err := os.ReadFile(file)
	switch {
	case err == nil && want != "" && hashOf(have) == want:
		m.seen[name] = true
		return nil
	case errors.Is(err, fs.ErrNotExist):
		have = nil
	case err != nil:
		return err
	}
	b, err := read(have)
	if err != nil {
		return err
	}
	m.seen[name] = true
	if have != nil && bytes.Equal(have, b) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	m.written++
	m.bytes += int64(len(b))
	return writeWhole(file, b)
}
