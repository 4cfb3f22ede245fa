package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"pulley/internal/atomicfile"
	"time"
)

// writeArchive writes the tree below root as a tar file that depends on nothing but the tree and the time: names sorted,
// one time for all, owned by root.
func writeArchive(ctx context.Context, file string, zipped bool, root string, at time.Time) error {
	return writeFile(file, func(w io.Writer) (err error) {
		if zipped {
			z := gzip.NewWriter(w) // names no file and no time
			defer func() { err = errors.Join(err, z.Close()) }()
			w = z
		}
		t := tar.NewWriter(w)
		defer func() { err = errors.Join(err, t.Close()) }()
		return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || path == root {
				return err
			}
			return addToArchive(t, root, path, d, at)
		})
	})
}

func addToArchive(t *tar.Writer, root, path string, d fs.DirEntry, at time.Time) error {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: filepath.ToSlash(name), ModTime: at.UTC().Truncate(time.Second), Uname: "root", Gname: "root"}
	switch {
	case d.IsDir():
		h.Typeflag, h.Mode, h.Name = tar.TypeDir, 0o755, h.Name+"/"
		return t.WriteHeader(h)
	case d.Type() == fs.ModeSymlink:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
		return t.WriteHeader(h)
	}
	h.Typeflag, h.Mode, h.Size = tar.TypeReg, int64(exportedMode(info.Mode())), info.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}

// temporary begins the names of what is not whole yet.
const temporary = ".pulley-export-"

// isFolder refuses a place that nothing can be written to.
func isFolder(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no folder %s", dir)
	case err == nil && !info.IsDir():
		return fmt.Errorf("%s is no folder", dir)
	}
	return err
}

// besides names the folder that something temporary could not be made in, and not the temporary name.
func besides(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return &fs.PathError{Op: "write to", Path: filepath.Dir(path.Path), Err: path.Err}
	}
	return err
}

// writeFile writes a file that appears whole or not at all: a temporary one beside it, flushed, then renamed.
func writeFile(file string, write func(io.Writer) error) (err error) {
	if err := isFolder(filepath.Dir(file)); err != nil {
		return err
	}
	err = atomicfile.WriteFunc(file, 0o644, func(f *os.File) error { return write(f) })
	var link *os.LinkError
	if errors.As(err, &link) {
		err = &fs.PathError{Op: "write", Path: file, Err: link.Err}
	}
	return err
}

func writeWhole(file string, b []byte) error {
	return writeFile(file, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}
