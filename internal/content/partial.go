package content

import (
	"context"
	"os"
	"path/filepath"
)

// partial keeps objects on disk from when they were fetched until the release that needs them is installed, so that an
// installation that was cut off goes on where it stopped. What it holds is checked like what a source says. It is no loss
// when it can't be written.
type partial struct {
	Source
	dir string
}

const partialDir = "fetched"

func (s *Store) partial(src Source) *partial {
	return &partial{Source: src, dir: filepath.Join(s.dir, partialDir)}
}

// Object returns what is here, or asks the source.
func (s *partial) Object(ctx context.Context, hash string) ([]byte, error) {
	path := filepath.Join(s.dir, hash)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() <= MaxStored {
		if b, err := os.ReadFile(path); err == nil && hashOf(b) == hash {
			return b, nil
		}
	}
	b, err := s.Source.Object(ctx, hash)
	if err != nil || hashOf(b) != hash {
		return b, err // what is wrong with it, fetchObject says
	}
	if os.MkdirAll(s.dir, 0o700) != nil {
		return b, nil
	}
	// Not flushed: after a power cut its hash tells what it is worth.
	next := path + ".new"
	if os.WriteFile(next, b, 0o600) != nil || os.Rename(next, path) != nil {
		_ = os.Remove(next)
	}
	return b, nil
}

// bytes is how much is here.
func (s *partial) bytes() int64 {
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return 0
	}
	var sum int64
	for _, n := range names {
		if info, err := n.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// empty removes everything.
func (s *partial) empty() { _ = os.RemoveAll(s.dir) }
