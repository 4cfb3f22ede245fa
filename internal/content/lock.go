package content

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockSuffix = ".lock"

	// lockWait is how long to wait for a lock that is only ever held for a rename or two.
	lockWait = 10 * time.Second
)

// ErrInUse says that someone holds a lock.
var ErrInUse = errors.New("in use by another process")

// Lock keeps a tree from being collected until release is called or the process ends.
func (s *Store) Lock(tree string) (release func(), err error) {
	f, err := s.lockTree(tree, unix.LOCK_SH, lockWait)
	if err != nil {
		return nil, fmt.Errorf("cannot lock release tree: %w", err)
	}
	return func() { f.Close() }, nil
}

func (s *Store) lockTree(tree string, how int, wait time.Duration) (*os.File, error) {
	for {
		if !s.Has(tree) {
			return nil, &NotInstalledError{tree}
		}
		f, err := os.OpenFile(s.lockFile(tree), os.O_CREATE|os.O_RDONLY, 0o644)
		if err != nil {
			return nil, err
		}
		if err := flock(f, how, wait); err != nil {
			f.Close()
			return nil, err
		}
		// Whoever collects a tree removes its lock file too, and ours may be that one.
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

// exclusively runs do while no other process adds to or takes from what the store shows.
func (s *Store) exclusively(do func() error) error {
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

// flock locks an open file or folder until it is closed, or returns ErrInUse when that is not possible within wait.
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
			return ErrInUse
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
}
