package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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

// NewScratch makes a scratch folder in base, and removes those of owners that have died. It touches nothing else in base. Base is created
// where it is missing, and only this user may write to it.
func NewScratch(base string) (*Scratch, error) {
	s, err := newScratch(base)
	if err != nil {
		return nil, fmt.Errorf("cannot create a scratch folder in %s: %w", base, err)
	}
	return s, nil
}

func newScratch(base string) (*Scratch, error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	if err := folder.CheckOwner(base); err != nil {
		return nil, err
	}
	lock, err := folder.Lock(context.Background(), filepath.Join(base, scratchLock)) // until the owner of the new folder has locked it
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := sweep(base); err != nil {
		return nil, err
	}
	s := &Scratch{}
	if s.Dir, err = os.MkdirTemp(base, scratchPrefix); err != nil {
		return nil, err
	}
	if s.lock, err = folder.TryLock(filepath.Join(s.Dir, scratchLock)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.Dir))
	}
	return s, nil
}

// sweep removes the scratch folders whose owner has died.
func sweep(base string) error {
	names, err := fs.Glob(os.DirFS(base), scratchPrefix+"*")
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := filepath.Join(base, name)
		// A folder without a lock file was left half made or half removed.
		lock, err := folder.TryLock(filepath.Join(dir, scratchLock))
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // its owner is running
		} else if err != nil {
			return err
		}
		err = os.RemoveAll(dir)
		lock.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Close removes the folder.
func (s *Scratch) Close() error {
	defer s.lock.Close()
	if err := os.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("cannot remove scratch folder %s: %w", s.Dir, err)
	}
	return nil
}
