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
)

// folder is a tree to be: content by path. A path that ends in "/" is a folder, a content that starts with "-> " a link
// and one that starts with "#!" an executable.
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
	root := t.TempDir()
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

func (o objects) add(obj Object, stored []byte) error {
	o[obj.Hash] = stored
	return nil
}

// sourceFunc is a source that misbehaves.
type sourceFunc func(hash string) ([]byte, error)

func (f sourceFunc) Object(_ context.Context, hash string) ([]byte, error) { return f(hash) }

func mustBuild(t testing.TB, root string) (Record, objects) {
	t.Helper()
	src := objects{}
	r, err := Build(root, mustRead(t, root), src.add)
	if err != nil {
		t.Fatal(err)
	}
	return r, src
}

func publish(t testing.TB, f folder) (Record, objects) {
	t.Helper()
	return mustBuild(t, f.make(t))
}

// forge makes a record of a manifest that no honest publisher would write, with every hash on the way right.
func forge(t testing.TB, m *Manifest, contents ...string) (Record, objects) {
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
	r := Record{Tree: m.Tree(), Files: m.Files(), Bytes: m.Bytes(), Manifest: pack(string(m.Encode())), Packs: pack(contents...)}
	for _, o := range slices.Concat(r.Manifest, r.Packs) {
		r.Stored += o.Size
	}
	return r, src
}

func fileEntry(path, content string) Entry {
	return Entry{Path: path, Kind: KindFile, Size: int64(len(content)), Hash: sha256.Sum256([]byte(content))}
}

func linkEntry(path, target string) Entry {
	return Entry{Path: path, Kind: KindLink, Size: int64(len(target)), Hash: sha256.Sum256([]byte(target)), Target: target}
}

func dirEntry(path string) Entry { return Entry{Path: path, Kind: KindDirectory} }

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

// wantTrees makes sure that exactly these trees can be seen, each whole, and that nothing else lies around.
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
