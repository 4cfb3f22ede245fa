package content

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// counting is a source that counts requests.
type counting struct {
	objects
	mu              sync.Mutex
	requests, bytes int
}

func (c *counting) count(got ...[]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	for _, b := range got {
		c.bytes += len(b)
	}
}

func (c *counting) Object(ctx context.Context, hash string) ([]byte, error) {
	b, err := c.objects.Object(ctx, hash)
	c.count(b)
	return b, err
}

func (c *counting) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	all, err := c.objects.Deltas(ctx, line, from, to)
	c.count(all...)
	return all, err
}

// text returns n bytes that compress like code.
func text(r *rand.Rand, n int) string {
	words := []string{"class", "file", "ensure", "=>", "present", "service", "package", "{", "}", "notify", "template", "hiera"}
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%s %d ", words[r.IntN(len(words))], r.IntN(1000))
	}
	return b.String()[:n]
}

// modules returns a tree of many files.
func modules(r *rand.Rand, files int) folder {
	f := folder{"empty/": "", "link": "-> modules/m0"}
	for i := range files {
		f[fmt.Sprintf("modules/m%d/manifests/f%d.pp", i%20, i)] = text(r, 200+r.IntN(3000))
	}
	f["modules/m0/files/run"] = "#!/bin/sh\nexit 0\n"
	return f
}

// A fleet that follows a control repository fetches only the changes. Every way must end in the right tree.
func TestInstallAlongALine(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	src := objects{}
	f := modules(random, 600)
	var line []Record
	roots := []string{}
	for n := range 30 {
		if n > 0 {
			f = maps.Clone(f)
			name := fmt.Sprintf("modules/m%d/manifests/f%d.pp", n%20, n)
			f[name] = strings.Replace(f[name], "class", fmt.Sprintf("define%d", n), 1)
			if n%7 == 0 {
				delete(f, fmt.Sprintf("modules/m%d/manifests/f%d.pp", (n+1)%20, n+1))
				f[fmt.Sprintf("modules/new%d/manifests/init.pp", n)] = text(random, 500)
			}
		}
		var parent Record
		if n > 0 {
			parent = line[n-1]
		}
		root := f.make(t)
		roots = append(roots, root)
		line = append(line, src.build(t, root, parent, "1.0.0"))
	}
	last := line[len(line)-1]
	if last.Chain.Seq != 29 || last.Base.Seq != 0 {
		t.Fatalf("%+v", last)
	}
	cold := line[0].Base.Stored

	t.Run("one by one", func(t *testing.T) {
		s := newStore(t, quick(t))
		for n, r := range line {
			c := &counting{objects: src}
			mustInstall(t, s, c, r)
			mustActivate(t, s, r.Tree)
			sameTree(t, roots[n], s.Path(r.Tree))
			if n > 0 && (c.requests != 1 || c.bytes > 3000) {
				t.Errorf("release %d took %d requests and %d bytes", n, c.requests, c.bytes)
			}
			if _, _, err := s.Collect(nil, 3); err != nil {
				t.Fatal(err)
			}
		}
		if there, _ := s.installed(); len(there) != 3 {
			t.Errorf("%d trees are there", len(there))
		}
	})
	t.Run("far behind", func(t *testing.T) {
		s := newStore(t, quick(t))
		mustInstall(t, s, src, line[1])
		c := &counting{objects: src}
		mustInstall(t, s, c, last)
		sameTree(t, roots[29], s.Path(last.Tree))
		if c.requests != 1 || int64(c.bytes) > cold/10 {
			t.Errorf("%d requests, %d bytes of %d", c.requests, c.bytes, cold)
		}
	})
	t.Run("from nothing", func(t *testing.T) {
		s := newStore(t, quick(t))
		mustInstall(t, s, src, last)
		sameTree(t, roots[29], s.Path(last.Tree))
	})
	t.Run("back", func(t *testing.T) {
		s := newStore(t, quick(t))
		mustInstall(t, s, src, last)
		c := &counting{objects: src}
		mustInstall(t, s, c, line[15])
		sameTree(t, roots[15], s.Path(line[15].Tree))
		t.Logf("back: %d requests, %d bytes of %d", c.requests, c.bytes, cold)
	})
	t.Run("delta missing", func(t *testing.T) {
		s := newStore(t, quick(t))
		mustInstall(t, s, src, line[28])
		broken := maps.Clone(src)
		broken[deltaKey("1.0.0", 29)] = append([]byte("x"), broken[deltaKey("1.0.0", 29)]...)
		if err := s.Install(t.Context(), broken, last); err == nil {
			t.Error("installed from a broken delta")
		}
		f := maps.Clone(f)
		f["more"] = text(random, 100_000)
		root := f.make(t)
		p, err := OpenView(t.Context(), src, last)
		if err != nil {
			t.Fatal(err)
		}
		r, delta, err := Build(t.Context(), root, mustRead(t, root), Parent{View: p}, "2.0.0", src.add)
		if err != nil || delta != nil || r.Chain.Seq != 0 {
			t.Fatalf("%+v %v", r, err)
		}
		c := &counting{objects: src}
		mustInstall(t, s, c, r)
		sameTree(t, root, s.Path(r.Tree))
		t.Logf("another line: %d requests, %d bytes of %d", c.requests, c.bytes, r.Base.Stored)
	})
}

// sameTree compares two folders by reading both. Of the modes it compares only the executable bit.
func sameTree(t testing.TB, want, got string) {
	t.Helper()
	if a, b := mustRead(t, want), mustRead(t, got); a.Tree() != b.Tree() {
		for _, d := range Diff(a, b) {
			t.Errorf("%s differs", d.Path)
		}
	}
}

// A change to a file under an installed tree is found and repaired, even if trees share the file.
func TestSharedFileDamaged(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	src := objects{}
	f := modules(random, 100)
	one := src.build(t, f.make(t), Record{}, "1.0.0")
	f = maps.Clone(f)
	f["modules/m1/manifests/f1.pp"] = "class m1 {}"
	root := f.make(t)
	two := src.build(t, root, one, "1.0.1")
	s := newStore(t, quick(t))
	mustInstall(t, s, src, one)
	p := filepath.Join(s.Path(one.Tree), "modules/m2/manifests/f2.pp")
	if err := os.Chmod(p, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte("spoiled"), 0o644); err != nil {
		t.Fatal(err)
	}
	mustInstall(t, s, src, two)
	sameTree(t, root, s.Path(two.Tree))
	if err := s.Verify(one.Tree); err == nil {
		t.Error("the damage went unnoticed")
	}
}
