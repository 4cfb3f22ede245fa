package content

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"pulley/internal/failpoint"
)

// write fills the staged folder in this order: folders and linkable files, fetched contents, symbolic links. The links
// come last, because nothing must be written through a link.
func (i *installation) write(ctx context.Context) error {
	w := &writer{installation: i, st: i.staged, ctx: ctx, missing: map[int]bool{}, masked: umaskMasks()}
	for _, do := range []func() error{w.clear, w.prepare, w.survey, w.fetch, w.links} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

type writer struct {
	*installation
	st      *staged
	ctx     context.Context
	masked  bool         // the umask removes mode bits: set modes separately
	missing map[int]bool // files not yet written
	later   map[int]bool // links not yet created
}

// clear removes from a kept previous tree the entries that the release lacks or that differ.
func (w *writer) clear() error {
	if w.st.from == nil {
		return nil
	}
	differences := Diff(w.st.from.manifest, w.manifest)
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
	w.st.touch(path)
	delete(w.st.folders, path)
	return w.st.root.remove(path, folder)
}

// touch records that a name was added or removed.
func (st *staged) touch(path string) {
	dir := "."
	if n := bytes.LastIndexByte([]byte(path), '/'); n >= 0 {
		dir = path[:n]
	}
	st.folders[dir] = true
	delete(st.files, path)
}

// prepare creates the folders and links the files that other trees have.
func (w *writer) prepare() error {
	var old tree
	if w.st.from != nil {
		old = tree(w.st.from.manifest.Entries)
	}
	w.later = map[int]bool{}
	for n, e := range w.manifest.Entries {
		if before, ok := old.find(e.Path); ok && before == e {
			continue
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		w.st.touch(e.Path)
		switch {
		case e.Kind == KindDirectory:
			if err := w.st.root.mkdir(e.Path, w.masked); err != nil {
				return err
			}
			w.st.folders[e.Path] = true
		case e.Kind == KindLink:
			w.later[n] = true
		case e.Size == 0:
			if err := w.file(e, bytes.NewReader(nil)); err != nil {
				return err
			}
		case !w.link(e):
			w.missing[n] = true
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
	err = w.st.root.link(root, p.path, e.Path)
	switch {
	case err == nil:
		w.st.linked = true
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
	return w.file(e, f)
}

// survey checks everything taken from other trees. Flawed files are fetched.
func (w *writer) survey() error {
	if w.st.from == nil && !w.st.linked {
		return nil
	}
	pending := map[int]bool{}
	for n := range w.missing {
		pending[n] = true
	}
	for n := range w.later {
		pending[n] = true
	}
	flaws, err := survey(w.st.path, w.manifest, pending)
	if err != nil {
		return err
	}
	for _, f := range flaws {
		if f.entry < 0 || !w.manifest.Entries[f.entry].regular() {
			return fmt.Errorf("cannot use what is on disk: %q: %s", f.path, f.why)
		}
		err := w.remove(f.path, false)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		w.missing[f.entry] = true
	}
	return nil
}

// fetch writes the contents that no local tree has.
func (w *writer) fetch() error {
	if len(w.missing) == 0 {
		failpoint.Here("install:half-written")
		return nil
	}
	var wanted []Entry
	paths := map[[sha256.Size]byte][]Entry{}
	for n, e := range w.manifest.Entries {
		if !w.missing[n] {
			continue
		}
		if len(paths[e.Hash]) == 0 {
			wanted = append(wanted, e)
		}
		paths[e.Hash] = append(paths[e.Hash], e)
	}
	w.asked = true
	scribes, err := hire(w.st.path, w.masked)
	if err != nil {
		return err
	}
	written, half := 0, len(wanted)/2
	return scribes.dismiss(w.supply.each(w.ctx, wanted, func(e Entry, r io.Reader) error {
		if written == half {
			failpoint.Here("install:half-written")
		}
		written++
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if e.Size > smallFile {
			return w.everywhere(paths[e.Hash], r)
		}
		for _, same := range paths[e.Hash] {
			w.st.files[same.Path] = true
		}
		return scribes.give(paths[e.Hash], r)
	}))
}

// everywhere writes one content to all its paths.
func (w *writer) everywhere(entries []Entry, r io.Reader) error {
	first := entries[0]
	if err := w.file(first, r); err != nil {
		return fmt.Errorf("cannot write %q: %w", first.Path, err)
	}
	for _, e := range entries[1:] {
		f, err := w.st.root.open(first.Path)
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
	f, err := w.st.root.create(e.Path)
	if err != nil {
		return err
	}
	defer func() {
		if closing := f.Close(); err == nil {
			err = closing
		}
		if err != nil { // another way may provide it
			_ = w.st.root.remove(e.Path, false)
		}
	}()
	w.st.files[e.Path] = true
	h := sha256.New()
	if reflink(f, r) {
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

// reflink makes a new file share all blocks of its source and reports whether it succeeded.
func reflink(to *os.File, from io.Reader) bool {
	f, ok := from.(*os.File)
	return ok && unix.IoctlFileClone(int(to.Fd()), int(f.Fd())) == nil
}

// setTime sets the time of an open file to the time derived from its content.
func setTime(fd int, e Entry) error {
	at := mtime(e)
	ts := unix.NsecToTimespec(at.UnixNano())
	tv := []unix.Timeval{unix.NsecToTimeval(at.UnixNano()), unix.NsecToTimeval(at.UnixNano())}
	err := unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
	if err != nil { // before Linux 5.8
		err = unix.Futimes(fd, tv)
	}
	return err
}

func (w *writer) links() error {
	for n, e := range w.manifest.Entries {
		if !w.later[n] {
			continue
		}
		if err := w.st.root.symlink(e.Target, e.Path); err != nil {
			return err
		}
	}
	return nil
}
