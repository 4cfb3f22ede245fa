// Package atomicfile writes a file whole or not at all. It never leaves a file half written, and it never waits for a lock:
// callers that may write the same file at the same time hold a lock of their own.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write writes a file. The file is durable when Write returns. Its folder exists.
func Write(path string, b []byte, mode fs.FileMode) error {
	return WriteFunc(path, mode, func(f *os.File) error { return write(f, b) })
}

// WriteFunc is Write for content that a function writes.
func WriteFunc(path string, mode fs.FileMode, content func(*os.File) error) error {
	return in(path, mode, true, content)
}

// WriteVolatile is Write without any flush: after a power cut the file may be old, empty or missing. It suits content that
// the reader verifies or can do without.
func WriteVolatile(path string, b []byte, mode fs.FileMode) error {
	return in(path, mode, false, func(f *os.File) error { return write(f, b) })
}

// Replace is Write for a file of a person: it follows a symbolic link, and an existing file keeps its mode.
func Replace(path string, b []byte, mode fs.FileMode) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return Write(path, b, mode)
}

func in(path string, mode fs.FileMode, durable bool, content func(*os.File) error) (err error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return WriteIn(root, filepath.Base(path), mode, durable, content)
}

// WriteIn is WriteFunc for a name below root. Without durable it is as WriteVolatile.
func WriteIn(root *os.Root, name string, mode fs.FileMode, durable bool, content func(*os.File) error) (err error) {
	folder := filepath.Dir(name)
	temporary := filepath.Join(folder, Temporary(filepath.Base(name))) // one fixed name: what a crash left is replaced
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
	dir, err := root.Open(folder)
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
