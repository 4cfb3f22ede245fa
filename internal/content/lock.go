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

	// lockWait is the time to wait for a lock that other processes hold only for one or two renames.
	lockWait = 10 * time.Second
)

// ErrInUse reports that another process holds a lock.
var ErrInUse = errors.New("in use by another process")

// Lock protects a tree from collection until release is called or the process ends.
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

// flock locks an open file or folder until it is closed. If the lock is not free within wait, it returns ErrInUse.
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
