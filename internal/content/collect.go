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
		freed = s.dropSpare()
	}
	var failed []error
	may := collectable(there, append([]string{current}, keep...), last)
	for n, tree := range may {
		bytes, err := s.remove(tree, removal{spare: !short && n == len(may)-1})
		var gone *NotInstalledError
		switch {
		case err == nil:
			removed = append(removed, tree)
			freed += bytes
		case !errors.Is(err, ErrInUse) && !errors.As(err, &gone):
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
			if ok && isHash(tree) && !s.Has(tree) {
				err = errors.Join(err, os.Remove(filepath.Join(s.dir, releasesDir, n.Name())))
			}
		}
	}
	return err
}

// Discard removes one tree, even the current one, so that the next Install fetches it again. Use it to repair a
// DamagedError. `current` dangles until the tree is installed again. If the tree is in use, Discard keeps it and
// returns ErrInUse. A missing tree is no error.
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
		if !n.IsDir() || !isHash(n.Name()) {
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
	spare       bool // keep it, hidden, for reuse
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
			return errors.Join(err, ErrInUse)
		}
		if _, err := os.Lstat(s.manifestFile(tree)); how.spare && err == nil {
			if trash, err = s.keepSpare(tree); err != nil {
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
