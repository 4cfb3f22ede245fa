// Package atomicfile writes a file completely or not at all. It never leaves a file half written, and it never waits for a lock:
// callers that may write the same file at the same time hold a lock of their own, or use WriteShared. It never replaces a named pipe,
// a socket or a device. A symbolic link is replaced: for a file that a person names, use Follow first.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"

	"pulley/internal/bounded"
)

// Write writes a file. The file is durable when Write returns. Its folder exists.
func Write(path string, b []byte, mode fs.FileMode) error {
	return WriteFunc(path, mode, func(f *os.File) error { return write(f, b) })
}

// WriteFunc is Write for content that a function writes.
func WriteFunc(path string, mode fs.FileMode, content func(*os.File) error) error {
	return in(path, Temporary(filepath.Base(path)), mode, true, content)
}

// WriteShared is Write for a file that several processes may write at the same time: each uses a temporary file of its own, and
// the last one wins. After a crash a temporary file may be left.
func WriteShared(path string, b []byte, mode fs.FileMode) error {
	return WriteSharedFunc(path, mode, func(f *os.File) error { return write(f, b) })
}

// WriteSharedFunc is WriteShared for content that a function writes.
func WriteSharedFunc(path string, mode fs.FileMode, content func(*os.File) error) error {
	return in(path, fmt.Sprintf("%s-%016x", Temporary(filepath.Base(path)), rand.Uint64()), mode, true, content)
}

// WriteVolatile is Write without any flush: after a power cut the file may be old, empty or missing. It suits content that
// the reader verifies or can do without.
func WriteVolatile(path string, b []byte, mode fs.FileMode) error {
	return in(path, Temporary(filepath.Base(path)), mode, false, func(f *os.File) error { return write(f, b) })
}

// WriteNamed is WriteShared for a file that a person names, as Follow does.
func WriteNamed(path string, b []byte, mode fs.FileMode) error {
	path, err := Follow(path)
	if err != nil {
		return err
	}
	return WriteShared(path, b, mode)
}

// Replace is WriteNamed for a file that keeps its mode.
func Replace(path string, b []byte, mode fs.FileMode) error {
	path, err := Follow(path)
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return WriteShared(path, b, mode)
}

// Follow returns the file to write where a person names path, as cp does: the file that a symbolic link leads to. It refuses a named
// pipe, a socket and a device, and a link to one or to nothing.
func Follow(path string) (string, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return path, check(path, info)
	}
	if info, err = os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", &fs.PathError{Op: "write", Path: path, Err: errors.New("it is a link to a file that does not exist\nremove the link, or create its file")}
	}
	if err == nil {
		err = check(path, info)
	}
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func check(path string, info fs.FileInfo) error {
	if err := bounded.Check("write", path, info); err != nil {
		return fmt.Errorf("%w\ngive another file, or move this one away", err)
	}
	return nil
}

// Create is Write for a file that must not exist. If it exists, Create returns fs.ErrExist and leaves it unchanged.
func Create(path string, b []byte, mode fs.FileMode) error {
	complete := filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%016x", Temporary(filepath.Base(path)), rand.Uint64()))
	if err := Write(complete, b, mode); err != nil {
		return err
	}
	defer os.Remove(complete)
	if err := os.Link(complete, path); err != nil {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// OpenLock opens a file for flock and creates it if it is missing. Only its owner may open it, because everyone who can open a file can
// lock it. OpenLock corrects the mode of an existing file.
func OpenLock(path string) (*os.File, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	f, err := OpenLockIn(root, filepath.Base(path))
	return f, errors.Join(err, root.Close())
}

// OpenLockIn is OpenLock for a name below root.
func OpenLockIn(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, lockMode)
	if errors.Is(err, syscall.EROFS) {
		f, err = root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, lockMode) // enough for flock
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Perm() != lockMode {
		err = f.Chmod(lockMode)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

const lockMode = 0o600

func in(path, temporary string, mode fs.FileMode, durable bool, content func(*os.File) error) (err error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return writeIn(root, filepath.Base(path), temporary, mode, durable, content)
}

// WriteIn is WriteFunc for a name below root. Without durable it is as WriteVolatile.
func WriteIn(root *os.Root, name string, mode fs.FileMode, durable bool, content func(*os.File) error) error {
	// One fixed name: the next write replaces what a crash left.
	return writeIn(root, name, filepath.Join(filepath.Dir(name), Temporary(filepath.Base(name))), mode, durable, content)
}

func writeIn(root *os.Root, name, temporary string, mode fs.FileMode, durable bool, content func(*os.File) error) (err error) {
	if info, err := root.Lstat(name); err == nil {
		if err := check(filepath.Join(root.Name(), name), info); err != nil {
			return err
		}
	}
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(temporary)
		}
	}()
	err = content(f)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && durable { // or a power cut leaves the new name on an empty file
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := root.Rename(temporary, name); err != nil {
		return err
	}
	if !durable {
		return nil
	}
	dir, err := root.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close()) // or a power cut undoes the rename
}

// Temporary is the name, in the same folder, under which a file is written. Cron and most other programs skip it.
func Temporary(name string) string { return "." + name + ".new" }

// SyncFolder makes renames and removals in a folder durable.
func SyncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func write(f *os.File, b []byte) error {
	_, err := f.Write(b)
	return err
}
