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

	"golang.org/x/sys/unix"

	"pulley/internal/atomicfile"
	"pulley/internal/failpoint"
)

// Store holds the releases of one node:
//
//	releases/<tree hash>/          complete trees only: a tree is complete if this folder exists
//	releases/<tree hash>.lock      lock file; users of the tree hold it shared
//	releases/<tree hash>.manifest  the manifest; its time is the time of the last complete and successful check
//	previous/                      the previous tree, kept for reuse: the next release is built from it
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

	layout
}

// layout is the folder of a Store: the names and locks of its files.
type layout struct{ dir string }

const (
	releasesDir = "releases"
	stagingDir  = "staging"
	previousDir = "previous"
	currentLink = "current"

	lockSuffix     = ".lock"
	manifestSuffix = ".manifest"

	// lockWait is the time to wait for a lock that other processes hold only for one or two renames.
	lockWait = 10 * time.Second
)

// OpenStore opens the store in the folder dir and creates the folder if it is missing. It removes files left by
// interrupted installations. It ignores errors of this removal: the next Install reports them.
func OpenStore(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open content store: %w", err)
	}
	s := &Store{Reserve: defaultReserve, Now: time.Now, layout: layout{dir}}
	if err := s.makeFolders(); err != nil {
		return nil, fmt.Errorf("cannot open content store: %w", err)
	}
	_ = s.sweep()
	return s, nil
}

func (s layout) makeFolders() error {
	if err := os.MkdirAll(filepath.Join(s.dir, releasesDir), 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(s.staging(), 0o700); err != nil {
		return err
	}
	// It is a lock, too: whoever can open it can lock it.
	if info, err := os.Stat(s.staging()); err != nil || info.Mode().Perm() == 0o700 {
		return err
	}
	return os.Chmod(s.staging(), 0o700)
}

// Path returns the folder of a tree, even if the tree is not installed. For an invalid tree hash it returns "".
func (s layout) Path(tree string) string {
	if !IsHash(tree) {
		return ""
	}
	return filepath.Join(s.dir, releasesDir, tree)
}

// Has reports whether a tree is installed. An installed tree is always complete.
func (s layout) Has(tree string) bool {
	info, err := os.Lstat(s.Path(tree)) // "" does not exist
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

func (s layout) current() string  { return filepath.Join(s.dir, currentLink) }
func (s layout) staging() string  { return filepath.Join(s.dir, stagingDir) }
func (s layout) previous() string { return filepath.Join(s.dir, previousDir) }

func (s layout) lockFile(tree string) string     { return s.Path(tree) + lockSuffix }
func (s layout) manifestFile(tree string) string { return s.Path(tree) + manifestSuffix }

func (s layout) syncReleases() error { return atomicfile.SyncFolder(filepath.Join(s.dir, releasesDir)) }

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
	return atomicfile.SyncFolder(s.dir)
}

// errInUse reports that another process holds a lock.
var errInUse = errors.New("in use by another process")

// Lock protects a tree from collection until release is called or the process ends.
func (s *Store) Lock(tree string) (release func(), err error) {
	f, err := s.lockTree(tree, unix.LOCK_SH, lockWait)
	if err != nil {
		return nil, fmt.Errorf("cannot lock release tree: %w", err)
	}
	return func() { f.Close() }, nil
}

func (s layout) lockTree(tree string, how int, wait time.Duration) (*os.File, error) {
	for {
		if !s.Has(tree) {
			return nil, &NotInstalledError{tree}
		}
		f, err := atomicfile.OpenLock(s.lockFile(tree))
		if err != nil {
			return nil, err
		}
		if err := flock(f, how, wait); err != nil {
			f.Close()
			return nil, err
		}
		// Collection removes the lock file together with its tree. The open file may be such a removed one.
		if s.Has(tree) && isFileAt(f, s.lockFile(tree)) {
			return f, nil
		}
		f.Close()
	}
}

func isFileAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, there)
}

// exclusively runs do while no other process adds or removes visible trees.
func (s layout) exclusively(do func() error) error {
	f, err := os.Open(s.staging())
	if err != nil {
		return err
	}
	defer f.Close()
	if err := flock(f, unix.LOCK_EX, lockWait); err != nil {
		return fmt.Errorf("%s: %w", s.staging(), err)
	}
	return do()
}

// flock locks an open file or folder until it is closed. If the lock is not free within wait, it returns errInUse.
func flock(f *os.File, how int, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR:
		case err != unix.EWOULDBLOCK:
			return err
		case !time.Now().Before(deadline):
			return errInUse
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
}
