package content

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// onSmallDisk runs a test again in a child process with its own mount namespace. Its mounts are invisible to others and
// end with it. In the child it returns a folder on a new tmpfs with these options; in the parent it returns "".
func onSmallDisk(t *testing.T, options string) string {
	t.Helper()
	const inside = "PULLEY_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if uid := os.Getuid(); uid != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("in a mount namespace (needs root, or user namespaces): %v\n%s", err, out)
		}
		return ""
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// leave fills the disk with a file of another program until exactly so many bytes are free.
func leave(t *testing.T, dir string, free int64) (undo func()) {
	t.Helper()
	p := filepath.Join(dir, "of another program")
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	err := os.WriteFile(p, make([]byte, max(0, int64(st.Bavail)*st.Bsize-free)), 0o644)
	if err != nil && !errors.Is(err, unix.ENOSPC) { // an object in the spool may take the last bytes
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(p); err != nil {
			t.Error(err)
		}
	}
}

// leaveInodes does the same with inodes.
func leaveInodes(t *testing.T, dir string, free int64) (undo func()) {
	t.Helper()
	p := filepath.Join(dir, "of another program")
	if err := os.Mkdir(p, 0o755); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	for i := range max(0, int64(st.Ffree)-free) {
		if err := os.WriteFile(filepath.Join(p, fmt.Sprint(i)), nil, 0o644); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.RemoveAll(p); err != nil {
			t.Error(err)
		}
	}
}

// The disk fills up during an installation, after the check for space. The old release must remain, nothing must be
// left behind, and the next attempt with enough space must succeed.
func TestDiskFullAtAnyPoint(t *testing.T) {
	dir := onSmallDisk(t, "size=4m,nr_inodes=500")
	if dir == "" {
		return
	}
	old, oldSrc := publish(t, folder{"version": "1"})
	f := folder{"big": noise(1, 50_000), "link": "-> big", "run": "#!/bin/sh\n", "same": "same", "x/same": "same"}
	for i := range 20 {
		f[fmt.Sprintf("modules/m%d/f", i)] = noise(uint64(i), 1000+i*300)
	}
	r, src := publish(t, f)
	pack := mustOpen(t, src, r).supply.index.packs[0]
	s := newStore(t, dir)
	mustInstall(t, s, oldSrc, old)
	mustActivate(t, s, old.Tree)

	for resource, fill := range map[string]struct {
		leave func(*testing.T, string, int64) func()
		unit  int64
	}{"bytes": {leave, 4096}, "inodes": {leaveInodes, 1}} {
		failed := 0
		for n := int64(0); ; n++ {
			undo := func() {}
			filling := faulty{src, func(hash string) ([]byte, error) {
				if hash == pack.Hash { // the first fetch after the check for space
					undo = fill.leave(t, dir, n*fill.unit)
				}
				return src[hash], nil
			}}
			err := s.Install(t.Context(), filling, r)
			undo()
			if err == nil {
				wantTrees(t, s, old.Tree, r.Tree)
				break
			}
			failed++
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("%d %s: %v", n, resource, err)
			}
			wantTrees(t, s, old.Tree)
			wantCurrent(t, s, old.Tree)
		}
		if failed < 20 {
			t.Errorf("only %d points of failure with %s: the disk was not full", failed, resource)
		}
		if err := s.Discard(r.Tree); err != nil {
			t.Fatal(err)
		}
	}

	defer leave(t, dir, 40_000)()
	var short *noSpaceError
	if err := s.Install(t.Context(), src, r); !errors.As(err, &short) {
		t.Errorf("full from the start: %v", err)
	}
	wantTrees(t, s, old.Tree)
}

// A read-only state folder must give an error, and installed releases must remain usable.
func TestUnwritableFolder(t *testing.T) {
	dir := onSmallDisk(t, "size=4m")
	if dir == "" {
		return
	}
	old, oldSrc := publish(t, folder{"version": "1"})
	r, src := publish(t, golden)
	s := newStore(t, dir)
	mustInstall(t, s, oldSrc, old)
	mustActivate(t, s, old.Tree)
	release, err := s.Lock(old.Tree)
	if err != nil {
		t.Fatal(err)
	}
	release()
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	s = newStore(t, dir)
	wantCurrent(t, s, old.Tree)
	for name, err := range map[string]error{
		"install":  s.Install(t.Context(), src, r),
		"activate": s.Activate(old.Tree),
		"discard":  s.Discard(old.Tree),
	} {
		if !errors.Is(err, unix.EROFS) || !strings.HasPrefix(err.Error(), "cannot "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantTrees(t, s, old.Tree)
	wantCurrent(t, s, old.Tree)
	tomorrow(s)
	wantTrees(t, s, old.Tree) // the check can't be recorded, but the tree is correct
	if _, err := OpenStore(filepath.Join(dir, "new")); !errors.Is(err, unix.EROFS) {
		t.Errorf("new store: %v", err)
	}
	remount(0)
	mustInstall(t, s, src, r)
	wantTrees(t, s, old.Tree, r.Tree)
}
