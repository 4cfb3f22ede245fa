package content

import (
	"fmt"
	"os"
	"path/filepath"

	"pulley/internal/failpoint"
)

// Activate points `current` at a tree that is there (else NotInstalledError), by one rename.
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
	// The process that installed the tree may have died before it did this; without it a power cut could leave a link to
	// nothing.
	if err := s.syncReleases(); err != nil {
		return err
	}
	// In staging, where the next sweep finds it should we die, and under the lock that keeps sweeps away until then.
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
	// Without this a power cut could bring the former link back after the node has reported the new one.
	return syncFolder(s.dir)
}
