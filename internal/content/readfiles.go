package content

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
)

// ReadFiles returns the contents of those files of a release, by path, that want says true to, without installing it.
// It fetches only the packs that hold them. A link to a file is such a file too; what lies behind a link to a folder is
// found under its own path only.
func ReadFiles(ctx context.Context, src Source, r Record, want func(path string) bool) (map[string][]byte, error) {
	files, err := readFiles(ctx, src, r, want)
	if err != nil {
		return nil, fmt.Errorf("cannot read files of release tree %s: %w", r.Tree, err)
	}
	return files, nil
}

func readFiles(ctx context.Context, src Source, r Record, want func(path string) bool) (map[string][]byte, error) {
	m, err := fetchManifest(ctx, src, r)
	if err != nil {
		return nil, err
	}
	wanted := wantedFiles(m, want)
	needed := map[[sha256.Size]byte][]byte{emptyHash: {}}
	for _, e := range wanted {
		if e.Size > 0 {
			needed[e.Hash] = nil
		}
	}
	s, err := openStream(ctx, src, r.Packs)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for _, e := range distinct(m) {
		if _, ok := needed[e.Hash]; !ok {
			if err := s.skip(e.Size); err != nil {
				return nil, err
			}
			continue
		}
		content := make([]byte, e.Size)
		if _, err := io.ReadFull(s, content); err != nil {
			return nil, err
		}
		if sha256.Sum256(content) != e.Hash {
			return nil, wrongContent(e.Path)
		}
		needed[e.Hash] = content
	}
	files := make(map[string][]byte, len(wanted))
	for p, e := range wanted {
		files[p] = needed[e.Hash]
	}
	return files, nil
}

// wantedFiles returns the regular files behind the wanted paths.
func wantedFiles(m *Manifest, want func(path string) bool) map[string]Entry {
	t := tree(m.Entries)
	wanted := map[string]Entry{}
	for _, e := range m.Entries {
		if e.Kind == KindDirectory || !want(e.Path) {
			continue
		}
		file := e
		if e.Kind == KindLink {
			end, _ := t.resolve(e)
			file, _ = t.find(end)
		}
		if file.regular() {
			wanted[e.Path] = file
		}
	}
	return wanted
}

func wrongContent(path string) error {
	return fmt.Errorf("cannot accept the content of %q: it is not what the manifest says", path)
}
