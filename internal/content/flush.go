package content

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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
	if len(st.files)+len(st.folders) > fewEntries && syncfsTellsErrors() {
		if err := unix.Syncfs(int(st.lock.Fd())); err != nil {
			return &fs.PathError{Op: "syncfs", Path: st.path, Err: err}
		}
		return nil
	}
	return st.flushEach()
}

// flushEach flushes the new entries. A linked file was flushed when it was written.
func (st *staged) flushEach() error {
	for path := range st.files {
		if err := st.root.sync(path, false); err != nil {
			return err
		}
	}
	for path := range st.folders {
		if err := st.root.sync(path, true); err != nil {
			return err
		}
	}
	return st.lock.Sync()
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// syncfsTellsErrors reports whether the kernel is 5.8 or later. Earlier kernels hide failed writes from syncfs
// (735e4ae5ba28).
func syncfsTellsErrors() bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	return atLeast58(unix.ByteSliceToString(u.Release[:]))
}

func atLeast58(release string) bool {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(parts[1])
	return err == nil && (major > 5 || major == 5 && minor >= 8)
}
