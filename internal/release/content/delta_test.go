package content

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// next publishes f after r, installs it on a node with r, and returns the fetched bytes.
func next(t *testing.T, s *Store, src objects, r Record, f folder) (Record, *counting) {
	t.Helper()
	root := f.make(t)
	r = src.build(t, root, r, "9.0.0")
	asked := &counting{objects: src}
	mustInstall(t, s, asked, r)
	wantPublished(t, root, s.Path(r.Tree))
	return r, asked
}

// An operator pays only for the changes: names, modes and places cost no content.
func TestDeltaContainsOnlyNewContent(t *testing.T) {
	start := folder{
		"big": noise(1, 200<<10), "m/a": noise(2, 50<<10), "m/b": "#!" + noise(3, 50<<10), "text": strings.Repeat("a line\n", 9000),
		"empty": "", "dir/": "", "link": "-> big",
	}
	for name, change := range map[string]func(f folder){
		"nothing":            func(folder) {},
		"renamed":            func(f folder) { f["new name"] = f["big"]; delete(f, "big"); f["link"] = "-> m/a" },
		"moved with folder":  func(f folder) { f["n/o/a"], f["n/o/b"] = f["m/a"], f["m/b"]; delete(f, "m/a"); delete(f, "m/b") },
		"copied":             func(f folder) { f["copy"], f["m/copy"] = f["big"], f["big"] },
		"swapped":            func(f folder) { f["big"], f["m/a"] = f["m/a"], f["big"] },
		"removed":            func(f folder) { delete(f, "big"); delete(f, "link"); delete(f, "dir/") },
		"one line":           func(f folder) { f["text"] = strings.Replace(f["text"], "a line", "another", 1) },
		"in the middle":      func(f folder) { f["big"] = f["big"][:100<<10] + "inserted" + f["big"][100<<10:] },
		"file to folder":     func(f folder) { f["big/inside"] = f["big"]; delete(f, "big") },
		"folder to file":     func(f folder) { f["m"] = f["m/a"]; delete(f, "m/a"); delete(f, "m/b") },
		"file to link":       func(f folder) { f["big"] = "-> m/a"; delete(f, "link") },
		"link to file":       func(f folder) { f["link"] = "now a file" },
		"link to folder":     func(f folder) { delete(f, "link"); f["link/"] = "" },
		"folder to link":     func(f folder) { delete(f, "dir/"); f["dir"] = "-> m" },
		"empty to full":      func(f folder) { f["empty"] = "full" },
		"full to empty":      func(f folder) { f["text"] = "" },
		"prefix siblings":    func(f folder) { f["m-x"], f["m.x"], f["m/"], f["m0/x"] = "x", "y", "", "z" },
		"retargeted":         func(f folder) { f["link"] = "-> text" },
		"everything at once": func(f folder) { clear(f); f["only"] = "this" },
	} {
		src := objects{}
		one := src.build(t, start.make(t), Record{}, "1.0.0")
		s := newStore(t, quick(t))
		mustInstall(t, s, src, one)
		f := maps.Clone(start)
		change(f)
		two, asked := next(t, s, src, one, f)
		if name == "nothing" {
			if two.Tree != one.Tree || two.Chain.Seq != 1 {
				t.Errorf("%+v", two)
			}
			continue
		}
		if asked.requests != 1 || asked.bytes > 700 || two.Chain.Delta.Size != int64(asked.bytes) {
			t.Errorf("%s: %d requests, %d bytes", name, asked.requests, asked.bytes)
		}
	}
}

// A chmod fetches only the name: the bytes are on the node's disk.
func TestModeFlipCostsNoContent(t *testing.T) {
	src := objects{}
	tree := changing{"run": {KindFile, noise(1, 300<<10)}, "other": {KindExecutable, noise(2, 100<<10)}}
	build := func(parent Record) (Record, string) {
		root := t.TempDir()
		tree.write(t, root)
		return src.build(t, root, parent, "1.0.0"), root
	}
	one, _ := build(Record{})
	tree["run"], tree["other"] = thing{KindExecutable, tree["run"].content}, thing{KindFile, tree["other"].content}
	two, root := build(one)
	s := newStore(t, quick(t))
	mustInstall(t, s, src, one)
	asked := &counting{objects: src}
	mustInstall(t, s, asked, two)
	wantPublished(t, root, s.Path(two.Tree))
	if asked.requests != 1 || asked.bytes > 300 {
		t.Errorf("%d requests, %d bytes", asked.requests, asked.bytes)
	}
}

// A node that was offline fetches all deltas in one request. This works even if a later delta was compressed with
// contents of an earlier one, or if contents were removed in between.
func TestDeltasOfDeltas(t *testing.T) {
	t.Parallel()
	src := objects{}
	long := noise(1, 60<<10)
	f := folder{"a": long, "b": "constant", "big": noise(4, 200<<10)}
	line := []Record{src.build(t, f.make(t), Record{}, "1.0.0")}
	roots := []string{}
	for n, change := range []func(){
		func() { f["c"] = noise(2, 60<<10) },                             // added
		func() { f["c"] = f["c"][:30<<10] + "edited" + f["c"][30<<10:] }, // compressed with the previous content
		func() { delete(f, "a") },                                        // removed
		func() { f["d/a"] = long },                                       // added at another path: it counts as new
		func() { f["d/a"] = "x" + long },                                 // compressed with the content above
		func() { f["e"] = f["c"] + "more"; delete(f, "c") },              // moved and changed
		func() { f["c"] = noise(2, 60<<10) },                             // as in the beginning
		func() { f["z/"] = "" },
	} {
		change()
		roots = append(roots, f.make(t))
		line = append(line, src.build(t, roots[n], line[n], ""))
	}
	last := line[len(line)-1]
	if last.Base.Seq != 0 {
		t.Fatalf("%+v", last)
	}
	for from := range line {
		for to := from + 1; to < len(line); to++ {
			s := newStore(t, quick(t))
			mustInstall(t, s, src, line[from])
			asked := &counting{objects: src}
			mustInstall(t, s, asked, line[to])
			wantPublished(t, roots[to-1], s.Path(line[to].Tree))
			if asked.requests != 1 {
				t.Errorf("%d to %d: %d requests", from, to, asked.requests)
			}
		}
	}
	for n, r := range line[1:] {
		s := newStore(t, quick(t))
		mustInstall(t, s, src, r)
		wantPublished(t, roots[n], s.Path(r.Tree))
		files, err := ReadFiles(t.Context(), src, r, func(p string) bool { return p == "e" || p == "d/a" })
		if err != nil {
			t.Error(err)
		}
		for p, b := range files {
			if HashOf(b) != HashOf([]byte(look(t, roots[n], installedMode)[p][len("file -r--r--r-- "):])) {
				t.Errorf("release %d: %q was read wrongly", n+1, p)
			}
		}
	}
}

// A node with a wrong record of its position takes a slower way and still succeeds.
func TestInstallTakesTheNextWay(t *testing.T) {
	src := objects{}
	f := folder{"a": noise(1, 1000), "b": "0"}
	line := []Record{src.build(t, f.make(t), Record{}, "1.0.0")}
	for n := range 3 {
		f["b"] = fmt.Sprint(n + 1)
		line = append(line, src.build(t, f.make(t), line[n], ""))
	}
	root := f.make(t)
	for name, confuse := range map[string]func(s *Store, k *known) error{
		"wrong position": func(s *Store, k *known) error {
			k.record.Chain.Seq = 2
			return s.remember(k.tree, k.record, k.manifest, s.Now())
		},
		"wrong sizes": func(s *Store, k *known) error {
			k.record.Chain.Stored, k.record.Chain.Weight = -1<<40, 1<<40
			return s.remember(k.tree, k.record, k.manifest, s.Now())
		},
		"position in the future": func(s *Store, k *known) error {
			k.record.Chain.Seq = 3
			return s.remember(k.tree, k.record, k.manifest, s.Now())
		},
		"a manifest of another": func(s *Store, k *known) error {
			return s.remember(k.tree, k.record, &Manifest{Entries: []Entry{dirEntry("x")}}, s.Now())
		},
		"a tree that is half gone": func(s *Store, k *known) error {
			return errors.Join(s.root(t, k).remove("a", false), s.root(t, k).remove("b", false))
		},
	} {
		s := newStore(t, quick(t))
		mustInstall(t, s, src, line[0])
		if err := confuse(s, mustLoad(t, s, line[0].Tree)); err != nil {
			t.Fatal(err)
		}
		if err := s.Install(t.Context(), src, line[3]); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantPublished(t, root, s.Path(line[3].Tree))
	}
	s := newStore(t, quick(t))
	mustInstall(t, s, src, line[0])
	err := s.Install(t.Context(), objects{}, line[3])
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "by deltas") || !strings.Contains(err.Error(), "from its base") {
		t.Errorf("both ways fail: %v", err)
	}
}

func (s *Store) root(t *testing.T, k *known) *beneath {
	t.Helper()
	b, err := openBeneath(k.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// Contents near the limits must be restored exactly. Contents beyond them begin a new line.
func TestDeltaCaps(t *testing.T) {
	t.Parallel()
	src := objects{}
	f := folder{}
	for i := range 6 {
		f[fmt.Sprint(i)] = strings.Repeat(fmt.Sprintf("line %d of a long file\n", i), 30_000)
	}
	one := src.build(t, f.make(t), Record{}, "1.0.0")
	s := newStore(t, quick(t))
	mustInstall(t, s, src, one)
	for i := range 6 {
		f[fmt.Sprint(i)] = "changed\n" + f[fmt.Sprint(i)] + noise(uint64(i), 1000)
	}
	two, asked := next(t, s, src, one, f) // contents of 4 MB with a dictionary of 2 MB
	if two.Chain.Seq != 1 || two.Chain.Delta.Raw < 5<<20 || asked.requests != 1 {
		t.Errorf("%+v, %d requests", two, asked.requests)
	}
	for name, content := range map[string]string{
		"too large to store":  noise(9, MaxStored),
		"too heavy":           strings.Repeat("heavy\n", maxDeltaWeight/6) + "too heavy",
		"one byte too heavy ": strings.Repeat("x", maxDeltaWeight+1),
	} {
		f := maps.Clone(f)
		f["new"] = content
		r, _ := next(t, s, src, two, f)
		if r.Chain.Seq != 0 || r.Chain.Delta != nil || r.Base.Seq != 0 || r.Chain.Line == one.Chain.Line {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// With two encodings of one signed delta, two readers could see different changes.
func TestOpenDeltaRefusesOtherSpellings(t *testing.T) {
	u, err := newUnpackerFor(maxDeltaWeight, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	zero := strings.Repeat("\x00", sha256.Size)
	with := func(changes string) string {
		frame := encode(t, changes)
		return deltaTag + string(slices.Concat([]byte{byte(len(changes))}, []byte{byte(len(frame))}, frame))
	}
	for name, c := range map[string]struct {
		stored string
		raw    int64
	}{
		"nothing":             {"", 1000},
		"another format":      {"PUPDELTA2\n", 1000},
		"no frame":            {deltaTag, 1000},
		"empty frame":         {deltaTag + "\x00\x00", 1000},
		"cut frame":           {with(zero + zero)[:20], 1000},
		"no contents":         {with(zero + zero), 1000},
		"trailing":            {with(zero+zero) + "\x00x", 1000},
		"heavier than said":   {with(zero+zero) + "\x00", 63},
		"no tree":             {with(zero[1:]) + "\x00", 1000},
		"no previous":         {with(zero) + "\x00", 1000},
		"previous of no size": {with(zero+"\x01"+zero[1:]) + "\x00", 1000},
		"cut change":          {with(zero+zero+"d\x01") + "\x00", 1000},
		"unknown change":      {with(zero+zero+"?\x01a") + "\x00", 1000},
		"cut removal":         {with(zero+zero+"-\x02a") + "\x00", 1000},
		"cut contents":        {with(zero+zero) + "\x05\x09abc", 1000},
	} {
		if _, err := openDelta([]byte(c.stored), Object{Raw: c.raw}, u); err == nil || !strings.HasPrefix(err.Error(), "cannot decode delta ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := openDelta([]byte(with(zero+zero+"-\x01a")+"\x00"), Object{Raw: 1000}, u); err != nil {
		t.Error(err)
	}
}

// look lists everything below a folder without the tested code: type, mode, target, content.
func look(t testing.TB, root string, mode func(fs.FileMode) fs.FileMode) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(p)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			found[name] = "link " + target
			return err
		case info.IsDir():
			found[name] = fmt.Sprint("folder ", mode(info.Mode()))
			return nil
		}
		b, err := os.ReadFile(p)
		found[name] = fmt.Sprint("file ", mode(info.Mode()), " ", string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// installedMode returns the mode on a node for a published mode.
func installedMode(m fs.FileMode) fs.FileMode {
	switch {
	case m.IsDir():
		return fs.ModeDir | 0o755
	case m&0o100 != 0:
		return 0o555
	}
	return 0o444
}

// wantPublished checks that the installed files equal the published ones: contents and modes.
func wantPublished(t testing.TB, published, installed string) {
	t.Helper()
	want := look(t, published, installedMode)
	got := look(t, installed, func(m fs.FileMode) fs.FileMode { return m })
	for _, p := range slices.Sorted(maps.Keys(want)) {
		if got[p] != want[p] {
			t.Errorf("%q is %.60q, want %.60q", p, got[p], want[p])
		}
		delete(got, p)
	}
	for p := range got {
		t.Errorf("%q was not published", p)
	}
}
