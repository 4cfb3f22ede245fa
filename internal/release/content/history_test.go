package content

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// thing is one name in a tree that changes from release to release.
type thing struct {
	kind    Kind
	content string // or target
}

// changing is a tree that changes from release to release.
type changing map[string]thing

// write creates the folder. A link through another link gets the target "nowhere", which does not exist.
func (c changing) write(t testing.TB, root string) {
	t.Helper()
	for _, p := range slices.Sorted(maps.Keys(c)) {
		at, e := filepath.Join(root, p), c[p]
		var err error
		switch e.kind {
		case KindDirectory:
			err = os.MkdirAll(at, 0o755)
		case KindLink:
			target := e.content
			for q := path.Join(path.Dir(p), target); q != "."; q = path.Dir(q) {
				if c[q].kind == KindLink {
					target = "nowhere"
				}
			}
			err = os.Symlink(target, at)
		case KindExecutable:
			err = os.WriteFile(at, []byte(e.content), 0o755)
		default:
			err = os.WriteFile(at, []byte(e.content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// some returns a random path of this tree with one of these kinds, or "".
func (c changing) some(t *rapid.T, what string, kinds string) string {
	var paths []string
	for p, e := range c {
		if strings.ContainsRune(kinds, rune(e.kind)) {
			paths = append(paths, p)
		}
	}
	if len(paths) == 0 {
		return ""
	}
	slices.Sort(paths)
	return rapid.SampledFrom(paths).Draw(t, what)
}

func (c changing) remove(p string) {
	for q := range c {
		if q == p || strings.HasPrefix(q, p+"/") {
			delete(c, q)
		}
	}
}

var anyName = rapid.SampledFrom([]string{"a", "b", "a-b", "a.b", "a0", "é", "x y", "~", "-", "..x"})

// free returns a random unused path.
func (c changing) free(t *rapid.T) string {
	p := path.Join(c.some(t, "in", "d"), anyName.Draw(t, "name"))
	if _, taken := c[p]; taken || strings.Count(p, "/") > 5 {
		return ""
	}
	return p
}

func anyThing(t *rapid.T, at string) thing {
	up := strings.Repeat("../", strings.Count(at, "/"))
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1:
		return thing{kind: KindDirectory}
	case 2:
		return thing{KindLink, up + rapid.SampledFrom([]string{"nowhere", "a", "a/b", "x y/é", "b"}).Draw(t, "target")}
	case 3:
		return thing{KindExecutable, rapid.SampledFrom([]string{"", "same", "other"}).Draw(t, "content")}
	case 4:
		n := rapid.SampledFrom([]int{1000, 70_000, 600_000, 1<<20 + 10}).Draw(t, "size")
		return thing{KindFile, noise(rapid.Uint64Range(0, 5).Draw(t, "seed"), n)}
	case 5:
		return thing{KindFile, strings.Repeat(rapid.StringMatching(`[a-z ]{3,20}`).Draw(t, "line"), rapid.IntRange(1, 3000).Draw(t, "lines"))}
	}
	return thing{KindFile, rapid.SampledFrom([]string{"", "same", "other", "#!x", "more of the same"}).Draw(t, "content")}
}

// edit makes one typical change.
func (c changing) edit(t *rapid.T) {
	p := c.some(t, "what", "fxld")
	switch how := rapid.SampledFrom([]string{"add", "remove", "move", "mode", "kind", "edit", "copy"}).Draw(t, "how"); {
	case how == "add" || p == "":
		if p := c.free(t); p != "" {
			c[p] = anyThing(t, p)
		}
	case how == "remove":
		c.remove(p)
	case how == "move":
		to := c.free(t)
		if to == "" || strings.HasPrefix(to, p+"/") {
			return
		}
		moved := changing{}
		for q, e := range c {
			if q == p || strings.HasPrefix(q, p+"/") {
				if e.kind == KindLink {
					e.content = "nowhere" // it has another path now
				}
				moved[to+strings.TrimPrefix(q, p)] = e
			}
		}
		c.remove(p)
		maps.Copy(c, moved)
	case how == "kind":
		c.remove(p)
		c[p] = anyThing(t, p)
	case c[p].kind == KindFile || c[p].kind == KindExecutable:
		e := c[p]
		switch how {
		case "mode":
			e.kind = KindFile + KindExecutable - e.kind
			c[p] = e
		case "edit":
			e.content += "and more\n"
			c[p] = e
		case "copy":
			if to := c.free(t); to != "" {
				e.kind = rapid.SampledFrom([]Kind{KindFile, KindExecutable}).Draw(t, "mode")
				c[to] = e
			}
		}
	}
}

// For any published releases and any order of installation, the files on disk must equal the published files.
func TestAnyHistory(t *testing.T) {
	t.Parallel()
	base := quick(t)
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		src, roots := objects{}, map[string]string{}
		var line []Record
		tree := changing{}
		for n := range rapid.IntRange(2, 7).Draw(rt, "releases") {
			for range rapid.IntRange(0, 6).Draw(rt, "edits") {
				tree.edit(rt)
			}
			root := filepath.Join(dir, fmt.Sprint("release", n))
			if err := os.Mkdir(root, 0o755); err != nil {
				rt.Fatal(err)
			}
			tree.write(t, root)
			var p Parent
			if n > 0 {
				at := len(line) - 1
				if rapid.IntRange(0, 4).Draw(rt, "branch") == 0 {
					at = rapid.IntRange(0, at).Draw(rt, "from")
				}
				p = Parent{View: mustOpen(t, src, line[at]), Last: at == len(line)-1}
			}
			r, delta, err := Build(rt.Context(), root, mustRead(t, root), p, fmt.Sprint("1.", n), src.add)
			if err != nil {
				rt.Fatal(err)
			}
			if delta != nil {
				src[deltaKey(r.Chain.Line, r.Chain.Seq)] = delta
			}
			if err := Audit(rt.Context(), src, r); err != nil {
				rt.Fatal(err)
			}
			line, roots[r.Tree] = append(line, r), root
		}
		follow(t, rt, newStore(t, filepath.Join(dir, "state")), src, line, roots)
	})
}

// follow moves a node between releases in random order and checks everything after each step.
func follow(t *testing.T, rt *rapid.T, s *Store, src objects, line []Record, roots map[string]string) {
	t.Helper()
	for range rapid.IntRange(1, 8).Draw(rt, "jumps") {
		r := rapid.SampledFrom(line).Draw(rt, "to")
		mustInstall(t, s, src, r)
		mustActivate(t, s, r.Tree)
		if last := rapid.IntRange(0, 5).Draw(rt, "collect"); last < 4 {
			if _, _, err := s.Collect(nil, last); err != nil {
				rt.Fatal(err)
			}
		}
		if rapid.Bool().Draw(rt, "restart") {
			s = newStore(t, s.dir)
		}
		there, err := s.installed()
		if err != nil {
			rt.Fatal(err)
		}
		for _, tree := range there {
			wantPublished(t, roots[tree.tree], s.Path(tree.tree))
		}
		wantCurrent(t, s, r.Tree)
		if left, err := os.ReadDir(s.staging()); err != nil || len(left) > 0 {
			rt.Errorf("left in staging: %v, %v", left, err)
		}
	}
}
