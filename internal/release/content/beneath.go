package content

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// beneath opens and changes paths below one folder. The paths come from a manifest. It never follows a link, and on Linux it never
// crosses into another file system, so it cannot reach a path outside the folder.
type beneath struct {
	root *os.File
	last string // the folder opened as fd
	fd   int
}

func openBeneath(dir string) (*beneath, error) {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &beneath{root: root, last: ".", fd: int(root.Fd())}, nil
}

func (b *beneath) close() {
	b.leave()
	b.root.Close()
}

func (b *beneath) leave() {
	if b.last != "." {
		unix.Close(b.fd)
	}
	b.last, b.fd = ".", int(b.root.Fd())
}

// in returns an open folder. It is valid until the next call.
func (b *beneath) in(dir string) (int, error) {
	if dir == b.last {
		return b.fd, nil
	}
	b.leave()
	if dir == "." {
		return b.fd, nil
	}
	fd, err := openFolder(int(b.root.Fd()), dir)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	b.last, b.fd = dir, fd
	return fd, nil
}

// at returns the open parent folder of a path and the last component of the path.
func (b *beneath) at(path string) (fd int, name string, err error) {
	dir, name := ".", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	fd, err = b.in(dir)
	return fd, name, err
}

const folderFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func openFolder(root int, dir string) (int, error) {
	if fd, ok, err := openAtOnce(root, dir); ok {
		return fd, err
	}
	return openEach(root, dir)
}

// openEach opens one component at a time.
func openEach(root int, dir string) (int, error) {
	if !filepath.IsLocal(dir) {
		return -1, unix.EXDEV
	}
	at := root
	for component := range strings.SplitSeq(dir, "/") {
		next, err := unix.Openat(at, component, folderFlags, 0)
		if at != root {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

func (b *beneath) mkdir(path string, masked bool) error {
	fd, name, err := b.at(path)
	if err == nil {
		err = pathError("mkdir", path, unix.Mkdirat(fd, name, 0o755))
	}
	if err == nil && masked {
		err = pathError("chmod", path, unix.Fchmodat(fd, name, 0o755, 0))
	}
	return err
}

// create creates a new file. It fails if the file exists.
func (b *beneath) create(path string) (*os.File, error) {
	dir, name, err := b.at(path)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return nil, pathError("create", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// open opens a file or folder for reading. It does not block on a pipe.
func (b *beneath) open(path string) (*os.File, error) {
	dir, name, err := b.at(path)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (b *beneath) symlink(target, path string) error {
	fd, name, err := b.at(path)
	if err != nil {
		return err
	}
	return pathError("symlink", path, unix.Symlinkat(target, fd, name))
}

// link creates path as a hard link to a file below from.
func (b *beneath) link(from *beneath, old, path string) error {
	there, oldName, err := from.at(old)
	if err != nil {
		return err
	}
	here, name, err := b.at(path)
	if err != nil {
		return err
	}
	return pathError("link", path, unix.Linkat(there, oldName, here, name, 0))
}

// remove removes a file, a link or an empty folder.
func (b *beneath) remove(path string, folder bool) error {
	flags := 0
	if folder {
		b.leave()
		flags = unix.AT_REMOVEDIR
	}
	fd, name, err := b.at(path)
	if err != nil {
		return err
	}
	return pathError("remove", path, unix.Unlinkat(fd, name, flags))
}

// sync flushes one file or folder.
func (b *beneath) sync(path string) error {
	f, err := b.open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // on macOS, f.Sync would empty the cache of the drive each time; the last Sync of flush does
		err = unix.Fsync(int(f.Fd()))
	}
	return pathError("sync", path, err)
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// mtime returns the time of an installed file, derived from the hash of its content. A file with the right time, size
// and mode was not written since, unless the writer hid it. All times are in the past and in full microseconds, because
// older kernels set no finer times.
func mtime(e Entry) time.Time {
	var seconds, nanos uint32
	for i := range 4 {
		seconds = seconds<<8 | uint32(e.Hash[i])
		nanos = nanos<<8 | uint32(e.Hash[i+4])
	}
	return time.Unix(1_000_000_000+int64(seconds%500_000_000), int64(nanos%1_000_000)*1000)
}

// perm returns the mode of an installed file or folder. Files are read-only: trees are never changed in place, and the
// mode prevents most accidental writes.
func (e Entry) perm() uint32 {
	switch e.Kind {
	case KindDirectory:
		return 0o755
	case KindExecutable:
		return 0o555
	}
	return 0o444
}
