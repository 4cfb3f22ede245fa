package content

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errFileSystem is the error of a damaged file system, as ext4 and XFS report it.
const errFileSystem = unix.EUCLEAN

// openAtOnce opens a folder below another one. Before Linux 5.6, or in a sandbox without openat2, ok is false.
func openAtOnce(root int, dir string) (fd int, ok bool, err error) {
	fd, err = unix.Openat2(root, dir, &unix.OpenHow{
		Flags: folderFlags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	return fd, !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAGAIN), err
}

// reflink makes a new file share all blocks of its source and reports whether it succeeded.
func reflink(to, from *os.File) bool {
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil
}

// setTime sets the time of an open file to the time derived from its content. Package unix has no futimens(2).
func setTime(fd int, e Entry) error {
	at := unix.NsecToTimespec(mtime(e).UnixNano())
	times := [2]unix.Timespec{at, at}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// syncAll flushes the file system of an open folder. It returns false if that would hide failed writes, as before Linux 5.8
// (735e4ae5ba28).
func syncAll(dir *os.File) (bool, error) {
	var u unix.Utsname
	if unix.Uname(&u) != nil || !atLeast58(unix.ByteSliceToString(u.Release[:])) {
		return false, nil
	}
	return true, pathError("syncfs", dir.Name(), unix.Syncfs(int(dir.Fd())))
}

func atLeast58(release string) bool {
	var major, minor int
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 8)
}
