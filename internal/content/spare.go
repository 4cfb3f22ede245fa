package content

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Collection keeps one removed tree for reuse (the folder spare). The next release is built from this kept tree by
// changing only the differences. This is less work than linking every file and deleting every name of an old tree.
// The kept tree is hidden, and an installation surveys it like everything else taken from disk.

func (s *Store) spares() string { return filepath.Join(s.dir, spareDir) }

// keepSpare hides a tree as the kept tree and replaces an earlier one. The caller holds the store's lock, and no process
// uses the tree. It returns the folder to delete.
func (s *Store) keepSpare(tree string) (trash string, err error) {
	if err := os.MkdirAll(s.spares(), 0o700); err != nil {
		return "", err
	}
	if trash, err = s.trashSpare(); err != nil {
		return "", err
	}
	// Move the manifest last: a kept tree without a manifest is not usable.
	if err := os.Rename(s.Path(tree), filepath.Join(s.spares(), tree)); err != nil {
		return trash, err
	}
	return trash, os.Rename(s.manifestFile(tree), filepath.Join(s.spares(), tree+manifestSuffix))
}

// trashSpare moves the kept tree to the folder for deletion. It returns "" if there is none.
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

// takeSpare moves the kept tree to staging. It returns nil if there is none or it is unusable.
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
		// The rename replaces the empty folder, whose name no other process uses.
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

// dropSpare deletes the kept tree to free space, or because it is not trusted.
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
	_ = os.RemoveAll(trash) // a later sweep removes the rest
	return freed
}
