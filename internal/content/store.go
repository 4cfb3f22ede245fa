package content

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Store is the releases of one node:
//
//	releases/<tree hash>/          complete trees, and nothing else: being there is the mark of being complete
//	releases/<tree hash>.lock      held, shared, by whoever uses the tree
//	releases/<tree hash>.manifest  what it contains; its time is when all of the tree was last read and found right
//	spare/                         a tree that nobody needs any more, from which the next one is made
//	fetched/                       objects of a release whose installation was cut off
//	staging/                       trees that come or go; each is locked by the process that works on it
//	current                        → releases/<tree hash>
//
// Any number of processes may work on one Store.
type Store struct {
	// Reserve is what Install leaves free, in bytes; it leaves 3% of the file system where that is more.
	Reserve int64

	// Now is the clock that says whether a tree is due to be read whole again.
	Now func() time.Time

	dir string
}

const (
	releasesDir = "releases"
	stagingDir  = "staging"
	spareDir    = "spare"
	currentLink = "current"
)

// OpenStore opens the store in the folder dir, which it makes when it is missing, and removes what installations that
// died have left. What it can't remove stays for the next Install to complain about.
func OpenStore(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open content store: %w", err)
	}
	s := &Store{Reserve: DefaultReserve, Now: time.Now, dir: dir}
	if err := s.makeFolders(); err != nil {
		return nil, fmt.Errorf("cannot open content store: %w", err)
	}
	_ = s.sweep()
	return s, nil
}

func (s *Store) makeFolders() error {
	if err := os.MkdirAll(filepath.Join(s.dir, releasesDir), 0o755); err != nil {
		return err
	}
	return os.MkdirAll(s.staging(), 0o700)
}

// Path returns the folder of a tree, whether it is there or not, or "" for what is no tree hash.
func (s *Store) Path(tree string) string {
	if !isHash(tree) {
		return ""
	}
	return filepath.Join(s.dir, releasesDir, tree)
}

// Has says whether a tree is there; then it is complete.
func (s *Store) Has(tree string) bool {
	if !isHash(tree) {
		return false
	}
	info, err := os.Lstat(s.Path(tree))
	return err == nil && info.IsDir()
}

// NotInstalledError says that a tree is not on this node.
type NotInstalledError struct{ Tree string }

func (e *NotInstalledError) Error() string { return fmt.Sprintf("tree %s is not installed", e.Tree) }

// Current returns the tree that `current` points at, or "" when it points at none that is there.
func (s *Store) Current() (tree string, err error) {
	target, err := os.Readlink(s.current())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case errors.Is(err, syscall.EINVAL):
		return "", fmt.Errorf("cannot read %s: not a symbolic link\nmove it out of the way", s.current())
	case err != nil:
		return "", fmt.Errorf("cannot read current release: %w", err)
	}
	tree, ok := strings.CutPrefix(target, releasesDir+"/")
	if !ok || !s.Has(tree) {
		return "", nil
	}
	return tree, nil
}

func (s *Store) now() time.Time  { return s.Now() }
func (s *Store) current() string { return filepath.Join(s.dir, currentLink) }
func (s *Store) staging() string { return filepath.Join(s.dir, stagingDir) }

func (s *Store) lockFile(tree string) string { return s.Path(tree) + lockSuffix }
