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

// Store holds the releases of one node:
//
//	releases/<tree hash>/          complete trees only: a tree is complete if this folder exists
//	releases/<tree hash>.lock      lock file; users of the tree hold it shared
//	releases/<tree hash>.manifest  the manifest; its time is the time of the last complete and successful check
//	spare/                         the previous tree, kept for reuse: the next release is built from it
//	fetched/                       objects of a release whose installation was interrupted
//	staging/                       trees being installed or deleted; each is locked by the process that works on it
//	current                        → releases/<tree hash>
//
// Several processes may use one Store at the same time.
type Store struct {
	// Reserve is the space in bytes that Install leaves free. If 3% of the file system is more, Install leaves 3% free.
	Reserve int64

	// Now returns the current time. Verify uses it to decide when to read all contents of a tree again.
	Now func() time.Time

	dir string
}

const (
	releasesDir = "releases"
	stagingDir  = "staging"
	spareDir    = "spare"
	currentLink = "current"
)

// OpenStore opens the store in the folder dir and creates the folder if it is missing. It removes files left by
// interrupted installations. It ignores errors of this removal: the next Install reports them.
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

// Path returns the folder of a tree, even if the tree is not installed. For an invalid tree hash it returns "".
func (s *Store) Path(tree string) string {
	if !isHash(tree) {
		return ""
	}
	return filepath.Join(s.dir, releasesDir, tree)
}

// Has reports whether a tree is installed. An installed tree is always complete.
func (s *Store) Has(tree string) bool {
	if !isHash(tree) {
		return false
	}
	info, err := os.Lstat(s.Path(tree))
	return err == nil && info.IsDir()
}

// NotInstalledError reports that a tree is not installed on this node.
type NotInstalledError struct{ Tree string }

func (e *NotInstalledError) Error() string { return fmt.Sprintf("tree %s is not installed", e.Tree) }

// Current returns the tree that `current` points to. It returns "" if there is no such link or the tree is not
// installed.
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
