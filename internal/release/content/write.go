package content

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/failpoint"
)

// write fills the staged folder in this order: folders and linkable files, fetched contents, symbolic links. The links
// come last, because nothing must be written through a link.
func (i *installation) write(ctx context.Context) error {
	w := &writer{
		installation: i, ctx: ctx, masked: umaskMasks(),
		missing: map[int]bool{}, later: map[int]bool{}, prepared: make(chan struct{}),
	}
	steps := []func() error{w.clear, w.prepare, w.survey, w.fetch, w.links}
	if i.staged.from == nil && !slices.ContainsFunc(i.manifest.Entries, i.stock.has) {
		steps = []func() error{w.prepareAndFetch, w.links}
	}
	for _, do := range steps {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

type writer struct {
	*installation
	ctx     context.Context
	masked  bool         // the umask removes mode bits: set modes separately
	missing map[int]bool // files not yet written
	later   map[int]bool // links not yet created

	prepared chan struct{} // closed when all folders exist
}

// clear removes from a kept previous tree the entries that the release lacks or that differ.
func (w *writer) clear() error {
	if w.staged.from == nil {
		return nil
	}
	differences := Diff(w.staged.from.manifest, w.manifest)
	for n := len(differences) - 1; n >= 0; n-- { // delete the contents of a folder before the folder
		d := differences[n]
		if d.Before == nil || d.Before.Kind == KindDirectory && d.After != nil && d.After.Kind == KindDirectory {
			continue
		}
		if err := w.remove(d.Path, d.Before.Kind == KindDirectory); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) remove(path string, folder bool) error {
	w.staged.touch(path)
	return w.staged.root.remove(path, folder)
}

// touch records that a name was added or removed.
func (st *staged) touch(name string) {
	st.changed[path.Dir(name)] = true
	delete(st.changed, name)
}

// prepareAndFetch creates the folders and writes the contents at the same time. Nothing is linked or surveyed.
func (w *writer) prepareAndFetch() error {
	for n, e := range w.manifest.Entries {
		if e.regular() && e.Size > 0 {
			w.missing[n] = true
		}
	}
	wanted, paths := w.wanted()
	failed := make(chan error, 1)
	go func() { failed <- w.prepare() }()
	err := w.fetchThese(wanted, paths)
	return cmp.Or(<-failed, err) // without its folder a content can't be written
}

// prepare creates the folders and links the files that other trees have.
func (w *writer) prepare() error {
	defer close(w.prepared)
	var old tree
	if w.staged.from != nil {
		old = tree(w.staged.from.manifest.Entries)
	}
	for n, e := range w.manifest.Entries {
		if before, ok := old.find(e.Path); ok && before == e {
			continue
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		w.staged.touch(e.Path)
		switch {
		case e.Kind == KindDirectory:
			if err := w.staged.root.mkdir(e.Path, w.masked); err != nil {
				return err
			}
			w.staged.changed[e.Path] = true
		case e.Kind == KindLink:
			w.later[n] = true
		case e.Size == 0:
			w.staged.changed[e.Path] = true
			if err := w.file(e, bytes.NewReader(nil)); err != nil {
				return err
			}
		case !w.link(e):
			w.missing[n] = true
			w.staged.changed[e.Path] = true
		}
	}
	failpoint.Here("install:linked")
	return nil
}

// link links a file from another tree and reports whether it succeeded.
func (w *writer) link(e Entry) bool {
	p, ok := w.stock.find(e)
	if !ok { // maybe with the other mode; an inode has only one mode
		p, ok = w.stock.find(e.flipped())
		return ok && w.clone(p, e) == nil
	}
	root, err := w.stock.root(p.tree)
	if err != nil || p.tree.distrusted() && !w.stock.right(p, e) {
		return false
	}
	err = w.staged.root.link(root, p.path, e.Path)
	switch {
	case err == nil:
		w.staged.linked = true
		return true
	case errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP):
		return w.clone(p, e) == nil
	}
	return false
}

// clone copies a file from another tree if it can't be linked. It shares the blocks if the file system supports it.
func (w *writer) clone(p place, e Entry) error {
	f, err := w.stock.open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	w.staged.changed[e.Path] = true
	return w.file(e, f)
}

// survey checks everything taken from other trees. Flawed files are fetched.
func (w *writer) survey() error {
	if w.staged.from == nil && !w.staged.linked {
		return nil
	}
	pending := map[int]bool{}
	for n := range w.missing {
		pending[n] = true
	}
	for n := range w.later {
		pending[n] = true
	}
	flaws, err := survey(w.staged.path, w.manifest, pending)
	if err != nil {
		return err
	}
	for _, f := range flaws {
		if f.entry < 0 || !w.manifest.Entries[f.entry].regular() {
			return fmt.Errorf("cannot use the tree on disk: %q: %s", f.path, f.why)
		}
		err := w.remove(f.path, false)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		w.missing[f.entry] = true
		w.staged.changed[f.path] = true
	}
	return nil
}

// fetch writes the contents that no local tree has.
func (w *writer) fetch() error {
	if len(w.missing) == 0 {
		failpoint.Here("install:half-written")
		return nil
	}
	return w.fetchThese(w.wanted())
}

// wanted lists the missing contents, and the paths of each.
func (w *writer) wanted() (wanted []Entry, paths map[[sha256.Size]byte][]Entry) {
	paths = map[[sha256.Size]byte][]Entry{}
	for n, e := range w.manifest.Entries {
		if !w.missing[n] {
			continue
		}
		if len(paths[e.Hash]) == 0 {
			wanted = append(wanted, e)
		}
		paths[e.Hash] = append(paths[e.Hash], e)
	}
	return wanted, paths
}

func (w *writer) fetchThese(wanted []Entry, paths map[[sha256.Size]byte][]Entry) error {
	w.asked = true
	small, err := startWriting(w.staged.path, w.masked, w.prepared)
	if err != nil {
		return err
	}
	written, half := 0, len(wanted)/2
	return small.finish(w.supply.each(w.ctx, wanted, func(e Entry, r io.Reader) error {
		if written == half {
			failpoint.Here("install:half-written")
		}
		written++
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if e.Size > batchBytes {
			return w.everywhere(paths[e.Hash], r)
		}
		return small.add(paths[e.Hash], r)
	}))
}

// everywhere writes one content to all its paths.
func (w *writer) everywhere(entries []Entry, r io.Reader) error {
	<-w.prepared
	first := entries[0]
	if err := w.file(first, r); err != nil {
		return fmt.Errorf("cannot write %q: %w", first.Path, err)
	}
	for _, e := range entries[1:] {
		f, err := w.staged.root.open(first.Path)
		if err != nil {
			return err
		}
		err = w.file(e, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("cannot write %q: %w", e.Path, err)
		}
	}
	return nil
}

// file writes one new file. It sets mode and time explicitly, because umask and clock must not affect them.
func (w *writer) file(e Entry, r io.Reader) (err error) {
	f, err := w.staged.root.create(e.Path)
	if err != nil {
		return err
	}
	defer func() {
		if closing := f.Close(); err == nil {
			err = closing
		}
		if err != nil { // another way may provide it
			_ = w.staged.root.remove(e.Path, false)
		}
	}()
	h := sha256.New()
	if from, ok := r.(*os.File); ok && reflink(f, from) {
		_, err = io.Copy(h, io.NewSectionReader(f, 0, e.Size+1))
	} else {
		_, err = io.CopyN(io.MultiWriter(f, h), r, e.Size)
	}
	if err != nil {
		return err
	}
	if [sha256.Size]byte(h.Sum(nil)) != e.Hash {
		return wrongContent(e.Path)
	}
	fd := int(f.Fd())
	if err := unix.Fchmod(fd, e.perm()); err != nil {
		return pathError("chmod", e.Path, err)
	}
	return pathError("set the time of", e.Path, setTime(fd, e))
}

func (w *writer) links() error {
	for n, e := range w.manifest.Entries {
		if !w.later[n] {
			continue
		}
		if err := w.staged.root.symlink(e.Target, e.Path); err != nil {
			return err
		}
	}
	return nil
}

// small writes small files in parallel while other files are fetched and decoded. Its unit is a batch of neighbours:
// the kernel lets only one process at a time create names in a folder.
type small struct {
	jobs   chan *batch
	free   chan *batch // all batches that exist, which bounds the memory
	next   *batch
	done   sync.WaitGroup
	failed atomic.Pointer[error]
}

// batch holds unchecked contents, one after the other, and the paths of each.
type batch struct {
	files   [][]Entry
	content []byte
}

const (
	mostWriters = 4
	batchFiles  = 32
	batchBytes  = 256 << 10 // larger files are not small
)

// startWriting starts to write below a folder. Masked reports that the umask removes mode bits. Until prepared is
// closed, some folders may be missing.
func startWriting(dir string, masked bool, prepared <-chan struct{}) (*small, error) {
	writers := min(mostWriters, runtime.GOMAXPROCS(0))
	batches := 2*writers + 1
	s := &small{jobs: make(chan *batch, batches), free: make(chan *batch, batches), next: &batch{content: make([]byte, 0, batchBytes)}}
	for range batches - 1 {
		s.free <- &batch{content: make([]byte, 0, batchBytes)}
	}
	for range writers {
		b, err := openBeneath(dir)
		if err != nil {
			return nil, s.finish(err)
		}
		s.done.Go(func() {
			defer b.close()
			for job := range s.jobs {
				if s.problem() == nil {
					s.note(job.write(b, masked, prepared))
				}
				job.files, job.content = job.files[:0], job.content[:0]
				s.free <- job
			}
		})
	}
	return s, nil
}

// finish waits until all files are written and returns the first error.
func (s *small) finish(err error) error {
	s.note(err)
	if s.problem() == nil {
		s.jobs <- s.next
	}
	close(s.jobs)
	s.done.Wait()
	return s.problem()
}

func (s *small) note(err error) {
	if err != nil {
		s.failed.CompareAndSwap(nil, &err)
	}
}

func (s *small) problem() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// add queues a content. A returned error may belong to an earlier content.
func (s *small) add(entries []Entry, r io.Reader) error {
	from := len(s.next.content)
	to := from + int(entries[0].Size)
	if to > batchBytes || len(s.next.files) == batchFiles {
		s.jobs <- s.next
		s.next = <-s.free
		from, to = 0, to-from
	}
	s.next.content = s.next.content[:to]
	if _, err := io.ReadFull(r, s.next.content[from:]); err != nil {
		return fmt.Errorf("cannot write %q: %w", entries[0].Path, err)
	}
	s.next.files = append(s.next.files, entries)
	return s.problem()
}

func (j *batch) write(b *beneath, masked bool, prepared <-chan struct{}) error {
	rest := j.content
	for _, entries := range j.files {
		content := rest[:entries[0].Size]
		rest = rest[entries[0].Size:]
		if sha256.Sum256(content) != entries[0].Hash {
			return wrongContent(entries[0].Path)
		}
		for _, e := range entries {
			if e.Size != int64(len(content)) { // the manifest gives one hash two sizes
				return wrongContent(e.Path)
			}
			err := b.writeSmall(e, content, masked)
			if errors.Is(err, fs.ErrNotExist) { // its folder is not there yet
				<-prepared
				err = b.writeSmall(e, content, masked)
			}
			if err != nil {
				return fmt.Errorf("cannot write %q: %w", e.Path, err)
			}
		}
	}
	return nil
}

// writeSmall creates a file with as few system calls as possible.
func (b *beneath) writeSmall(e Entry, content []byte, masked bool) (err error) {
	dir, name, err := b.at(e.Path)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, e.perm())
	if err != nil {
		return err
	}
	defer func() {
		if closing := unix.Close(fd); err == nil {
			err = closing
		}
		if err != nil { // another way may provide it
			_ = unix.Unlinkat(dir, name, 0)
		}
	}()
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil && err != unix.EINTR {
			return err
		}
		content = content[max(n, 0):]
	}
	if masked {
		if err := unix.Fchmod(fd, e.perm()); err != nil {
			return err
		}
	}
	return setTime(fd, e)
}

// umaskMasks reports whether the umask removes, or may remove, mode bits that a tree needs. It does not use umask(2),
// because that call changes the umask for a moment.
func umaskMasks() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	_, after, found := bytes.Cut(status, []byte("\nUmask:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 8, 32)
	return !found || err != nil || mask&0o755 != 0
}

// fewEntries is the number of entries from which one flush of the file system is cheaper than flushing each entry. A
// flush of the file system includes the writes of other programs.
const fewEntries = 64

// flush writes the tree to disk and makes its root readable for all users. Without it a power cut could keep the rename
// but lose the contents: an empty file would look like a complete release.
func (st *staged) flush() error {
	if err := st.lock.Chmod(0o755); err != nil {
		return err
	}
	// Collection compares these times, and the folder of a reused tree has an old one.
	now := time.Now()
	if err := os.Chtimes(st.path, now, now); err != nil {
		return err
	}
	changed := slices.Collect(maps.Keys(st.changed)) // a linked file was flushed when it was written
	return errors.Join(FlushAll(st.lock, changed, st.root.sync), st.lock.Sync())
}

// FlushAll makes written files and folders durable, whose file system has the open folder dir. flush flushes one of them.
func FlushAll(dir *os.File, paths []string, flush func(path string) error) error {
	if len(paths) > fewEntries {
		if ok, err := syncAll(dir); ok {
			return err
		}
	}
	for _, path := range paths {
		if err := flush(path); err != nil {
			return err
		}
	}
	return nil
}
