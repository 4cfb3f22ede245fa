package content

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// Puppet must find exactly the published files, readable, and protected from accidental writes.
func TestInstallWritesTheTree(t *testing.T) {
	r, src := publish(t, golden)
	defer syscall.Umask(syscall.Umask(0o077))
	s := newStore(t, filepath.Join(t.TempDir(), "state"))
	mustInstall(t, s, src, r)
	wantTrees(t, s, r.Tree)
	for path, want := range map[string]fs.FileMode{
		"":          fs.ModeDir | 0o755,
		"README.md": 0o444,
		"a-b":       0o444,
		"bin":       fs.ModeDir | 0o755,
		"bin/run":   0o555,
		"empty":     fs.ModeDir | 0o755,
		"modules/é": fs.ModeDir | 0o755,
	} {
		fi, err := os.Lstat(filepath.Join(s.Path(r.Tree), path))
		if err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v; want %s", path, fi.Mode(), err, want)
		}
	}
	if target, err := os.Readlink(filepath.Join(s.Path(r.Tree), "link")); err != nil || target != "bin/run" {
		t.Errorf("link: %q, %v", target, err)
	}
	if again := mustRead(t, s.Path(r.Tree)); again.Tree() != goldenTree {
		t.Errorf("tree hash of what was installed: %s", again.Tree())
	}
}

// A node must be able to use an installed release without a network.
func TestInstallOfInstalledTreeFetchesNothing(t *testing.T) {
	r, src := publish(t, golden)
	s := newStore(t, t.TempDir())
	mustInstall(t, s, src, r)
	nothing := &counting{objects: src}
	if err := s.Install(t.Context(), nothing, r); err != nil || nothing.requests > 0 {
		t.Errorf("%d requests, %v", nothing.requests, err)
	}
}

// The daemon and a manual run may install the same release at the same time.
func TestInstallTwiceAtOnce(t *testing.T) {
	r, src := publish(t, golden)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := OpenStore(dir)
			if err != nil {
				t.Error(err)
				return
			}
			s.Reserve = 0
			if err := s.Install(t.Context(), src, r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantTrees(t, newStore(t, dir), r.Tree)
}

// whole returns a tree with several packs, so that a fault can affect any of several objects.
func whole() folder {
	return folder{"a": noise(1, 700<<10), "b": noise(2, 700<<10), "c/d": strings.Repeat("x", 3000), "l": "-> a"}
}

// A fault must not become visible to Puppet, and no operator must need to clean up.
func TestInstallSurvivesFaults(t *testing.T) {
	old, oldSrc := publish(t, golden)
	r, src := publish(t, whole())
	s := newStore(t, t.TempDir())
	mustInstall(t, s, oldSrc, old)
	mustActivate(t, s, old.Tree)
	type fault struct {
		name string
		of   func(stored []byte) ([]byte, error)
		is   error
	}
	faults := []fault{
		{"I/O error", func([]byte) ([]byte, error) { return nil, syscall.EIO }, syscall.EIO},
		{"not there", func([]byte) ([]byte, error) { return nil, fs.ErrNotExist }, fs.ErrNotExist},
		{"empty", func([]byte) ([]byte, error) { return nil, nil }, nil},
		{"truncated", func(b []byte) ([]byte, error) { return b[:len(b)-1], nil }, nil},
		{"longer", func(b []byte) ([]byte, error) { return append(bytes.Clone(b), 0), nil }, nil},
		{"huge", func([]byte) ([]byte, error) { return make([]byte, 4*MaxStored), nil }, nil},
		{"flipped bit", func(b []byte) ([]byte, error) {
			b = bytes.Clone(b)
			b[len(b)/2] ^= 1
			return b, nil
		}, nil},
		{"another object", func([]byte) ([]byte, error) { return oldSrc[old.Base.Index.Hash], nil }, nil},
	}
	for _, f := range faults {
		for i, o := range mustOpen(t, src, r).objects() {
			bad := faulty{src, func(hash string) ([]byte, error) {
				if hash == o.Hash {
					return f.of(src[hash])
				}
				return src[hash], nil
			}}
			s.partial(nil).empty() // objects of an earlier attempt would hide the fault
			err := s.Install(t.Context(), bad, r)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot install release tree ") || f.is == nil && !strings.Contains(err.Error(), o.Hash) {
				t.Errorf("%s of object %d: %v", f.name, i, err)
			}
			if f.is != nil && !errors.Is(err, f.is) {
				t.Errorf("%s of object %d: %v hides its cause", f.name, i, err)
			}
			wantTrees(t, s, old.Tree)
			wantCurrent(t, s, old.Tree)
		}
	}
	mustInstall(t, s, src, r)
	wantTrees(t, s, old.Tree, r.Tree)
}

// A deadline or a signal must stop the installation, and nothing must remain.
func TestInstallStopsWhenCancelled(t *testing.T) {
	for _, f := range []folder{whole(), {"cancelled during the last file": noise(1, 700<<10)}} {
		installCancelled(t, f)
	}
}

func installCancelled(t *testing.T, f folder) {
	r, src := publish(t, f)
	s := newStore(t, t.TempDir())
	for n := range len(src) {
		ctx, cancel := context.WithCancel(t.Context())
		var left atomic.Int64
		left.Store(int64(n))
		stopping := faulty{src, func(hash string) ([]byte, error) {
			if left.Add(-1) == -1 {
				cancel()
			}
			return src[hash], nil
		}}
		s.partial(nil).empty()
		if err := s.Install(ctx, stopping, r); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled at fetch %d: %v", n, err)
		}
		cancel()
		wantTrees(t, s)
	}
	mustInstall(t, s, src, r)
}

// An invalid manifest must not reach a disk, signed or not.
func TestInstallRefusesWrongContent(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, filepath.Join(dir, "state"))
	refuse := func(name string, src Source, r Record) {
		t.Helper()
		err := s.Install(t.Context(), src, r)
		if err == nil {
			t.Errorf("%s: installed", name)
		}
		wantTrees(t, s)
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s: wrote outside: %v %v", name, left, err)
		}
	}
	for _, c := range forbidden() {
		if neverEncoded[c.name] || len(c.entries) > 1000 {
			continue
		}
		m := &Manifest{Entries: c.entries}
		r, src := forge(t, m, strings.Repeat("x", m.Files()))
		refuse(c.name, src, r)
	}
	m := &Manifest{Entries: []Entry{fileEntry("a", "first"), fileEntry("b", "second")}}
	for name, contents := range map[string]string{
		"other content": "firstsecone", "swapped": "secondfirst", "too little": "firstsecon", "none": "",
	} {
		r, src := forge(t, m, contents)
		refuse(name, src, r)
	}
	r, src := forge(t, m, "firstsecond")
	for name, change := range map[string]func(r *Record){
		"other tree":  func(r *Record) { r.Tree, r.Base.Tree = goldenTree, goldenTree },
		"other files": func(r *Record) { r.Files++ },
		"other bytes": func(r *Record) { r.Bytes++ },
		"other size":  func(r *Record) { r.Base.Index.Size--; r.Base.Stored-- },
		"other sum":   func(r *Record) { r.Base.Stored++ },
		"a base of another tree": func(r *Record) { // no way leads from there to the release
			d := Object{r.Base.Index.Hash, 1, 1}
			r.Chain = Chain{Line: r.Chain.Line, Seq: 1, Delta: &d, Stored: 1, Weight: 1}
		},
	} {
		bad := r
		change(&bad)
		refuse(name, src, bad)
	}
	sizes := &Manifest{Entries: []Entry{fileEntry("a", "same"), fileEntry("b", "same")}}
	sizes.Entries[1].Size = 3
	bad, badSrc := forge(t, sizes, "same")
	refuse("one hash, two sizes", badSrc, bad)
	mustInstall(t, s, src, r)
}

// An operator reads one small file of a release. This must not download the release or trust its store.
func TestReadFiles(t *testing.T) {
	r, src := publish(t, folder{
		"a":                       noise(1, 1<<20),
		"hiera.yaml":              "version: 5\n",
		"hieradata/common.yaml":   "a: 1\n",
		"hieradata/link.yaml":     "-> common.yaml",
		"hieradata/dangling.yaml": "-> none.yaml",
		"hieradata/folder.yaml":   "-> ../hieradata",
		"hieradata/empty.yaml":    "",
		"z":                       noise(2, 1<<20),
	})
	asked := &counting{objects: src}
	got, err := ReadFiles(t.Context(), asked, r, func(p string) bool { return strings.HasSuffix(p, ".yaml") })
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"hiera.yaml": "version: 5\n", "hieradata/common.yaml": "a: 1\n", "hieradata/link.yaml": "a: 1\n", "hieradata/empty.yaml": "",
	}
	text := map[string]string{}
	for p, b := range got {
		text[p] = string(b)
	}
	if !maps.Equal(text, want) {
		t.Errorf("got %q, want %q", text, want)
	}
	if asked.requests != 3 {
		t.Errorf("fetched %d objects; the index, the manifest and one pack would do", asked.requests)
	}
	if got, err := ReadFiles(t.Context(), src, r, func(p string) bool { return p == "z" }); err != nil || string(got["z"]) != noise(2, 1<<20) {
		t.Errorf("a file over several packs: %d bytes, %v", len(got["z"]), err)
	}

	m := &Manifest{Entries: []Entry{fileEntry("a", "first"), fileEntry("b", "second")}}
	lie, lieSrc := forge(t, m, "firstsecone")
	if got, err := ReadFiles(t.Context(), lieSrc, lie, func(p string) bool { return p == "b" }); err == nil {
		t.Errorf("believed %q", got)
	}
	if _, err := ReadFiles(t.Context(), objects{}, r, func(string) bool { return true }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing object: %v", err)
	}
}

// A nearly full disk must stop the installation before it uses the reserve of the machine.
func TestPlanFits(t *testing.T) {
	p := need{bytes: 1000, inodes: 10}
	for name, c := range map[string]struct {
		room    room
		reserve int64
		fits    bool
	}{
		"plenty":              {room{freeBytes: 5000, totalBytes: 10000, freeInodes: 100, totalInodes: 100}, 0, true},
		"just":                {room{freeBytes: 2000, totalBytes: 10000, freeInodes: 13, totalInodes: 100}, 1000, true},
		"reserve":             {room{freeBytes: 1999, totalBytes: 10000, freeInodes: 100, totalInodes: 100}, 1000, false},
		"three per cent":      {room{freeBytes: 3999, totalBytes: 100000, freeInodes: 100, totalInodes: 100}, 0, false},
		"inodes":              {room{freeBytes: 5000, totalBytes: 10000, freeInodes: 12, totalInodes: 100}, 0, false},
		"inodes not counted":  {room{freeBytes: 5000, totalBytes: 10000}, 0, true},
		"already beyond full": {room{freeBytes: 0, totalBytes: 10000, totalInodes: 100}, 1000, false},
	} {
		err := p.fits(c.room, "/d", c.reserve)
		if (err == nil) != c.fits {
			t.Errorf("%s: %v", name, err)
		}
		var short *noSpaceError
		if err != nil && (!errors.As(err, &short) || !errors.Is(err, syscall.ENOSPC) || short.NeedBytes != 1000) {
			t.Errorf("%s: %#v", name, err)
		}
	}
	r, src := publish(t, golden)
	s := newStore(t, t.TempDir())
	s.Reserve = 1 << 60
	var short *noSpaceError
	if err := s.Install(t.Context(), src, r); !errors.As(err, &short) || short.FreeBytes == 0 || short.NeedInodes != 11 {
		t.Errorf("%v", err)
	}
	wantTrees(t, s)
}

// Kernels before 5.8 hide failed writes from syncfs. Relying on them would show a tree that is not on the disk.
func TestFlush(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.44-fc": true, "5.8.0": true, "5.10.0-28-amd64": true, "5.7.19": false, "4.18.0-553.el8": false, "": false, "x.y": false, "5": false,
	} {
		if got := atLeast58(release); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
	f := folder{}
	for i := range fewEntries + 1 {
		f[fmt.Sprint(i)] = fmt.Sprint(i)
	}
	r, src := publish(t, f)
	mustInstall(t, newStore(t, t.TempDir()), src, r)
}

// many returns a tree of several packs and no small files.
func manyPacks() folder {
	f := folder{}
	for i := range 6 {
		f[fmt.Sprintf("dense%d", i)] = noise(uint64(i), 300<<10)
	}
	return f
}

// On a bad link with repeated interruptions, a node must finish and not fetch the same bytes again.
func TestInstallResumesAfterInterrupt(t *testing.T) {
	root := manyPacks().make(t)
	r, src := mustBuild(t, root)
	all := len(mustOpen(t, src, r).objects())
	if all < 6 {
		t.Fatalf("only %d objects", all)
	}
	for k := range all {
		s := newStore(t, quick(t))
		var left atomic.Int64
		left.Store(int64(k))
		failing := faulty{src, func(hash string) ([]byte, error) {
			if left.Add(-1) < 0 {
				return nil, syscall.ECONNRESET
			}
			return src[hash], nil
		}}
		if err := s.Install(t.Context(), failing, r); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("cut off after %d objects: %v", k, err)
		}
		wantTrees(t, s)
		s = newStore(t, s.dir) // another process resumes
		asked := &counting{objects: src}
		mustInstall(t, s, asked, r)
		wantPublished(t, root, s.Path(r.Tree))
		if asked.requests != all-k {
			t.Errorf("after %d of %d objects it asked for %d", k, all, asked.requests)
		}
		wantEmptySpool(t, s)
	}
}

// One object per attempt is enough: each attempt shortens the next one.
func TestInstallOneObjectATime(t *testing.T) {
	root := manyPacks().make(t)
	r, src := mustBuild(t, root)
	s := newStore(t, quick(t))
	tries := 0
	for ; ; tries++ {
		var asked atomic.Int64
		err := s.Install(t.Context(), faulty{src, func(hash string) ([]byte, error) {
			if asked.Add(1) > 1 {
				return nil, syscall.ECONNRESET
			}
			return src[hash], nil
		}}, r)
		if err == nil {
			break
		}
		if tries > len(src) {
			t.Fatalf("no end after %d tries: %v", tries, err)
		}
	}
	wantTrees(t, s, r.Tree)
	wantPublished(t, root, s.Path(r.Tree))
	wantEmptySpool(t, s)
}

func wantEmptySpool(t *testing.T, s *Store) {
	t.Helper()
	if left, err := os.ReadDir(filepath.Join(s.dir, partialDir)); len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%d objects are left in the spool, %v", len(left), err)
	}
}

// Files from a power cut or an attacker in the spool must not be trusted and must not block an installation.
func TestSpoolIsNotTrusted(t *testing.T) {
	root := manyPacks().make(t)
	r, src := mustBuild(t, root)
	objects := mustOpen(t, src, r).objects()
	for name, damage := range map[string]func(path string, good []byte) error{
		"empty":      func(p string, _ []byte) error { return os.WriteFile(p, nil, 0o600) },
		"zeros":      func(p string, b []byte) error { return os.WriteFile(p, make([]byte, len(b)), 0o600) },
		"truncated":  func(p string, b []byte) error { return os.WriteFile(p, b[:len(b)-1], 0o600) },
		"longer":     func(p string, b []byte) error { return os.WriteFile(p, append(bytes.Clone(b), 0), 0o600) },
		"huge":       func(p string, _ []byte) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 1<<40)) },
		"a folder":   func(p string, _ []byte) error { return os.Mkdir(p, 0o700) },
		"a pipe":     func(p string, _ []byte) error { return syscall.Mkfifo(p, 0o600) },
		"a link":     func(p string, _ []byte) error { return os.Symlink("/dev/zero", p) },
		"unfinished": func(p string, b []byte) error { return os.WriteFile(p+".new", b[:len(b)/2], 0o600) },
	} {
		s := newStore(t, quick(t))
		dir := filepath.Join(s.dir, partialDir)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if err := damage(filepath.Join(dir, o.Hash), src[o.Hash]); err != nil {
				t.Fatal(err)
			}
		}
		asked := &counting{objects: src}
		mustInstall(t, s, asked, r)
		if asked.requests != len(objects) {
			t.Errorf("%s: %d of %d objects were fetched", name, asked.requests, len(objects))
		}
		wantPublished(t, root, s.Path(r.Tree))
		wantEmptySpool(t, s)
	}
	s := newStore(t, quick(t))
	if err := os.WriteFile(filepath.Join(s.dir, partialDir), nil, 0o600); err != nil { // the spool is not writable
		t.Fatal(err)
	}
	mustInstall(t, s, src, r)
}
