package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pulley/internal/bounded"
	"pulley/internal/etcd"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/mirror"
)

// Mirrored is the result of ExportMirror.
type Mirrored struct {
	Releases   int
	Files      int // of these releases
	New        int
	NewBytes   int64
	Unreadable error // *release.UnreadableReleases: these releases are missing
}

// ExportMirror writes the files that installing these releases needs to a folder; without versions, those of all
// releases. It removes no files. A node that reads at the same time finds complete files or none.
func ExportMirror(ctx context.Context, s *release.Releases, dir string, versions []string, r Reporter) (Mirrored, error) {
	var unreadable *release.UnreadableReleases
	releases, err := releasesOf(ctx, s, versions)
	if err != nil && !errors.As(err, &unreadable) {
		return Mirrored{}, err
	}
	m := &mirrorFolder{dir: dir, seen: map[string]bool{}}
	if m.want, err = deltaHashes(ctx, s); err != nil {
		return Mirrored{}, err
	}
	for _, release := range releases {
		r.Progress(Progress{Step: Mirroring, Subject: release.Version, Values: len(m.seen), Bytes: m.bytes})
		if err := m.release(ctx, s, release); err != nil {
			return Mirrored{}, fmt.Errorf("cannot mirror %s to %s: %w", release.Version, dir, err)
		}
	}
	done := Mirrored{Releases: len(releases), Files: len(m.seen), New: m.written, NewBytes: m.bytes}
	if unreadable != nil {
		done.Unreadable = unreadable
	}
	return done, nil
}

// deltaHashes returns the hashes of all deltas by name, from the records of all releases.
func deltaHashes(ctx context.Context, s *release.Releases) (map[string]string, error) {
	all, err := s.List(ctx)
	var unreadable *release.UnreadableReleases
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

// mirrorFolder is the folder of a mirror during ExportMirror.
type mirrorFolder struct {
	dir     string
	seen    map[string]bool
	want    map[string]string // hashes of deltas by name
	written int
	bytes   int64
}

func (m *mirrorFolder) release(ctx context.Context, s *release.Releases, r release.SignedRelease) error {
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
	// The release has its own base. Its delta is for nodes on the previous release, and a prune may have removed it.
	if chain.Delta != nil && r.Content.Base.Seq == chain.Seq {
		if err := m.delta(ctx, s, r, chain.Seq); !errors.Is(err, etcd.ErrNotFound) {
			return err
		}
	}
	return nil
}

// delta writes the delta to a position of a release's line. Its hash is in the record of the release at that position.
// If that release was pruned, only the complete chain can be checked.
func (m *mirrorFolder) delta(ctx context.Context, s *release.Releases, r release.SignedRelease, seq int64) error {
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
		wrong := want != "" && content.HashOf(b) != want
		if want == "" && have != nil && !bytes.Equal(have, b) {
			if err := content.Audit(ctx, s, r.Content); fatal(ctx, err) {
				return nil, err
			} else if err != nil {
				wrong = true
			}
		}
		switch {
		case wrong && have != nil:
			return nil, damaged(ctx, fmt.Errorf("delta %s or a later one is damaged in etcd; the mirror keeps its own file", name))
		case wrong:
			return nil, damaged(ctx, fmt.Errorf("delta %s is damaged in etcd", name))
		}
		return b, nil
	})
}

// file writes a file unless an undamaged one exists. Read receives the existing bytes, or nil, and returns the bytes to
// write.
func (m *mirrorFolder) file(name, want string, read func(have []byte) ([]byte, error)) error {
	if m.seen[name] {
		return nil
	}
	file := filepath.Join(m.dir, filepath.FromSlash(name))
	have, err := bounded.ReadFile(file, 1<<30)
	switch {
	case err == nil && want != "" && content.HashOf(have) == want:
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
	return writeFile(file, b)
}
