package content

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Collect removes every tree that is not in keep, not current, not among the newest last trees, and not locked. It
// keeps the newest removed tree, hidden, to build the next release from. With last below 2 (little space) it deletes
// that one too. It returns the removed trees and the freed bytes on disk. It continues after an error and returns all
// errors joined.
func (s *Store) Collect(keep []string, last int) (removed []string, freed int64, err error) {
	current, err := s.Current()
	if err != nil {
		return nil, 0, fmt.Errorf("cannot collect releases: %w", err)
	}
	there, err := s.installed()
	if err != nil {
		return nil, 0, fmt.Errorf("cannot collect releases: %w", err)
	}
	short := last < 2
	if short {
		freed = s.dropPrevious()
	}
	var failed []error
	may := collectable(there, append([]string{current}, keep...), last)
	for n, tree := range may {
		bytes, err := s.remove(tree, removal{reuse: !short && n == len(may)-1})
		var gone *NotInstalledError
		switch {
		case err == nil:
			removed = append(removed, tree)
			freed += bytes
		case !errors.Is(err, errInUse) && !errors.As(err, &gone):
			failed = append(failed, fmt.Errorf("cannot collect release tree %s: %w", tree, err))
		}
	}
	failed = append(failed, s.exclusively(s.sweepLocks), s.sweep())
	return removed, freed, errors.Join(failed...)
}

// sweepLocks removes locks and manifests without a tree. A process that died while removing a tree can leave them.
func (s *Store) sweepLocks() error {
	names, err := os.ReadDir(filepath.Join(s.dir, releasesDir))
	for _, n := range names {
		for _, suffix := range []string{lockSuffix, manifestSuffix} {
			tree, ok := strings.CutSuffix(n.Name(), suffix)
			if ok && IsHash(tree) && !s.Has(tree) {
				err = errors.Join(err, os.Remove(filepath.Join(s.dir, releasesDir, n.Name())))
			}
		}
	}
	return err
}

// Discard removes one tree, even the current one, so that the next Install fetches it again. Use it to repair a
// DamagedError. `current` dangles until the tree is installed again. If the tree is in use, Discard keeps it and
// returns errInUse. A missing tree is no error.
func (s *Store) Discard(tree string) error {
	var gone *NotInstalledError
	s.distrust()
	if _, err := s.remove(tree, removal{evenCurrent: true}); err != nil && !errors.As(err, &gone) {
		return fmt.Errorf("cannot discard release tree %s: %w", tree, err)
	}
	return nil
}

type installedTree struct {
	tree string
	at   time.Time
}

func (s *Store) installed() ([]installedTree, error) {
	names, err := os.ReadDir(filepath.Join(s.dir, releasesDir))
	if err != nil {
		return nil, err
	}
	var trees []installedTree
	for _, n := range names {
		if !n.IsDir() || !IsHash(n.Name()) {
			continue
		}
		info, err := n.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		trees = append(trees, installedTree{n.Name(), info.ModTime()})
	}
	return trees, nil
}

// collectable returns the trees that may be removed, oldest first.
func collectable(there []installedTree, keep []string, last int) []string {
	there = slices.Clone(there)
	slices.SortFunc(there, func(a, b installedTree) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return strings.Compare(a.tree, b.tree)
	})
	there = there[:max(0, len(there)-max(0, last))]
	var trees []string
	for _, t := range there {
		if !slices.Contains(keep, t.tree) {
			trees = append(trees, t.tree)
		}
	}
	return trees
}

// removal describes how to remove a tree.
type removal struct {
	evenCurrent bool
	reuse       bool // keep it, hidden, for reuse
}

// remove hides a tree by one rename and then deletes it. It returns the freed bytes on disk.
func (s *Store) remove(tree string, how removal) (freed int64, err error) {
	trash := filepath.Join(s.staging(), "trash."+tree)
	err = s.exclusively(func() error {
		lock, err := s.lockTree(tree, unix.LOCK_EX, 0)
		if err != nil {
			return err
		}
		defer lock.Close()
		// Check again: no other process can change `current` now.
		if current, err := s.Current(); err != nil || current == tree && !how.evenCurrent {
			return errors.Join(err, errInUse)
		}
		if _, err := os.Lstat(s.manifestFile(tree)); how.reuse && err == nil {
			if trash, err = s.keepPrevious(tree); err != nil {
				return err
			}
			return os.Remove(s.lockFile(tree))
		}
		if err := os.RemoveAll(trash); err != nil {
			return err
		}
		if err := os.Rename(s.Path(tree), trash); err != nil {
			return err
		}
		if err := os.Remove(s.manifestFile(tree)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Remove(s.lockFile(tree))
	})
	if err != nil || trash == "" {
		return 0, err
	}
	freed = diskUsage(trash)
	return freed, os.RemoveAll(trash)
}

// diskUsage adds up the blocks that deleting a folder frees. It skips files that have another link elsewhere and files
// that it can't stat.
func diskUsage(dir string) int64 {
	var bytes int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && (d.IsDir() || st.Nlink == 1) {
				bytes += st.Blocks * 512
			}
		}
		return nil
	})
	return bytes
}

// Collection keeps one removed tree for reuse (the folder previous). The next release is built from this kept tree by
// changing only the differences. This is less work than linking every file and deleting every name of an old tree.
// The kept tree is hidden, and an installation surveys it like everything else taken from disk.

// keepPrevious hides a tree as the kept tree and replaces an earlier one. The caller holds the store's lock, and no process
// uses the tree. It returns the folder to delete.
func (s *Store) keepPrevious(tree string) (trash string, err error) {
	if err := os.MkdirAll(s.previous(), 0o700); err != nil {
		return "", err
	}
	if trash, err = s.trashPrevious(); err != nil {
		return "", err
	}
	// Move the manifest last: a kept tree without a manifest is not usable.
	if err := os.Rename(s.Path(tree), filepath.Join(s.previous(), tree)); err != nil {
		return trash, err
	}
	return trash, os.Rename(s.manifestFile(tree), filepath.Join(s.previous(), tree+manifestSuffix))
}

// trashPrevious moves the kept tree to the folder for deletion. It returns "" if there is none.
func (s *Store) trashPrevious() (string, error) {
	names, err := os.ReadDir(s.previous())
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	trash := filepath.Join(s.staging(), "trash.previous")
	if err := os.RemoveAll(trash); err != nil {
		return "", err
	}
	if err := os.Rename(s.previous(), trash); err != nil {
		return "", err
	}
	return trash, os.MkdirAll(s.previous(), 0o700)
}

// takePrevious moves the kept tree to staging. It returns nil if there is none or it is unusable.
func (s *Store) takePrevious() *staged {
	names, err := os.ReadDir(s.previous())
	if err != nil || len(names) == 0 {
		return nil
	}
	var k *known
	for _, n := range names {
		tree := n.Name()
		if !IsHash(tree) {
			continue
		}
		file := filepath.Join(s.previous(), tree+manifestSuffix)
		if k, err = lookAt(file, filepath.Join(s.previous(), tree), tree); err == nil {
			err = k.load(file)
		}
		break
	}
	if k == nil || err != nil || k.distrusted() {
		s.dropPrevious()
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
		return path, os.Remove(filepath.Join(s.previous(), k.tree+manifestSuffix))
	})
	if err != nil {
		s.dropPrevious()
		return nil
	}
	st.from = k
	return st
}

// dropPrevious deletes the kept tree to free space, or because it is not trusted.
func (s *Store) dropPrevious() (freed int64) {
	var trash string
	err := s.exclusively(func() (err error) {
		trash, err = s.trashPrevious()
		return err
	})
	if err != nil || trash == "" {
		return 0
	}
	freed = diskUsage(trash)
	_ = os.RemoveAll(trash) // a later sweep removes the rest
	return freed
}
