package content

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A spare is a tree that collection took away and kept: the next release is made of it by changing what differs, which is
// less work than linking every file anew and deleting every name of an old tree. There is at most one. Nobody sees it, and
// what an installation makes of it is surveyed like everything that is taken from disk.

func (s *Store) spares() string { return filepath.Join(s.dir, spareDir) }

// keepSpare puts a tree aside, in the place of an earlier spare. The caller holds the store's lock and has made sure that
// nobody uses the tree; it returns what is to be deleted.
func (s *Store) keepSpare(tree string) (trash string, err error) {
	if err := os.MkdirAll(s.spares(), 0o700); err != nil {
		return "", err
	}
	if trash, err = s.trashSpare(); err != nil {
		return "", err
	}
	// The manifest last: without it a spare is of no use.
	if err := os.Rename(s.Path(tree), filepath.Join(s.spares(), tree)); err != nil {
		return trash, err
	}
	return trash, os.Rename(s.manifestFile(tree), filepath.Join(s.spares(), tree+manifestSuffix))
}

// trashSpare moves the spare to where it is deleted; "" when there is none.
func (s *Store) trashSpare() (string, error) {
	names, err := os.ReadDir(s.spares())
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	trash := filepath.Join(s.staging(), "trash.spare")
	if err := os.RemoveAll(trash); err != nil {
		return "", err
	}
	if err := os.Rename(s.spares(), trash); err != nil {
		return "", err
	}
	return trash, os.MkdirAll(s.spares(), 0o700)
}

// takeSpare stages the spare; nil when there is none that can be used.
func (s *Store) takeSpare() *staged {
	names, err := os.ReadDir(s.spares())
	if err != nil || len(names) == 0 {
		return nil
	}
	var k *known
	for _, n := range names {
		tree := n.Name()
		if !isHash(tree) {
			continue
		}
		file := filepath.Join(s.spares(), tree+manifestSuffix)
		if k, err = lookAt(file, filepath.Join(s.spares(), tree), tree); err == nil {
			err = k.load(file)
		}
		break
	}
	if k == nil || err != nil || k.distrusted() {
		s.dropSpare()
		return nil
	}
	st, err := s.stageBy(func() (string, error) {
		path, err := os.MkdirTemp(s.staging(), k.tree+".*")
		if err != nil {
			return "", err
		}
		// Over the empty folder: a rename takes its place, under a name that nobody else has.
		if err := unix.Rename(k.dir, path); err != nil {
			return "", errors.Join(err, os.Remove(path))
		}
		return path, os.Remove(filepath.Join(s.spares(), k.tree+manifestSuffix))
	})
	if err != nil {
		s.dropSpare()
		return nil
	}
	st.from = k
	return st
}

// dropSpare deletes the spare, for want of room or of trust.
func (s *Store) dropSpare() (freed int64) {
	var trash string
	err := s.exclusively(func() (err error) {
		trash, err = s.trashSpare()
		return err
	})
	if err != nil || trash == "" {
		return 0
	}
	freed = diskUsage(trash)
	_ = os.RemoveAll(trash) // what is left a sweep removes
	return freed
}
