package content

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// releases installs n small trees, one per minute, the oldest first.
func releases(t *testing.T, s *Store, n int) []string {
	t.Helper()
	var trees []string
	start := time.Now().Add(-time.Hour)
	for i := range n {
		r, src := publish(t, folder{"version": fmt.Sprint(i)})
		mustInstall(t, s, src, r)
		at := start.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(s.Path(r.Tree), at, at); err != nil {
			t.Fatal(err)
		}
		trees = append(trees, r.Tree)
	}
	return trees
}

// `current` decides which release a node applies. It must only point to a complete tree.
func TestActivate(t *testing.T) {
	s := newStore(t, t.TempDir())
	wantCurrent(t, s, "")
	trees := releases(t, s, 2)
	wantCurrent(t, s, "")
	mustActivate(t, s, trees[0])
	mustActivate(t, s, trees[1])
	mustActivate(t, s, trees[0])
	mustActivate(t, s, trees[0])
	if target, err := os.Readlink(filepath.Join(s.dir, "current")); err != nil || target != "releases/"+trees[0] {
		t.Errorf("current → %q, %v: a link has to work from a chroot too", target, err)
	}
	for _, bad := range []string{goldenTree, "", "x", "../releases/" + trees[1], strings.ToUpper(trees[1])} {
		var gone *NotInstalledError
		if err := s.Activate(bad); !errors.As(err, &gone) {
			t.Errorf("%q: %v", bad, err)
		}
		wantCurrent(t, s, trees[0])
	}
	wantTrees(t, s, trees...)
}

func TestCurrentMustNameTree(t *testing.T) {
	s := newStore(t, t.TempDir())
	link := filepath.Join(s.dir, "current")
	tree := releases(t, s, 1)[0]
	for _, target := range []string{"releases/" + goldenTree, "/etc", "releases/../releases/" + tree, "releases/" + tree + "/"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		wantCurrent(t, s, "")
		mustActivate(t, s, tree)
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(link, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Current(); err == nil || !strings.Contains(err.Error(), "move it out of the way") {
		t.Errorf("a file: %q, %v", got, err)
	}
}

// Names come from etcd. No name may lead out of the store.
func TestStoreTakesOnlyHashes(t *testing.T) {
	s := newStore(t, t.TempDir())
	for _, bad := range []string{"", ".", "..", "../..", "/etc", strings.Repeat("g", 64), strings.Repeat("a", 63)} {
		if s.Has(bad) || s.Path(bad) != "" {
			t.Errorf("%q: has %v, path %q", bad, s.Has(bad), s.Path(bad))
		}
		if _, err := s.Lock(bad); err == nil {
			t.Errorf("locked %q", bad)
		}
		if err := s.Verify(bad); err == nil {
			t.Errorf("verified %q", bad)
		}
		if err := s.Discard(bad); err != nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if !s.Has(releases(t, s, 1)[0]) {
		t.Error("a tree that was installed is not there")
	}
}

// Collecting a tree in use would remove Puppet's modules during a run, or make a rollback a download.
func TestCollect(t *testing.T) {
	s := newStore(t, t.TempDir())
	trees := releases(t, s, 7)
	mustActivate(t, s, trees[0])
	release, err := s.Lock(trees[1])
	if err != nil {
		t.Fatal(err)
	}
	removed, freed, err := s.Collect([]string{trees[2], goldenTree}, 2)
	if err != nil || !slices.Equal(removed, trees[3:5]) || freed <= 0 {
		t.Errorf("removed %q, freed %d, %v; want %q", removed, freed, err, trees[3:5])
	}
	wantTrees(t, s, trees[0], trees[1], trees[2], trees[5], trees[6])
	// Another process may activate a tree after it was found unused.
	if _, err := s.remove(trees[0], removal{}); !errors.Is(err, errInUse) {
		t.Errorf("the current tree: %v", err)
	}
	release()
	if removed, _, err := s.Collect(nil, -1); err != nil || !slices.Equal(removed, []string{trees[1], trees[2], trees[5], trees[6]}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	wantTrees(t, s, trees[0])
	left, err := os.ReadDir(filepath.Join(s.dir, releasesDir))
	if err != nil || len(left) > 3 { // the tree, its lock and its manifest
		t.Errorf("left: %v, %v", left, err)
	}
	if left, err := os.ReadDir(s.previous()); err != nil || len(left) > 0 {
		t.Errorf("kept for reuse although room is short: %v, %v", left, err)
	}
	if removed, _, err := s.Collect(nil, 0); err != nil || len(removed) != 0 {
		t.Errorf("again: %q, %v", removed, err)
	}
}

// Lock files and manifests of all earlier releases would fill the folder.
func TestCollectRemovesFilesBesideTrees(t *testing.T) {
	s := newStore(t, t.TempDir())
	orphans := []string{s.lockFile(goldenTree), s.manifestFile(goldenTree)}
	for _, orphan := range orphans {
		if err := os.WriteFile(orphan, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Collect(nil, 0); err != nil {
		t.Error(err)
	}
	for _, orphan := range orphans {
		if _, err := os.Lstat(orphan); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("still there: %v", err)
		}
	}
}

// A run with a lock keeps its tree. A later request for the removed tree returns an error.
func TestLockAgainstRemoval(t *testing.T) {
	s := newStore(t, t.TempDir())
	tree := releases(t, s, 1)[0]
	one, err := s.Lock(tree)
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Lock(tree)
	if err != nil {
		t.Fatal(err)
	}
	one()
	if err := s.Discard(tree); !errors.Is(err, errInUse) {
		t.Errorf("discard of a used tree: %v", err)
	}
	two()
	if err := s.Discard(tree); err != nil {
		t.Error(err)
	}
	var gone *NotInstalledError
	if _, err := s.Lock(tree); !errors.As(err, &gone) {
		t.Errorf("lock of what is gone: %v", err)
	}
	wantTrees(t, s)
}

// The lock file may be removed and created again, with its tree, while a process waits for it. A lock on the old file
// would protect nothing.
func TestLockFileIsNotReplaced(t *testing.T) {
	s := newStore(t, t.TempDir())
	tree := releases(t, s, 1)[0]
	held, err := s.lockTree(tree, unix.LOCK_EX, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	type result struct {
		release func()
		err     error
	}
	got := make(chan result)
	go func() {
		release, err := s.Lock(tree)
		got <- result{release, err}
	}()
	for deadline := time.Now().Add(5 * time.Second); openCount(t, s.lockFile(tree)) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no process waits for the lock")
		}
	}
	if err := os.Remove(s.lockFile(tree)); err != nil {
		t.Fatal(err)
	}
	held.Close()
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.release()
	if err := s.Discard(tree); !errors.Is(err, errInUse) {
		t.Errorf("a tree that is locked was removed: %v", err)
	}
}

// openCount returns how many times this process has a file open.
func openCount(t *testing.T, path string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && target == path {
			n++
		}
	}
	return n
}

// A damaged disk, an accidental edit and a formerly full disk look alike: Verify must detect the damage, and Install
// must restore the tree.
func TestVerifyAndHeal(t *testing.T) {
	r, src := publish(t, golden)
	s := newStore(t, t.TempDir())
	for name, damage := range map[string]func(root string) error{
		"content": func(root string) error {
			p := filepath.Join(root, "README.md")
			return errors.Join(os.Chmod(p, 0o644), os.WriteFile(p, []byte("hellO\n"), 0o644))
		},
		"cut":         func(root string) error { return os.Truncate(filepath.Join(root, "README.md"), 0) },
		"mode":        func(root string) error { return os.Chmod(filepath.Join(root, "README.md"), 0o755) },
		"missing":     func(root string) error { return os.Remove(filepath.Join(root, "bin/run")) },
		"extra":       func(root string) error { return os.WriteFile(filepath.Join(root, "x"), nil, 0o644) },
		"extra git":   func(root string) error { return os.Mkdir(filepath.Join(root, ".git"), 0o755) },
		"pipe":        func(root string) error { return unix.Mkfifo(filepath.Join(root, "p"), 0o644) },
		"outside":     func(root string) error { return os.Symlink("/etc", filepath.Join(root, "x")) },
		"empty links": func(root string) error { return os.Remove(filepath.Join(root, "link")) },
	} {
		mustInstall(t, s, src, r)
		mustActivate(t, s, r.Tree)
		if err := damage(s.Path(r.Tree)); err != nil {
			t.Fatal(err)
		}
		var damaged *DamagedError
		if err := s.Verify(r.Tree); !errors.As(err, &damaged) || damaged.Tree != r.Tree {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Discard(r.Tree); err != nil {
			t.Fatal(err)
		}
		wantCurrent(t, s, "")
	}
	mustInstall(t, s, src, r)
	wantCurrent(t, s, r.Tree)
}

// Files of dead processes must not fill the disk. Files of live processes must not be swept.
func TestSweepKeepsFilesOfLiveProcesses(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, dir)
	for _, leftover := range []string{"trash." + goldenTree + "/x", goldenTree + ".1/a/b", "file"} {
		folder{leftover: "x"}.write(t, s.staging())
	}
	if err := os.Symlink("releases/x", filepath.Join(s.staging(), currentLink)); err != nil {
		t.Fatal(err)
	}
	alive, err := s.stage(goldenTree)
	if err != nil {
		t.Fatal(err)
	}
	newStore(t, dir)
	left, err := os.ReadDir(s.staging())
	if err != nil || len(left) != 1 || left[0].Name() != filepath.Base(alive.path) {
		t.Errorf("left: %v, %v", left, err)
	}
	alive.discard()
	wantTrees(t, s)
}

// A store with a stuck lock must return an error and not hang.
func TestLocksTimeOut(t *testing.T) {
	s := newStore(t, t.TempDir())
	held, err := os.Open(s.staging())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := flock(held, unix.LOCK_EX, 0); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(s.staging())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := flock(other, unix.LOCK_EX, 20*time.Millisecond); !errors.Is(err, errInUse) {
		t.Errorf("%v", err)
	}
}

// withPrevious returns the releases 1 to 4 of a line. The store holds 1 to 3, of which the first is kept for reuse.
func withPrevious(t *testing.T) (s *Store, src objects, previous, next Record, root string) {
	t.Helper()
	src = objects{}
	f := folder{"a": "constant", "b/c": "#!constant", "b/d": "constant too", "b/l": "-> c", "e/": "", "empty": ""}
	s = newStore(t, quick(t))
	var r Record
	for n := range 4 {
		f = maps.Clone(f)
		f["version"], f[fmt.Sprint("new", n)] = fmt.Sprint(n), fmt.Sprint("new in ", n)
		root = f.make(t)
		r = src.build(t, root, r, "1.0.0")
		if n == 0 {
			previous = r
		}
		if n < 3 {
			mustInstall(t, s, src, r)
			mustActivate(t, s, r.Tree)
		}
	}
	if removed, _, err := s.Collect(nil, 2); err != nil || len(removed) != 1 || removed[0] != previous.Tree || s.Has(previous.Tree) {
		t.Fatalf("%q, %v", removed, err)
	}
	return s, src, previous, r, root
}

func wantNoPrevious(t *testing.T, s *Store) {
	t.Helper()
	if left, err := os.ReadDir(s.previous()); err == nil && len(left) > 0 {
		t.Errorf("left for reuse: %v", left)
	}
}

// An update of one file must not create ten thousand names again.
func TestUpdateUsesPreviousTree(t *testing.T) {
	s, src, previous, next, root := withPrevious(t)
	folder, err := os.Lstat(filepath.Join(s.previous(), previous.Tree, "b"))
	if err != nil {
		t.Fatal(err)
	}
	asked := &counting{objects: src}
	mustInstall(t, s, asked, next)
	if after, err := os.Lstat(filepath.Join(s.Path(next.Tree), "b")); err != nil || !os.SameFile(folder, after) {
		t.Errorf("the previous tree was not used: %v", err)
	}
	if asked.requests != 1 {
		t.Errorf("%d requests", asked.requests)
	}
	wantPublished(t, root, s.Path(next.Tree))
	wantNoPrevious(t, s)
	if line, seq, ok := s.Position(next.Tree); line != "1.0.0" || seq != 3 || !ok {
		t.Errorf("position %s %d %v", line, seq, ok)
	}
}

// Going back to a release that was just collected needs no contents.
func TestPreviousTreeIsInstalledAgain(t *testing.T) {
	s, src, previous, _, _ := withPrevious(t)
	only := faulty{src, func(hash string) ([]byte, error) {
		for _, o := range mustOpen(t, src, previous).supply.index.packs {
			if o.Hash == hash {
				return nil, errors.New("contents were asked for")
			}
		}
		return src[hash], nil
	}}
	mustInstall(t, s, only, previous)
	wantNoPrevious(t, s)
}

// The tree kept for reuse is not protected. After any change to it, the next release must still be correct.
func TestDamagedPreviousTreeIsHarmless(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(root, manifest string) error{
		"extra file":      func(r, _ string) error { return os.WriteFile(filepath.Join(r, "x"), nil, 0o644) },
		"extra folder":    func(r, _ string) error { return os.MkdirAll(filepath.Join(r, "b/x/y"), 0o755) },
		"extra pipe":      func(r, _ string) error { return unix.Mkfifo(filepath.Join(r, "e/p"), 0o644) },
		"missing file":    func(r, _ string) error { return os.Remove(filepath.Join(r, "b/c")) },
		"missing link":    func(r, _ string) error { return os.Remove(filepath.Join(r, "b/l")) },
		"missing folder":  func(r, _ string) error { return os.Remove(filepath.Join(r, "e")) },
		"missing old one": func(r, _ string) error { return os.Remove(filepath.Join(r, "version")) },
		"written to":      func(r, _ string) error { return os.WriteFile(filepath.Join(r, "b/d"), []byte("CONSTANT too"), 0o644) },
		"touched mode":    func(r, _ string) error { return os.Chmod(filepath.Join(r, "a"), 0o666) },
		"cut":             func(r, _ string) error { return os.Truncate(filepath.Join(r, "a"), 1) },
		"link elsewhere": func(r, _ string) error {
			return errors.Join(os.Remove(filepath.Join(r, "b/l")), os.Symlink("/etc", filepath.Join(r, "b/l")))
		},
		"folder that is a link": func(r, _ string) error {
			return errors.Join(os.RemoveAll(filepath.Join(r, "b")), os.Symlink("/etc", filepath.Join(r, "b")))
		},
		"file that is a folder": func(r, _ string) error {
			return errors.Join(os.Remove(filepath.Join(r, "a")), os.MkdirAll(filepath.Join(r, "a/b"), 0o755))
		},
		"what goes is a full folder": func(r, _ string) error {
			return errors.Join(os.Remove(filepath.Join(r, "version")), os.MkdirAll(filepath.Join(r, "version/b"), 0o755))
		},
		"gone":              func(r, _ string) error { return os.RemoveAll(r) },
		"a link":            func(r, _ string) error { return errors.Join(os.RemoveAll(r), os.Symlink("/etc", r)) },
		"no manifest":       func(_, m string) error { return os.Remove(m) },
		"empty manifest":    func(_, m string) error { return os.WriteFile(m, nil, 0o600) },
		"another manifest":  func(_, m string) error { return os.WriteFile(m, []byte("{}\n"+manifestTag), 0o600) },
		"only the manifest": func(r, m string) error { return errors.Join(os.RemoveAll(r), os.Link(m, r)) },
	} {
		t.Run(name, func(t *testing.T) {
			s, src, previous, next, root := withPrevious(t)
			if err := damage(filepath.Join(s.previous(), previous.Tree), filepath.Join(s.previous(), previous.Tree+manifestSuffix)); err != nil {
				t.Fatal(err)
			}
			mustInstall(t, s, src, next)
			wantPublished(t, root, s.Path(next.Tree))
			wantNoPrevious(t, s)
			left, err := os.ReadDir(s.staging())
			if err != nil || len(left) > 0 {
				t.Errorf("left in staging: %v, %v", left, err)
			}
		})
	}
}
