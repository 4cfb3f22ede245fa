package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pulley/internal/drivers/folder"
)

const (
	scratchPrefix = "scratch-"
	scratchLock   = ".lock"
)

// Scratch is a folder of the host for the files of a fleet: the data of an etcd, a control repository.
type Scratch struct {
	Dir  string
	lock *os.File // the kernel releases it when the owner ends, also after SIGKILL
}

// NewScratch makes a scratch folder in base. Base is created where it is missing, and only this user may write to it.
func NewScratch(base string) (*Scratch, error) {
	s, err := newScratch(base)
	if err != nil {
		return nil, fmt.Errorf("cannot create a scratch folder in %s: %w", base, err)
	}
	return s, nil
}

// Close removes the folder.
func (s *Scratch) Close() error {
	defer s.lock.Close()
	if err := os.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("cannot remove scratch folder %s: %w", s.Dir, err)
	}
	return nil
}

// Sweep removes the scratch folders in base whose owner has died, and returns their number. It touches nothing else in base.
func Sweep(base string) (removed int, err error) {
	removed, err = sweep(base)
	if err != nil {
		return removed, fmt.Errorf("cannot sweep scratch folders in %s: %w", base, err)
	}
	return removed, nil
}

func newScratch(base string) (*Scratch, error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lockBase(base)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(base, scratchPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := folder.TryLock(filepath.Join(dir, scratchLock))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Scratch{Dir: dir, lock: lock}, nil
}

func sweep(base string) (removed int, err error) {
	if _, err := os.Lstat(base); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	unlock, err := lockBase(base)
	if err != nil {
		return 0, err
	}
	defer unlock()
	entries, err := os.ReadDir(base)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), scratchPrefix) {
			continue
		}
		dir := filepath.Join(base, entry.Name())
		// A folder without a lock file was left half made or half removed.
		lock, err := folder.TryLock(filepath.Join(dir, scratchLock))
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // its owner is running
		} else if err != nil {
			return removed, err
		}
		err = os.RemoveAll(dir)
		lock.Close()
		if err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// lockBase excludes a sweep until the owner of a new folder has locked it.
func lockBase(base string) (unlock func(), err error) {
	if err := folder.CheckOwner(base); err != nil {
		return nil, err
	}
	lock, err := folder.Lock(context.Background(), filepath.Join(base, scratchLock))
	if err != nil {
		return nil, err
	}
	return func() { lock.Close() }, nil
}
