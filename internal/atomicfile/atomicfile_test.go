package atomicfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func read(t *testing.T, path string) (text string, mode fs.FileMode) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), info.Mode().Perm()
}

// only fails if the folder holds more than the file.
func only(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("the folder holds %v: %v", entries, err)
	}
}

func TestWriteReplacesContentAndMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for _, write := range []func(string, []byte, fs.FileMode) error{Write, WriteVolatile} {
		for _, mode := range []fs.FileMode{0o600, 0o755, 0o644} {
			if err := write(path, []byte(mode.String()), mode); err != nil {
				t.Fatal(err)
			}
			if text, is := read(t, path); text != mode.String() || is != mode {
				t.Errorf("the file holds %q, mode %s, want mode %s", text, is, mode)
			}
			only(t, path)
		}
	}
}

// A disk that fills up in the middle must not cost the file that was there.
func TestFailedWriteKeepsOldFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left on device")
	err := WriteFunc(path, 0o600, func(f *os.File) error {
		if _, err := f.WriteString("ne"); err != nil {
			return err
		}
		return full
	})
	if !errors.Is(err, full) {
		t.Error(err)
	}
	if text, _ := read(t, path); text != "old" {
		t.Errorf("the file holds %q", text)
	}
	only(t, path)
}

func TestWriteReplacesLeftoverOfCrash(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	target := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Symlink(target, filepath.Join(filepath.Dir(path), Temporary("file"))); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the leftover's link was followed: %v", err)
	}
	only(t, path)
}

func TestWriteReplacesLinkAndReplaceFollowsIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("old"), 0o640), os.Symlink("target", link)); err != nil {
		t.Fatal(err)
	}
	if err := Replace(link, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, mode := read(t, target); text != "new" || mode != 0o640 {
		t.Errorf("the link's target holds %q, mode %s", text, mode)
	}
	if err := Write(link, []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, _ := read(t, target); text != "new" {
		t.Errorf("Write changed the link's target to %q", text)
	}
	if info, err := os.Lstat(link); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the link is %v: %v", info, err)
	}
}

func TestWriteInStaysBelowRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.Mkdir("sub", 0o700); err != nil {
		t.Fatal(err)
	}
	content := func(f *os.File) error { _, err := f.WriteString("text"); return err }
	if err := WriteIn(root, "sub/file", 0o644, true, content); err != nil {
		t.Fatal(err)
	}
	if text, _ := read(t, filepath.Join(dir, "sub/file")); text != "text" {
		t.Errorf("the file holds %q", text)
	}
	if err := WriteIn(root, "../file", 0o644, true, content); err == nil {
		t.Error("a file outside the root was written")
	}
}

// Two commands that renew one identity at the same time must not leave a mixture of both.
func TestConcurrentSharedWritesLeaveOneContent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "identity")
	contents := []string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<15), strings.Repeat("c", 1<<14)}
	for range 30 {
		var writers sync.WaitGroup
		for _, c := range contents {
			writers.Go(func() {
				if err := WriteShared(path, []byte(c), 0o600); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		if b, err := os.ReadFile(path); err != nil || !slices.Contains(contents, string(b)) {
			t.Fatalf("%d bytes of no single writer, %v", len(b), err)
		}
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("%d files are left", len(left))
	}
}

// Two programs that take a lock file at the same time must not both have it.
func TestCreateLeavesExistingFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "lock")
	if err := Create(path, []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, []byte("two"), 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the second: %v", err)
	}
	if text, mode := read(t, path); text != "one" || mode != 0o644 {
		t.Errorf("it has %q, %v", text, mode)
	}
	only(t, path)
}

// Without this an unprivileged user could take a lock of the agent and stop it.
func TestOpenLockKeepsOthersOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	for _, before := range []fs.FileMode{0, 0o644, 0o666, 0o600} {
		if before != 0 {
			if err := os.Chmod(path, before); err != nil {
				t.Fatal(err)
			}
		}
		f, err := OpenLock(path)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if _, mode := read(t, path); mode != 0o600 {
			t.Errorf("mode %o of a lock that had %o", mode, before)
		}
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLock(link); err == nil {
		t.Error("it followed a link")
	}
}

// `pulley backup FILE` and `pulley env plan --out FILE` put a regular file in the place of a device.
func TestPipesDevicesAndLinksAreNotReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	listener, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := errors.Join(syscall.Mkfifo(in("pipe"), 0o600), os.Symlink("pipe", in("to pipe")), os.Symlink(os.DevNull, in("to device")),
		os.Symlink("absent", in("to nothing")), os.WriteFile(in("file"), []byte("old"), 0o600), os.Symlink("file", in("to file"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"pipe": "it is a named pipe, not a regular file\n", "socket": "it is a socket, not a regular file\n", "to pipe": "it is a named pipe, not a regular file\n",
		"to device": "it is a device, not a regular file\n", "to nothing": "it is a link to a file that does not exist\n",
	} {
		if _, err := Follow(in(name)); err == nil || !strings.Contains(err.Error(), "write "+in(name)+": "+want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"pipe", "socket"} {
		was, err := os.Lstat(in(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, write := range []func(string, []byte, fs.FileMode) error{Write, WriteShared, WriteVolatile, Replace, Create} {
			if err := write(in(name), []byte("new"), 0o600); err == nil {
				t.Errorf("%s was written", name)
			}
		}
		if is, err := os.Lstat(in(name)); err != nil || !os.SameFile(is, was) {
			t.Errorf("%s was replaced: %v", name, err)
		}
	}
	for path, want := range map[string]string{in("file"): in("file"), in("absent"): in("absent"), in("to file"): in("file")} {
		if got, err := Follow(path); got != want || err != nil {
			t.Errorf("%s: %s, %v", path, got, err)
		}
	}
}
