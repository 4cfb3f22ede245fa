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

// CrashPoints are the places where a test can make Install and Activate die, in the order in which they are passed.
// Those about a spare are passed only when there is one.
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

// Install puts a release's tree beside those that are there, unless it is there already. It becomes visible, by one
// rename, when it is complete, verified and safe from a power cut; after any error nothing has changed. Nobody uses it
// before Activate. It takes the cheapest way, and the next one when that fails; the tree hash decides. Errors: NoSpaceError
// (or syscall.ENOSPC), RefusedError, those of src, and those of the file system.
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
	_ = s.sweep() // what it can't remove is no reason to do without a release; Collect tells of it
	here := s.partial(src)
	err := s.installSomehow(ctx, here, r)
	if errors.Is(err, syscall.ENOSPC) && here.bytes() > 0 {
		// It may be of a release that nobody wants any more, and it is in the way.
		here.empty()
		err = s.installSomehow(ctx, here, r)
	}
	if err == nil {
		here.empty()
	}
	return err
}

// installSomehow goes one way after another.
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
	asked    bool // contents were asked for
}

func (i *installation) run(ctx context.Context) (err error) {
	if i.manifest, i.supply, err = i.store.get(ctx, i.src, i.record, i.way); err != nil {
		return err
	}
	i.stock = i.store.stockFor(i.way, i.have)
	defer i.stock.close()
	i.supply.local = i.stock.read
	// A spare takes only what differs.
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

// into makes the release out of a staged folder.
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

// checked is when everything that is used again was last read and found right.
func (i *installation) checked() time.Time {
	at := i.store.now()
	for _, k := range i.stock.trees { // what comes from a distrusted one has just been read
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

// staged is a tree that is being written. Its folder is locked until it is shown, and lies in one that only its owner
// may enter.
type staged struct {
	path   string
	from   *known // the spare that it was made of; nil: it began empty
	root   *beneath
	lock   *os.File
	shown  bool
	linked bool // files of other trees are in it

	files   map[string]bool // written or linked
	folders map[string]bool // in which a name came or went
}

// stage makes the folder while nobody sweeps, so that nobody finds it before it is locked.
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

// discard removes the folder unless it has been shown. What it can't remove is swept by a later installation.
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

// show makes a finished tree visible, and its manifest with it.
func (s *Store) show(st *staged, i *installation) error {
	tree := i.record.Tree
	err := s.exclusively(func() error {
		if s.Has(tree) { // another process that installed the same tree was first
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
			case err != nil: // not a folder: the link of an Activate that died, or a manifest
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
