package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"pulley/internal/release/content"
)

// copyTree copies a folder to an empty one, without the paths for which skip returns true. It copies bytes and makes no
// links, because a tool that changes the copy must not change the original. (The kernel shares blocks if the file
// system can.)
func copyTree(ctx context.Context, from, to string, skip func(name string, dir bool) bool) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	entries, total := 0, int64(0)
	return content.Walk(src, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil, name == ".":
			return err
		case skip(name, d.IsDir()) && d.IsDir():
			return fs.SkipDir
		case skip(name, d.IsDir()):
			return nil
		}
		if entries++; entries > content.MaxEntries {
			return fmt.Errorf("it has more than %d files, folders and links\nleave out what nodes do not need (.pulleyignore)", content.MaxEntries)
		}
		if d.IsDir() {
			return dst.Mkdir(name, 0o755)
		}
		n, err := copyEntry(src, dst, name, name, d)
		if total += n; err == nil && total > content.MaxTreeBytes {
			err = fmt.Errorf("with %s it has more than %d MiB\nleave out what nodes do not need (.pulleyignore)", name, content.MaxTreeBytes>>20)
		}
		return err
	})
}

// copyEntry copies a file or link to a new name.
func copyEntry(src, dst *os.Root, name, to string, d fs.DirEntry) (n int64, err error) {
	switch d.Type() {
	case fs.ModeSymlink:
		target, err := src.Readlink(name)
		if err != nil {
			return 0, err
		}
		return 0, dst.Symlink(target, to)
	case 0:
		return copyFile(src, dst, name, to)
	}
	return 0, fmt.Errorf("%s is neither a file, a folder nor a symbolic link (%s)\nleave it out by a line in %s", name, d.Type(), ignoreFile)
}

func copyFile(src, dst *os.Root, name, to string) (n int64, err error) {
	// The file may have become a pipe. Opening it must not block.
	in, err := src.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is not a regular file any more", name)
	}
	out, err := dst.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|info.Mode().Perm()&0o111)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(out, io.LimitReader(in, content.MaxFileBytes+1))
	if err == nil && n > content.MaxFileBytes {
		err = fmt.Errorf("%s has more than %d MiB\nleave it out by a line in %s", name, content.MaxFileBytes>>20, ignoreFile)
	}
	return n, errors.Join(err, out.Close())
}
