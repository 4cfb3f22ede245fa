package content

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/failpoint"
)

// CrashPoints lists the places where a test can kill Install and Activate, in order of execution. Points named after
// the spare are passed only if a previous tree was kept for reuse.
var CrashPoints = []string{
	"install:spare-taken",
	"install:after-staging-created",
	"install:linked",
	"install:half-written",
	"install:before-sync",
	"install:before-rename",
	"install:between-renames",
	"install:after-rename",
	"install:before-swap",
	"install:after-swap",
}

// Install adds the tree of a release to the store, unless the tree is already installed. The tree becomes visible by
// one rename, after it is complete, verified and flushed to disk. After an error the visible trees are unchanged. The
// tree is not used until Activate. Install tries the cheapest way first and the next one if it fails; the tree hash
// decides.
//
// Errors: NoSpaceError (or syscall.ENOSPC), RefusedError, errors of src, and errors of the file system.
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
	if err := r.Check(); err != nil {
		return err
	}
	if err := s.makeFolders(); err != nil {
		return err
	}
	_ = s.sweep() // a failed cleanup must not block a release; Collect reports it
	here := s.partial(src)
	err := s.installSomehow(ctx, here, r)
	if errors.Is(err, syscall.ENOSPC) && here.bytes() > 0 {
		// The kept objects may belong to an obsolete release, and they occupy the space.
		here.empty()
		err = s.installSomehow(ctx, here, r)
	}
	if err == nil {
		here.empty()
	}
	return err
}

// installSomehow tries the possible ways in order.
func (s *Store) installSomehow(ctx context.Context, here *partial, r Record) error {
	have := s.known()
	var failed []error
	for _, w := range ways(r, have) {
		w.bytes = max(0, w.bytes-here.bytes())
		i := &installation{store: s, src: here, record: r, way: w, have: have}
		err := i.run(ctx)
		if err == nil {
			return nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", w, err))
		if ctx.Err() != nil || errors.Is(err, syscall.ENOSPC) {
			break
		}
	}
	if len(failed) == 1 {
		return errors.Unwrap(failed[0])
	}
	return errors.Join(failed...)
}

// installation is one attempt to install a release, by one way.
type installation struct {
	store  *Store
	src    Source
	record Record
	way    way
	have   []*known

	manifest *Manifest
	supply   *supply
	stock    *stock
	staged   *staged
	asked    bool // contents were requested
}

func (i *installation) run(ctx context.Context) (err error) {
	if i.manifest, i.supply, err = i.store.get(ctx, i.src, i.record, i.way); err != nil {
		return err
	}
	i.stock = i.store.stockFor(i.way, i.have)
	defer i.stock.close()
	i.supply.local = i.stock.read
	// A previous tree kept for reuse needs only the differences.
	if i.staged = i.store.takeSpare(); i.staged != nil {
		failpoint.Here("install:spare-taken")
		if err := i.into(ctx); err == nil || i.asked || ctx.Err() != nil {
			return err
		}
	}
	if i.staged, err = i.store.stage(i.record.Tree); err != nil {
		return err
	}
	return i.into(ctx)
}

// into builds the release in a staged folder.
func (i *installation) into(ctx context.Context) error {
	defer i.staged.discard()
	if err := i.fits(); err != nil {
		return err
	}
	for _, step := range []struct {
		place string
		do    func() error
	}{
		{"after-staging-created", func() error { return i.write(ctx) }},
		{"before-sync", i.staged.flush},
		{"before-rename", func() error { return i.store.show(i.staged, i) }},
		{"after-rename", func() error { return nil }},
	} {
		failpoint.Here("install:" + step.place)
		if err := ctx.Err(); err != nil && !i.staged.shown {
			return err
		}
		if err := step.do(); err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) fits() error {
	room, err := i.store.room()
	if err != nil {
		return err
	}
	linked := func(e Entry) bool { _, ok := i.stock.find(e); return ok }
	there := func(Entry) bool { return false }
	if spare := i.staged.from; spare != nil {
		t := tree(spare.manifest.Entries)
		there = func(e Entry) bool { old, ok := t.find(e.Path); return ok && old == e }
	}
	return needs(i.manifest, linked, there, i.way.bytes, room.blockSize).fits(room, i.store.dir, i.store.Reserve)
}

// checked returns the oldest time at which a reused tree was last read completely without a flaw.
func (i *installation) checked() time.Time {
	at := i.store.now()
	for _, k := range i.stock.trees { // contents from a distrusted tree have just been read
		if i.staged.linked && !k.distrusted() && k.checked.Before(at) {
			at = k.checked
		}
	}
	if k := i.staged.from; k != nil && k.checked.Before(at) {
		at = k.checked
	}
	return at
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

// staged is a tree that is being written. Its folder is locked until it becomes visible. The parent folder is
// accessible only to its owner.
type staged struct {
	path   string
	from   *known // the kept previous tree it was built from; nil: started empty
	root   *beneath
	lock   *os.File
	shown  bool
	linked bool // it contains files linked from other trees

	files   map[string]bool // written or linked
	folders map[string]bool // folders in which a name was added or removed
}

// stage creates the folder while no sweep runs. A sweep would otherwise find the folder before it is locked.
func (s *Store) stage(tree string) (*staged, error) {
	return s.stageBy(func() (string, error) { return os.MkdirTemp(s.staging(), tree+".*") })
}

func (s *Store) stageBy(appear func() (string, error)) (*staged, error) {
	st := &staged{files: map[string]bool{}, folders: map[string]bool{}}
	err := s.exclusively(func() (err error) {
		if st.path, err = appear(); err != nil {
			return err
		}
		if st.lock, err = os.Open(st.path); err != nil {
			return err
		}
		return flock(st.lock, unix.LOCK_EX, 0)
	})
	if err == nil {
		st.root, err = openBeneath(st.path)
	}
	if err != nil {
		st.discard()
		return nil, err
	}
	return st, nil
}

// discard removes the folder unless it became visible. A later installation sweeps the rest.
func (st *staged) discard() {
	if st.root != nil {
		st.root.close()
	}
	if !st.shown && st.path != "" {
		_ = os.RemoveAll(st.path)
	}
	if st.lock != nil {
		st.lock.Close()
	}
}

// show makes a finished tree and its manifest visible.
func (s *Store) show(st *staged, i *installation) error {
	tree := i.record.Tree
	err := s.exclusively(func() error {
		if s.Has(tree) { // another process installed the same tree first
			return nil
		}
		if err := s.remember(tree, i.record, i.manifest, i.checked()); err != nil {
			return err
		}
		failpoint.Here("install:between-renames")
		if err := os.Rename(st.path, s.Path(tree)); err != nil {
			return err
		}
		st.shown = true
		return nil
	})
	if err != nil {
		return err
	}
	// Without this flush a power cut could remove the folder after the node has recorded the release.
	err = s.syncReleases()
	if err != nil && st.shown && os.Rename(s.Path(tree), st.path) == nil {
		st.shown = false
	}
	return err
}

func (s *Store) syncReleases() error { return syncFolder(filepath.Join(s.dir, releasesDir)) }

// sweep removes the files that dead processes left in staging.
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
			case errors.Is(err, fs.ErrNotExist): // another process just removed it
			case err != nil: // not a folder: the link of an interrupted Activate, or a manifest
				if err := os.Remove(path); err != nil {
					return err
				}
			case flock(f, unix.LOCK_EX, 0) != nil: // its process is alive
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
