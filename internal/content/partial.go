package content

import (
	"context"
	"os"
	"path/filepath"
)

// partial keeps fetched objects on disk until their release is installed. An interrupted installation then resumes with
// these objects. They are checked like bytes from a source. A failed write is not an error.
type partial struct {
	Source
	dir string
}

const partialDir = "fetched"

func (s *Store) partial(src Source) *partial {
	return &partial{Source: src, dir: filepath.Join(s.dir, partialDir)}
}

// Object returns the object from disk, or fetches it from the source.
func (s *partial) Object(ctx context.Context, hash string) ([]byte, error) {
	path := filepath.Join(s.dir, hash)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() <= MaxStored {
		if b, err := os.ReadFile(path); err == nil && hashOf(b) == hash {
			return b, nil
		}
	}
	b, err := s.Source.Object(ctx, hash)
	if err != nil || hashOf(b) != hash {
		return b, err // fetchObject reports errors in b
	}
	if os.MkdirAll(s.dir, 0o700) != nil {
		return b, nil
	}
	// Not flushed: after a power cut the hash shows whether the file is complete.
	next := path + ".new"
	if os.WriteFile(next, b, 0o600) != nil || os.Rename(next, path) != nil {
		_ = os.Remove(next)
	}
	return b, nil
}

// bytes returns the size of the kept objects.
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

// empty removes all kept objects.
func (s *partial) empty() { _ = os.RemoveAll(s.dir) }
