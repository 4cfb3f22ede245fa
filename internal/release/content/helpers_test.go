package content

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// folder describes a tree: content by path. A path that ends in "/" is a folder. A content that starts with "-> " is a
// link, and one that starts with "#!" an executable.
type folder map[string]string

func (f folder) write(t testing.TB, root string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range f {
		p := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			must(os.MkdirAll(p, 0o755))
			continue
		}
		must(os.MkdirAll(filepath.Dir(p), 0o755))
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			must(os.Symlink(target, p))
			continue
		}
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		must(os.WriteFile(p, []byte(content), mode))
	}
}

func (f folder) make(t testing.TB) string {
	t.Helper()
	root := quick(t)
	f.write(t, root)
	return root
}

func mustRead(t testing.TB, root string) *Manifest {
	t.Helper()
	m, err := ReadTree(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// objects is a source in memory.
type objects map[string][]byte

func (o objects) Object(_ context.Context, hash string) ([]byte, error) {
	if b, ok := o[hash]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no such object: %w", fs.ErrNotExist)
}

// Deltas are stored under their line and position.
func (o objects) Deltas(_ context.Context, line string, from, to int64) ([][]byte, error) {
	var all [][]byte
	for seq := from; seq <= to; seq++ {
		b, ok := o[deltaKey(line, seq)]
		if !ok {
			return nil, fmt.Errorf("no delta at %d: %w", seq, fs.ErrNotExist)
		}
		all = append(all, b)
	}
	return all, nil
}

func deltaKey(line string, seq int64) string { return fmt.Sprintf("%s/%d", line, seq) }

func (o objects) add(obj Object, stored []byte) error {
	o[obj.Hash] = stored
	return nil
}

// faulty is a source that returns wrong objects.
type faulty struct {
	objects
	object func(hash string) ([]byte, error)
}

func (s faulty) Object(_ context.Context, hash string) ([]byte, error) { return s.object(hash) }

func mustBuild(t testing.TB, root string) (Record, objects) {
	t.Helper()
	src := objects{}
	return src.build(t, root, Record{}, "1.0.0"), src
}

// build adds a folder as the release after parent. The zero parent begins a line with this name.
func (o objects) build(t testing.TB, root string, parent Record, line string) Record {
	t.Helper()
	var p Parent
	if parent.Tree != "" {
		p = Parent{View: mustOpen(t, o, parent), Last: true}
	}
	r, delta, err := Build(t.Context(), root, mustRead(t, root), p, line, o.add)
	if err != nil {
		t.Fatal(err)
	}
	if delta != nil {
		o[deltaKey(r.Chain.Line, r.Chain.Seq)] = delta
	}
	return r
}

func mustOpen(t testing.TB, src Source, r Record) *View {
	t.Helper()
	v, err := OpenView(t.Context(), src, r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func publish(t testing.TB, f folder) (Record, objects) {
	t.Helper()
	return mustBuild(t, f.make(t))
}

// forge makes a record with an invalid manifest and correct hashes.
func forge(t testing.TB, m *Manifest, contents ...string) (Record, objects) {
	t.Helper()
	return forgeIndex(t, m, func(*index) {}, contents...)
}

// forgeIndex makes a record with an invalid index and correct hashes.
func forgeIndex(t testing.TB, m *Manifest, change func(*index), contents ...string) (Record, objects) {
	t.Helper()
	src := objects{}
	pack := func(parts ...string) []Object {
		p, err := newPacker(src.add)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if _, err := p.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
		}
		list, err := p.finish()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	x := index{manifest: pack(string(m.Encode())), packs: pack(contents...)}
	if n := len(distinct(m)); n > 0 {
		x.spans = []span{{0, int64(n)}}
	}
	change(&x)
	r := Record{Tree: m.Tree(), Files: m.Files(), Bytes: m.Bytes(), Chain: Chain{Line: "1.0.0"}}
	o := pack(string(x.encode()))[0]
	r.Base = Base{Tree: r.Tree, Index: o, Stored: o.Size + x.stored()}
	return r, src
}

func fileEntry(path, content string) Entry {
	return Entry{Path: path, Kind: KindFile, Size: int64(len(content)), Hash: sha256.Sum256([]byte(content))}
}

func linkEntry(path, target string) Entry {
	return Entry{Path: path, Kind: KindLink, Size: int64(len(target)), Hash: sha256.Sum256([]byte(target)), Target: target}
}

func dirEntry(path string) Entry { return Entry{Path: path, Kind: KindDirectory} }

// quick returns a folder in memory if there is enough. Tests that install hundreds of trees would otherwise wait for
// the disk. Tests with few installations use the disk.
func quick(t testing.TB) string {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || int64(st.Bavail)*st.Bsize < 2<<30 {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "pulley-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.Reserve = 0
	return s
}

func mustInstall(t testing.TB, s *Store, src Source, r Record) {
	t.Helper()
	if err := s.Install(t.Context(), src, r); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(r.Tree); err != nil {
		t.Fatal(err)
	}
}

func mustActivate(t testing.TB, s *Store, tree string) {
	t.Helper()
	if err := s.Activate(tree); err != nil {
		t.Fatal(err)
	}
	wantCurrent(t, s, tree)
}

func wantCurrent(t testing.TB, s *Store, want string) {
	t.Helper()
	if got, err := s.Current(); err != nil || got != want {
		t.Fatalf("current is %q, %v; want %q", got, err, want)
	}
}

// wantTrees checks that exactly these complete trees are visible and that no other files exist.
func wantTrees(t testing.TB, s *Store, want ...string) {
	t.Helper()
	there, err := s.installed()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tree := range there {
		got = append(got, tree.tree)
		if err := s.Verify(tree.tree); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("trees are %q, want %q", got, want)
	}
	left, err := os.ReadDir(s.staging())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left {
		t.Errorf("%s is left in staging", l.Name())
	}
}

// objects lists the objects of a release's base: its index, the pieces of its manifest, and its packs.
func (v *View) objects() []Object {
	objects := []Object{v.record.Base.Index}
	objects = append(objects, v.supply.index.manifest...)
	return append(objects, v.supply.index.packs...)
}
