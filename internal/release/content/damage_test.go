package content

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rot changes one byte of a file like a failing disk: the metadata does not change.
func rot(t *testing.T, path string) {
	t.Helper()
	before, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("?"), 0)
	if err = errors.Join(err, f.Close(), os.Chtimes(path, before.ModTime(), before.ModTime())); err != nil {
		t.Fatal(err)
	}
	after, err := os.Lstat(path)
	if err != nil || after.ModTime() != before.ModTime() || after.Size() != before.Size() || after.Mode() != before.Mode() {
		t.Fatalf("%v, %v", after, err)
	}
}

// tomorrow makes the daily check due.
func tomorrow(s *Store) {
	now := s.Now
	s.Now = func() time.Time { return now().Add(checkInterval + time.Second) }
}

func wantDamaged(t *testing.T, s *Store, tree, path string) {
	t.Helper()
	var damaged *DamagedError
	if err := s.Verify(tree); !errors.As(err, &damaged) || damaged.Tree != tree || !strings.Contains(err.Error(), path) {
		t.Errorf("%v; want damage of %q", err, path)
	}
}

// sharing installs two releases that share most files, and returns their source folders.
func sharing(t *testing.T) (s *Store, src objects, one, two Record, roots map[string]string) {
	t.Helper()
	src = objects{}
	f := folder{"a": "first", "b": "#!second", "d/c": "third", "d/l": "-> c", "e/": ""}
	first := f.make(t)
	one = src.build(t, first, Record{}, "1.0.0")
	f = maps.Clone(f)
	f["a"] = "changed"
	second := f.make(t)
	two = src.build(t, second, one, "")
	s = newStore(t, quick(t))
	mustInstall(t, s, src, one)
	mustInstall(t, s, src, two)
	mustActivate(t, s, two.Tree)
	return s, src, one, two, map[string]string{one.Tree: first, two.Tree: second}
}

// A silent disk failure must not change a node's state for longer than a day. Damage in one release must not return
// through another release that shares the file.
func TestBitRotIsFoundAndHealed(t *testing.T) {
	s, src, one, two, roots := sharing(t)
	rotten := filepath.Join(s.Path(one.Tree), "d/c")
	shared, err := os.Lstat(rotten)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := os.Lstat(filepath.Join(s.Path(two.Tree), "d/c")); err != nil || !os.SameFile(shared, other) {
		t.Fatalf("the trees share nothing: %v", err)
	}
	rot(t, rotten)
	if err := s.Verify(two.Tree); err != nil {
		t.Errorf("files are not read within a day, so that a tick costs next to nothing: %v", err)
	}
	tomorrow(s)
	wantDamaged(t, s, two.Tree, `"d/c"`)
	if err := s.Discard(two.Tree); err != nil {
		t.Fatal(err)
	}
	now := s.Now
	s = newStore(t, s.dir) // etcd may be unavailable until another process, which saw no damage, tries again
	s.Now = now
	asked := &counting{objects: src}
	mustInstall(t, s, asked, two)
	if asked.requests == 0 {
		t.Error("healed from nothing")
	}
	wantCurrent(t, s, two.Tree)
	wantPublished(t, roots[two.Tree], s.Path(two.Tree))

	wantDamaged(t, s, one.Tree, `"d/c"`)
	if err := s.Discard(one.Tree); err != nil {
		t.Fatal(err)
	}
	mustInstall(t, s, src, one)
	wantPublished(t, roots[one.Tree], s.Path(one.Tree))
	tomorrow(s)
	wantTrees(t, s, one.Tree, two.Tree)
}

// A new release reuses files of an old one. It must not count as checked if the check of the old one is overdue.
func TestSharedFilesKeepTimeOfCheck(t *testing.T) {
	s, src, one, two, _ := sharing(t)
	if _, err := s.remove(two.Tree, removal{evenCurrent: true}); err != nil {
		t.Fatal(err)
	}
	rot(t, filepath.Join(s.Path(one.Tree), "d/c"))
	tomorrow(s)
	if err := s.Install(t.Context(), src, two); err != nil {
		t.Fatal(err)
	}
	wantDamaged(t, s, two.Tree, `"d/c"`)
}

// The previous tree kept for reuse may be damaged too.
func TestDamagedPreviousTreeIsNotUsed(t *testing.T) {
	s, src, one, two, roots := sharing(t)
	rot(t, filepath.Join(s.Path(one.Tree), "d/c"))
	if _, err := s.remove(one.Tree, removal{reuse: true}); err != nil {
		t.Fatal(err)
	}
	tomorrow(s)
	wantDamaged(t, s, two.Tree, `"d/c"`)
	if err := s.Discard(two.Tree); err != nil {
		t.Fatal(err)
	}
	mustInstall(t, s, src, two)
	wantPublished(t, roots[two.Tree], s.Path(two.Tree))
}

// Backup programs, a careless chmod and an editor that saves the same content leave a tree correct. The node must not
// fetch it again, nor read all of it on every run.
func TestTouchedFilesAreNoDamage(t *testing.T) {
	for name, touch := range map[string]func(p string) error{
		"time":   func(p string) error { return os.Chtimes(p, time.Now(), time.Now()) },
		"mode":   func(p string) error { return os.Chmod(p, 0o640) },
		"setuid": func(p string) error { return os.Chmod(p, 0o444|os.ModeSetuid) },
		"saved": func(p string) error {
			return errors.Join(os.Remove(p), os.WriteFile(p, []byte("third"), 0o644))
		},
	} {
		s, _, _, two, roots := sharing(t)
		p := filepath.Join(s.Path(two.Tree), "d/c")
		if err := touch(p); err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(two.Tree); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantPublished(t, roots[two.Tree], s.Path(two.Tree))
		k := mustLoad(t, s, two.Tree)
		if flaws, err := survey(s.Path(two.Tree), k.manifest, nil); err != nil || len(flaws) > 0 {
			t.Errorf("%s: it still looks otherwise: %v, %v", name, flaws, err)
		}
	}
}

func mustLoad(t *testing.T, s *Store, tree string) *known {
	t.Helper()
	k, err := s.look(tree)
	if err == nil {
		err = k.load(s.manifestFile(tree))
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Puppet must never run with a changed tree unnoticed.
func TestDamageIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path   string
		damage func(root string) error
	}{
		"extra file":     {"x", func(r string) error { return os.WriteFile(filepath.Join(r, "x"), nil, 0o644) }},
		"extra folder":   {"d/x", func(r string) error { return os.Mkdir(filepath.Join(r, "d/x"), 0o755) }},
		"missing file":   {"d/c", func(r string) error { return os.Remove(filepath.Join(r, "d/c")) }},
		"missing folder": {"e", func(r string) error { return os.Remove(filepath.Join(r, "e")) }},
		"missing link":   {"d/l", func(r string) error { return os.Remove(filepath.Join(r, "d/l")) }},
		"changed mode":   {"d/c", func(r string) error { return os.Chmod(filepath.Join(r, "d/c"), 0o755) }},
		"changed link": {"d/l", func(r string) error {
			p := filepath.Join(r, "d/l")
			return errors.Join(os.Remove(p), os.Symlink("x", p))
		}},
		"link that is a longer one": {"d/l", func(r string) error {
			p := filepath.Join(r, "d/l")
			return errors.Join(os.Remove(p), os.Symlink("cc", p))
		}},
		"folder that is a link": {"d", func(r string) error {
			p := filepath.Join(r, "d")
			return errors.Join(os.Rename(p, r+".moved"), os.Symlink(r+".moved", p))
		}},
		"folder that is a file": {"e", func(r string) error {
			p := filepath.Join(r, "e")
			return errors.Join(os.Remove(p), os.WriteFile(p, nil, 0o444))
		}},
		"file that is a folder": {"a", func(r string) error {
			p := filepath.Join(r, "a")
			return errors.Join(os.Remove(p), os.Mkdir(p, 0o755))
		}},
		"file that is a link": {"a", func(r string) error {
			p := filepath.Join(r, "a")
			return errors.Join(os.Remove(p), os.Symlink("d/c", p))
		}},
		"longer file":  {"a", func(r string) error { return os.WriteFile(filepath.Join(r, "a"), []byte("changed!"), 0o444) }},
		"shorter file": {"a", func(r string) error { return os.Truncate(filepath.Join(r, "a"), 3) }},
		"rewritten":    {"a", func(r string) error { return os.WriteFile(filepath.Join(r, "a"), []byte("CHANGED"), 0o444) }},
	} {
		t.Run(name, func(t *testing.T) {
			s, src, one, two, roots := sharing(t)
			if err := c.damage(s.Path(two.Tree)); err != nil {
				t.Fatal(err)
			}
			wantDamaged(t, s, two.Tree, `"`+c.path+`"`)
			if err := s.Discard(two.Tree); err != nil {
				t.Fatal(err)
			}
			mustInstall(t, s, src, two)
			wantPublished(t, roots[two.Tree], s.Path(two.Tree))
			_ = os.RemoveAll(s.Path(two.Tree) + ".moved")
			if name == "changed mode" { // of a shared file
				wantDamaged(t, s, one.Tree, c.path)
				return
			}
			wantPublished(t, roots[one.Tree], s.Path(one.Tree))
		})
	}
}

// The manifest file only caches the result of a check. Without it, the complete tree is read.
func TestManifestBesideATreeIsNotTrusted(t *testing.T) {
	for name, damage := range map[string]func(file, other string) error{
		"missing":        func(file, _ string) error { return os.Remove(file) },
		"empty":          func(file, _ string) error { return os.WriteFile(file, nil, 0o600) },
		"garbage":        func(file, _ string) error { return os.WriteFile(file, bytes.Repeat([]byte("x"), 100_000), 0o600) },
		"only a record":  func(file, _ string) error { return os.WriteFile(file, []byte("{}\n"), 0o600) },
		"cut":            func(file, _ string) error { return os.Truncate(file, 900) },
		"of another one": func(file, other string) error { return errors.Join(os.Remove(file), os.Link(other, file)) },
	} {
		t.Run(name, func(t *testing.T) {
			s, src, one, two, roots := sharing(t)
			file := s.manifestFile(two.Tree)
			if err := damage(file, s.manifestFile(one.Tree)); err != nil {
				t.Fatal(err)
			}
			if _, _, ok := s.Position(two.Tree); ok && name != "of another one" && name != "cut" {
				t.Error("it has a position")
			}
			if err := s.Verify(two.Tree); err != nil {
				t.Errorf("a right tree: %v", err)
			}
			if k := mustLoad(t, s, two.Tree); k.manifest.Tree() != two.Tree {
				t.Error("the manifest was not made anew")
			}

			if err := damage(file, s.manifestFile(one.Tree)); err != nil {
				t.Fatal(err)
			}
			rot(t, filepath.Join(s.Path(two.Tree), "a")) // the times do not show it, so only reading finds it
			var damaged *DamagedError
			if err := s.Verify(two.Tree); !errors.As(err, &damaged) {
				t.Errorf("a rotten tree: %v", err)
			}
			if err := s.Discard(two.Tree); err != nil {
				t.Fatal(err)
			}
			mustInstall(t, s, src, two)
			wantPublished(t, roots[two.Tree], s.Path(two.Tree))
			wantPublished(t, roots[one.Tree], s.Path(one.Tree))
		})
	}
}

// A file of a dead process that can't be removed must not block all later releases.
func TestUnremovableLeftoversDoNotStopInstall(t *testing.T) {
	dir := onSmallDisk(t, "size=64m")
	if dir == "" {
		return
	}
	s := newStore(t, dir)
	stuck := filepath.Join(s.staging(), "trash.stuck", "mount")
	if err := os.MkdirAll(stuck, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", stuck, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(stuck, unix.MNT_DETACH) })
	r, src := publish(t, golden)
	mustInstall(t, s, src, r)
	if _, _, err := s.Collect(nil, 3); !errors.Is(err, unix.EBUSY) {
		t.Errorf("the error does not report it: %v", err)
	}
}

// The owner of a release's file, or a user who may write to its folder, decides what root applies.
func TestOwnersAndModesOfFoldersAreChecked(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	src := objects{}
	r := src.build(t, modules(random, 40).make(t), Record{}, "1.0.0")
	damages := map[string]func(string) error{
		"folder writable by all": func(p string) error { return os.Chmod(filepath.Dir(p), 0o777) },
	}
	if os.Geteuid() == 0 { // only root can change the owner of files
		damages["folder of another"] = func(p string) error { return os.Chown(filepath.Dir(p), 65534, -1) }
		damages["file of another"] = func(p string) error { return os.Chown(p, 65534, -1) }
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, t.TempDir())
			mustInstall(t, s, src, r)
			p := filepath.Join(s.Path(r.Tree), "modules/m1/manifests/f1.pp")
			if err := damage(p); err != nil {
				t.Fatal(err)
			}
			k := mustLoad(t, s, r.Tree)
			if flaws, err := survey(s.Path(r.Tree), k.manifest, nil); err != nil || len(flaws) != 1 {
				t.Errorf("%v, %v", flaws, err)
			}
			if err := s.Verify(r.Tree); err != nil {
				t.Error(err)
			}
			if flaws, err := survey(s.Path(r.Tree), k.manifest, nil); err != nil || len(flaws) != 0 {
				t.Errorf("after Verify: %v, %v", flaws, err)
			}
		})
	}
}

// spendthrift returns deltas that are larger than recorded.
type spendthrift struct {
	objects
	asked int64
}

func (s *spendthrift) Deltas(_ context.Context, _ string, from, to int64) ([][]byte, error) {
	var all [][]byte
	for range to - from + 1 {
		s.asked++
		all = append(all, make([]byte, MaxStored))
	}
	return all, nil
}

// Oversized deltas from etcd or a mirror must not fill a node's memory before they are checked.
func TestDeltasAreBoundedByTheirRecords(t *testing.T) {
	src := &spendthrift{}
	from := Chain{Line: "1.0.0", Seq: 10, Stored: 0}
	to := Chain{Line: "1.0.0", Seq: 310, Stored: 6 << 20}
	if _, err := fetchDeltas(t.Context(), src, to, from); err == nil {
		t.Error("more bytes than the records state were accepted")
	}
	if src.asked > 50 {
		t.Errorf("%d deltas of %d bytes were taken", src.asked, MaxStored)
	}
}
