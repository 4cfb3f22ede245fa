package content

import (
	"fmt"
	"os"
	"path/filepath"

	"pulley/internal/failpoint"
)

// Activate points `current` to an installed tree by one rename. If the tree is not installed, it returns
// NotInstalledError.
func (s *Store) Activate(tree string) error {
	err := s.exclusively(func() error { return s.activate(tree) })
	if err != nil {
		return fmt.Errorf("cannot activate release tree: %w", err)
	}
	return nil
}

func (s *Store) activate(tree string) error {
	if !s.Has(tree) {
		return &NotInstalledError{tree}
	}
	// The installing process may have died before this flush. Without it a power cut could leave a dangling link.
	if err := s.syncReleases(); err != nil {
		return err
	}
	// Create the link in staging: the next sweep removes it after a crash. The lock keeps sweeps away until the rename.
	next := filepath.Join(s.staging(), currentLink)
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := os.Symlink(releasesDir+"/"+tree, next); err != nil {
		return err
	}
	failpoint.Here("install:before-swap")
	if err := os.Rename(next, s.current()); err != nil {
		return err
	}
	failpoint.Here("install:after-swap")
	// Without this flush a power cut could restore the former link after the node has reported the new one.
	return syncFolder(s.dir)
}
