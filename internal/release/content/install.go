package content

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/failpoint"
)

// CrashPoints lists the places where a test can kill Install and Activate, in order of execution. Points named after
// the previous tree are passed only if a previous tree was kept for reuse.
var CrashPoints = []string{
	"install:previous-taken",
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
// Errors: noSpaceError (or syscall.ENOSPC), refusedError, errors of src, and errors of the file system.
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
		here.empty() // not earlier: after a kill, the next attempt resumes from these objects
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
	src    *partial
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
	if err := i.get(ctx); err != nil {
		return err
	}
	i.stock = i.reusable()
	defer i.stock.close()
	i.supply.local = i.stock.read
	// A previous tree kept for reuse needs only the differences.
	if i.staged = i.store.takePrevious(); i.staged != nil {
		failpoint.Here("install:previous-taken")
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
		{"before-rename", i.show},
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
	var st unix.Statfs_t
	if err := unix.Statfs(i.store.staging(), &st); err != nil {
		return pathError("statfs", i.store.staging(), err)
	}
	size := int64(st.Bsize)
	room := room{
		blockSize: size,
		freeBytes: int64(st.Bavail) * size, totalBytes: int64(st.Blocks) * size,
		freeInodes: int64(st.Ffree), totalInodes: int64(st.Files),
	}
	linked := func(e Entry) bool { _, ok := i.stock.find(e); return ok }
	there := func(Entry) bool { return false }
	if previous := i.staged.from; previous != nil {
		t := tree(previous.manifest.Entries)
		there = func(e Entry) bool { old, ok := t.find(e.Path); return ok && old == e }
	}
	return needs(i.manifest, linked, there, i.way.bytes, room.blockSize).fits(room, i.store.dir, i.store.Reserve)
}

// checked returns the oldest time at which a reused tree was last read completely without a flaw.
func (i *installation) checked() time.Time {
	at := i.store.Now()
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

// staged is a tree that is being written. Its folder is locked until it becomes visible. The parent folder is
// accessible only to its owner.
type staged struct {
	path   string
	from   *known // the kept previous tree it was built from; nil: started empty
	root   *beneath
	lock   *os.File
	shown  bool
	linked bool // it contains files linked from other trees

	changed map[string]bool // files that were written, and folders in which a name was added or removed
}

// stage creates the folder while no sweep runs. A sweep would otherwise find the folder before it is locked.
func (s *Store) stage(tree string) (*staged, error) {
	return s.stageBy(func() (string, error) { return os.MkdirTemp(s.staging(), tree+".*") })
}

func (s *Store) stageBy(appear func() (string, error)) (*staged, error) {
	st := &staged{changed: map[string]bool{}}
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
func (i *installation) show() error {
	s, st, tree := i.store, i.staged, i.record.Tree
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

// way is a method to get a release: from an installed tree with deltas, or from the base.
type way struct {
	from  *known // nil: the base
	bytes int64  // maximum number of bytes to fetch
}

func (w way) String() string {
	if w.from == nil {
		return "from its base"
	}
	return fmt.Sprintf("from tree %.12s by deltas", w.from.tree)
}

// maxSteps is the maximum number of deltas to use. Each delta takes one pass over the manifest.
const maxSteps = 2 * maxDeltas

// ways lists the ways to a release, the cheapest first. Their sizes come from the record of the release and the records
// of the installed trees. A wrong size only leads to a slower way.
func ways(r Record, have []*known) []way {
	all := []way{{bytes: r.Cold()}}
	for _, k := range have {
		c := k.record.Chain
		steps := r.Chain.Seq - c.Seq
		if k.record.Tree != k.tree || c.Line != r.Chain.Line || steps < 0 || steps > maxSteps || r.Chain.Weight-c.Weight > maxWeight {
			continue
		}
		all = append(all, way{from: k, bytes: r.Chain.Stored - c.Stored})
	}
	slices.SortStableFunc(all, func(a, b way) int { return cmp.Compare(a.bytes, b.bytes) })
	return all[:min(len(all), 1+slices.IndexFunc(all, func(w way) bool { return w.from == nil }))]
}

// get fetches the manifest of the release by its way, and prepares the supply of its contents.
func (i *installation) get(ctx context.Context) error {
	from := i.way.from
	if from == nil {
		v, err := openView(ctx, i.src, i.record)
		if err == nil {
			i.manifest, i.supply = v.manifest, &v.supply
		}
		return err
	}
	if err := from.load(i.store.manifestFile(from.tree)); err != nil {
		return err
	}
	steps, m, err := fetchSteps(ctx, i.src, i.record, from.record.Chain, from.manifest)
	i.manifest, i.supply = m, &supply{src: i.src, steps: steps}
	return err
}

// reusable returns the contents that installed trees share with the release. With deltas only the start tree matters:
// the deltas contain everything else.
func (i *installation) reusable() *stock {
	var trees []*known
	for _, k := range i.have {
		if i.way.from != nil && k != i.way.from {
			continue
		}
		if err := k.load(i.store.manifestFile(k.tree)); err == nil {
			trees = append(trees, k)
		}
	}
	return newStock(trees)
}

// need is the space for writing a tree. Linked files need none; folders do.
type need struct {
	bytes  int64 // on disk, in full blocks
	inodes int64
}

func needs(m *Manifest, linked func(Entry) bool, there func(Entry) bool, fetched, blockSize int64) need {
	blocks := func(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }
	n := need{bytes: blockSize + blocks(fetched), inodes: 2} // the root, and the manifest file
	for _, e := range m.Entries {
		if there(e) {
			continue
		}
		switch {
		case e.Kind == KindDirectory:
			n.bytes += blockSize
		case e.regular() && linked(e):
			continue
		default:
			n.bytes += blocks(e.Size)
		}
		n.inodes++
	}
	return n
}

// room is the free and total space of a file system.
type room struct {
	blockSize               int64
	freeBytes, totalBytes   int64
	freeInodes, totalInodes int64 // both 0 if the file system creates inodes on demand
}

// defaultReserve is the space in bytes that an installation leaves free for the rest of the machine.
const defaultReserve = 256 << 20

// noSpaceError reports that a tree was not installed because it would fill the disk. errors.Is(err, syscall.ENOSPC) is
// true for it, and also for an error from a disk that fills up during writing. Collecting old trees may help.
type noSpaceError struct {
	Dir                         string
	NeedBytes, NeedInodes       int64
	FreeBytes, FreeInodes       int64
	ReserveBytes, ReserveInodes int64 // must remain free
}

func (e *noSpaceError) Error() string {
	return fmt.Sprintf("not enough room in %s: %d bytes and %d inodes are needed, %d and %d are free, %d and %d of them stay reserved\n"+
		"free some space there",
		e.Dir, e.NeedBytes, e.NeedInodes, e.FreeBytes, e.FreeInodes, e.ReserveBytes, e.ReserveInodes)
}

func (e *noSpaceError) Unwrap() error { return syscall.ENOSPC }

// fits returns the reason why n does not fit, or nil. The reserve is reserveBytes, or 3% of the file system if that is
// more. Taking the last block or inode would harm other programs more than an old release harms this node.
func (n need) fits(r room, dir string, reserveBytes int64) error {
	e := &noSpaceError{
		Dir: dir, NeedBytes: n.bytes, NeedInodes: n.inodes, FreeBytes: r.freeBytes, FreeInodes: r.freeInodes,
		ReserveBytes: max(reserveBytes, r.totalBytes/100*3), ReserveInodes: r.totalInodes / 100 * 3,
	}
	if e.NeedBytes > e.FreeBytes-e.ReserveBytes || r.totalInodes > 0 && e.NeedInodes > e.FreeInodes-e.ReserveInodes {
		return e
	}
	return nil
}
