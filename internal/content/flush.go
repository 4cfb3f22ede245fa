package content

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fewEntries is how many it takes before flushing the whole file system, other programs' writes with it, is cheaper than
// flushing each entry.
const fewEntries = 64

// flush makes the tree safe from a power cut and opens its root to everyone. Without it the rename could survive a power
// cut that the contents don't, and an empty file would look like a complete release.
func (st *staged) flush() error {
	if err := st.lock.Chmod(0o755); err != nil {
		return err
	}
	// Collection goes by this time; a spare's folder has an old one.
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

// flushEach flushes what is new. A file that was linked was flushed when it was written.
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

// syncfsTellsErrors says whether the kernel is 5.8 or later: before, syncfs hid that a write had failed (735e4ae5ba28).
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
