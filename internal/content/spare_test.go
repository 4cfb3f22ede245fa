package content

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// withSpare returns the releases 1 to 4 of a line. The store holds 1 to 3, of which the first is kept for reuse.
func withSpare(t *testing.T) (s *Store, src objects, spare, next Record, root string) {
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
			spare = r
		}
		if n < 3 {
			mustInstall(t, s, src, r)
			mustActivate(t, s, r.Tree)
		}
	}
	if removed, _, err := s.Collect(nil, 2); err != nil || len(removed) != 1 || removed[0] != spare.Tree || s.Has(spare.Tree) {
		t.Fatalf("%q, %v", removed, err)
	}
	return s, src, spare, r, root
}

func wantNoSpare(t *testing.T, s *Store) {
	t.Helper()
	if left, err := os.ReadDir(s.spares()); err == nil && len(left) > 0 {
		t.Errorf("left as a spare: %v", left)
	}
}

// An update of one file must not create ten thousand names again.
func TestUpdateTakesTheSpare(t *testing.T) {
	s, src, spare, next, root := withSpare(t)
	folder, err := os.Lstat(filepath.Join(s.spares(), spare.Tree, "b"))
	if err != nil {
		t.Fatal(err)
	}
	asked := &counting{objects: src}
	mustInstall(t, s, asked, next)
	if after, err := os.Lstat(filepath.Join(s.Path(next.Tree), "b")); err != nil || !os.SameFile(folder, after) {
		t.Errorf("the spare was not used: %v", err)
	}
	if asked.requests != 1 {
		t.Errorf("%d requests", asked.requests)
	}
	wantPublished(t, root, s.Path(next.Tree))
	wantNoSpare(t, s)
	if line, seq, ok := s.Position(next.Tree); line != "1.0.0" || seq != 3 || !ok {
		t.Errorf("position %s %d %v", line, seq, ok)
	}
}

// Going back to a release that was just collected needs no contents.
func TestSpareComesBack(t *testing.T) {
	s, src, spare, _, _ := withSpare(t)
	only := spoiled{src, func(hash string) ([]byte, error) {
		for _, o := range mustOpen(t, src, spare).supply.index.packs {
			if o.Hash == hash {
				return nil, errors.New("contents were asked for")
			}
		}
		return src[hash], nil
	}}
	mustInstall(t, s, only, spare)
	wantNoSpare(t, s)
}

// The tree kept for reuse is not protected. After any change to it, the next release must still be correct.
func TestSpoiltSpareIsHarmless(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(root, manifest string) error{
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
			s, src, spare, next, root := withSpare(t)
			if err := spoil(filepath.Join(s.spares(), spare.Tree), filepath.Join(s.spares(), spare.Tree+manifestSuffix)); err != nil {
				t.Fatal(err)
			}
			mustInstall(t, s, src, next)
			wantPublished(t, root, s.Path(next.Tree))
			wantNoSpare(t, s)
			left, err := os.ReadDir(s.staging())
			if err != nil || len(left) > 0 {
				t.Errorf("left in staging: %v, %v", left, err)
			}
		})
	}
}
