package content

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// ReadTree lists and hashes the contents of the folder root. It omits every name .git and every path for which ignore
// returns true. The paths are relative to root; ignore may be nil. ReadTree does not open ignored folders. A file is
// executable if its owner may execute it. An entry that a release can't contain is a refusedError with its name.
func ReadTree(root string, ignore func(path string, dir bool) bool) (*Manifest, error) {
	return readTree(root, func(p string, dir bool) bool {
		return path.Base(p) == ".git" || ignore != nil && ignore(p, dir)
	})
}

func readTree(dir string, ignore func(path string, dir bool) bool) (*Manifest, error) {
	m, err := walkTree(dir, ignore)
	if err != nil {
		return nil, fmt.Errorf("cannot read tree %s: %w", dir, err)
	}
	return m, nil
}

func walkTree(dir string, ignore func(path string, dir bool) bool) (*Manifest, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	m := &Manifest{}
	var total int64
	var refused []error
	// refuse continues after an entry that a release can't contain, so that the error names all of them.
	refuse := func(err error, dir bool) error {
		var bad *refusedError
		if !errors.As(err, &bad) || len(refused) == mostRefused {
			return err
		}
		refused = append(refused, err)
		if dir {
			return fs.SkipDir
		}
		return nil
	}
	err = Walk(root, func(p string, d fs.DirEntry, err error) error {
		if p == "." || err != nil {
			return err
		}
		if ignore(p, d.IsDir()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		// Check before opening: a folder that is too deep or has a bad name is not read.
		if err := checkPath(p); err != nil {
			return refuse(err, d.IsDir())
		}
		if len(m.Entries) == MaxEntries {
			return tooManyEntries()
		}
		e, err := readEntry(root, p)
		if err != nil {
			return refuse(err, false)
		}
		// Check here too: hashing a disk image of a terabyte would be useless work.
		if total += e.Size; e.regular() && total > MaxTreeBytes {
			return tooManyBytes(p)
		}
		m.Entries = append(m.Entries, e)
		return nil
	})
	if err = errors.Join(append(refused, err)...); err != nil {
		return nil, err
	}
	slices.SortFunc(m.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	if err := checkEntries(m.Entries); err != nil {
		return nil, err
	}
	return m, nil
}

// mostRefused is the number of refused entries that one error names.
const mostRefused = 10

func readEntry(root *os.Root, p string) (Entry, error) {
	info, err := root.Lstat(p)
	if err != nil {
		return Entry{}, err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		return Entry{Path: p, Kind: KindDirectory}, nil
	case fs.ModeSymlink:
		target, err := root.Readlink(p)
		return Entry{Path: p, Kind: KindLink, Size: int64(len(target)), Hash: sha256.Sum256([]byte(target)), Target: target}, err
	case 0:
		return readFile(root, p, info)
	}
	return Entry{}, &refusedError{p, fmt.Sprintf("it is neither a file, a folder nor a symbolic link (%s)", info.Mode()), hintRename}
}

func readFile(root *os.Root, p string, info fs.FileInfo) (Entry, error) {
	tooLarge := &refusedError{p, fmt.Sprintf("it has more than %d MiB", MaxFileBytes>>20), hintShrink}
	if info.Size() > MaxFileBytes {
		return Entry{}, tooLarge
	}
	f, err := openRegular(root, p)
	if err != nil {
		return Entry{}, err
	}
	defer f.Close()
	e := Entry{Path: p, Kind: KindFile}
	if info.Mode()&0o100 != 0 {
		e.Kind = KindExecutable
	}
	h := sha256.New()
	e.Size, err = io.Copy(h, io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return Entry{}, err
	}
	if e.Size > MaxFileBytes {
		return Entry{}, tooLarge
	}
	h.Sum(e.Hash[:0])
	return e, nil
}

var errNotRegular = errors.New("is not a regular file any more")

// openRegular opens a regular file. If a pipe or device replaced the file, it neither blocks nor reads.
func openRegular(root *os.Root, p string) (*os.File, error) {
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s %w", p, errNotRegular)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
