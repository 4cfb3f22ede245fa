package content

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"pulley/internal/failpoint"
)

// CrashPoints are the places where a test can make Install and Activate die, in the order in which they are passed.
var CrashPoints = []string{
	"install:after-staging-created",
	"install:half-written",
	"install:before-verify",
	"install:before-sync",
	"install:before-rename",
	"install:after-rename",
	"install:before-swap",
	"install:after-swap",
}

// Install puts a release's tree beside those that are there, unless it is there already. It becomes visible, by one
// rename, when it is complete, verified and safe from a power cut; after any error nothing has changed. Nobody uses it
// before Activate. Errors: NoSpaceError (or syscall.ENOSPC), RefusedError, those of src, and those of the file system.
func (s *Store) Install(ctx context.Context, src Source, r Record) error {
	if s.Has(r.Tree) {
		return nil
	}
	if err := s.install(ctx, src, r); err != nil {
		return fmt.Errorf("cannot install release tree %s: %w", r.Tree, err)
	}
	return nil
}

func (s *Store) install(ctx context.Context, src Source, r Record) error {
	m, err := fetchManifest(ctx, src, r)
	if err != nil {
		return err
	}
	if err := s.makeFolders(); err != nil {
		return err
	}
	if err := s.sweep(); err != nil {
		return err
	}
	room, err := s.room()
	if err != nil {
		return err
	}
	p := planInstall(r, m, room.blockSize)
	if err := p.fits(room, s.dir, s.Reserve); err != nil {
		return err
	}
	st, err := s.stage(r.Tree)
	if err != nil {
		return err
	}
	defer st.discard()
	for _, step := range []struct {
		place string
		do    func() error
	}{
		{"after-staging-created", func() error { return writeTree(ctx, st.root, m, src, p.packs) }},
		{"before-verify", func() error { return verifyTree(st.path, r.Tree) }},
		{"before-sync", func() error { return st.flush(m) }},
		{"before-rename", func() error { return s.show(st, r.Tree) }},
		{"after-rename", func() error { return nil }},
	} {
		failpoint.Here("install:" + step.place)
		if err := ctx.Err(); err != nil && !st.shown {
			return err
		}
		if err := step.do(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) room() (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.staging(), &st); err != nil {
		return room{}, &fs.PathError{Op: "statfs", Path: s.staging(), Err: err}
	}
	size := int64(st.Bsize)
	return room{
		blockSize: size,
		freeBytes: int64(st.Bavail) * size, totalBytes: int64(st.Blocks) * size,
		freeInodes: int64(st.Ffree), totalInodes: int64(st.Files),
	}, nil
}

// staged is a tree that is being written. Its folder is open to its owner alone, and locked, until it is shown.
type staged struct {
	path  string
	root  *os.Root
	lock  *os.File
	shown bool
}

// stage makes the folder while nobody sweeps, so that nobody finds it before it is locked.
func (s *Store) stage(tree string) (*staged, error) {
	st := &staged{}
	err := s.exclusively(func() (err error) {
		if st.path, err = os.MkdirTemp(s.staging(), tree+".*"); err != nil {
			return err
		}
		if st.lock, err = os.Open(st.path); err != nil {
			return err
		}
		return flock(st.lock, unix.LOCK_EX, 0)
	})
	if err == nil {
		st.root, err = os.OpenRoot(st.path)
	}
	if err != nil {
		st.discard()
		return nil, err
	}
	return st, nil
}

// discard removes the folder unless it has been shown. What it can't remove is swept by a later installation.
func (st *staged) discard() {
	if st.root != nil {
		st.root.Close()
	}
	if !st.shown && st.path != "" {
		_ = os.RemoveAll(st.path)
	}
	if st.lock != nil {
		st.lock.Close()
	}
}

// show makes a finished tree visible.
func (s *Store) show(st *staged, tree string) error {
	err := s.exclusively(func() error { return os.Rename(st.path, s.Path(tree)) })
	// Another process that installed the same tree was first.
	wasThere := (errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)) && s.Has(tree)
	if err != nil && !wasThere {
		return err
	}
	st.shown = !wasThere
	// Without this a power cut could take the folder back after the node has recorded that it has it.
	err = s.syncReleases()
	if err != nil && st.shown && os.Rename(s.Path(tree), st.path) == nil {
		st.shown = false
	}
	return err
}

func (s *Store) syncReleases() error { return syncFolder(filepath.Join(s.dir, releasesDir)) }

// sweep removes what dead processes have left in staging.
func (s *Store) sweep() error {
	var dead []*os.File
	err := s.exclusively(func() error {
		names, err := os.ReadDir(s.staging())
		if err != nil {
			return err
		}
		for _, n := range names {
			path := filepath.Join(s.staging(), n.Name())
			f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
			switch {
			case errors.Is(err, fs.ErrNotExist): // another process has just removed it
			case err != nil: // not a folder: the link of an Activate that died
				if err := os.Remove(path); err != nil {
					return err
				}
			case flock(f, unix.LOCK_EX, 0) != nil: // alive
				f.Close()
			default:
				dead = append(dead, f)
			}
		}
		return nil
	})
	for _, f := range dead {
		err = errors.Join(err, os.RemoveAll(f.Name()))
		f.Close()
	}
	return err
}
