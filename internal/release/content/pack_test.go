package content

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// noise returns incompressible content, always the same for one seed.
func noise(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// etcd refuses a value beyond the limit, and every node a frame beyond it. The release could not be published or
// installed.
func TestPacksStayWithinTheCaps(t *testing.T) {
	many := folder{}
	for i := range 400 {
		many[fmt.Sprintf("m%d/f", i)] = noise(uint64(i), 5000)
	}
	for name, f := range map[string]folder{
		"nothing":               {},
		"only empty files":      {"a": "", "b": ""},
		"one small file":        {"a": "x"},
		"exactly one frame":     {"a": strings.Repeat("x", maxRaw)},
		"one byte more":         {"a": strings.Repeat("x", maxRaw), "b": "y"},
		"large and dense":       {"a": noise(1, 3<<20), "b": "x"},
		"dense after small":     {"a": "x", "b": noise(2, 900<<10), "c": "y"},
		"many dense files":      many,
		"large and compressing": {"a": strings.Repeat("abc", 2<<20)},
		"same content often":    {"a": "same", "b": "same", "c/d": "same", "e": "other"},
	} {
		t.Run(name, func(t *testing.T) {
			r, src := publish(t, f)
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
			for hash, stored := range src {
				if HashOf(stored) != hash || len(stored) > MaxStored {
					t.Errorf("object %s has %d bytes", hash, len(stored))
				}
			}
			s := newStore(t, t.TempDir())
			mustInstall(t, s, src, r)
		})
	}
}

// A split file needs two fetches for a repair or a delta. Small files are never split.
func TestPacksAreCutAtFileBoundaries(t *testing.T) {
	for name, c := range map[string]struct {
		content func(i int) string
		packs   int // filled as far as possible
	}{
		"dense":       {func(i int) string { return noise(uint64(i), 100_000) }, 6},
		"compressing": {func(i int) string { return strings.Repeat(fmt.Sprintf("%09d\n", i), 10_000) }, 3},
	} {
		f := folder{}
		for i := range 30 {
			f[fmt.Sprintf("f%02d", i)] = c.content(i)
		}
		r, src := publish(t, f)
		packs := mustOpen(t, src, r).supply.index.packs
		for i, o := range packs {
			if o.Raw%100_000 != 0 {
				t.Errorf("%s: pack %d of %d bytes splits a file", name, i, o.Raw)
			}
		}
		if n := len(packs); n != c.packs {
			t.Errorf("%s: %d packs, want %d", name, n, c.packs)
		}
	}
}

// Equal trees must give equal objects. Otherwise publishing again would store everything again.
func TestBuildIsRepeatable(t *testing.T) {
	f := folder{"a": noise(1, 2<<20), "b": "b", "c/d": strings.Repeat("d", 5000)}
	one, oneSrc := publish(t, f)
	two, twoSrc := publish(t, f)
	if one != two || !maps.EqualFunc(oneSrc, twoSrc, bytes.Equal) {
		t.Errorf("%+v\n%+v", one, two)
	}
	f = maps.Clone(f)
	f["a"], f["d"] = "#!"+f["a"][:1000], "new"
	root := f.make(t)
	if one, two := oneSrc.build(t, root, one, ""), twoSrc.build(t, root, two, ""); *one.Chain.Delta != *two.Chain.Delta {
		t.Errorf("%+v\n%+v", one, two)
	}
	if !maps.EqualFunc(oneSrc, twoSrc, bytes.Equal) {
		t.Error("two deltas of one change differ")
	}
}

// A file that is edited during publication must not produce a release that no node can install.
func TestBuildNoticesChanges(t *testing.T) {
	for name, change := range map[string]func(p string) error{
		"edited":    func(p string) error { return os.WriteFile(p, []byte("hellO\n"), 0o644) },
		"shorter":   func(p string) error { return os.Truncate(p, 2) },
		"longer":    func(p string) error { return os.WriteFile(p, []byte("hello\nmore"), 0o644) },
		"endless":   func(p string) error { return os.Truncate(p, MaxFileBytes*20) },
		"removed":   os.Remove,
		"a folder":  func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o755)) },
		"a link":    func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/etc/hostname", p)) },
		"no access": func(p string) error { return errors.Join(os.Remove(p), os.Symlink("nowhere", p)) },
	} {
		root := golden.make(t)
		m := mustRead(t, root)
		if err := change(filepath.Join(root, "README.md")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Build(t.Context(), root, m, Parent{}, "1.0.0", objects{}.add); err == nil || !strings.HasPrefix(err.Error(), "cannot pack tree ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBuildReturnsErrorsOfTheStore(t *testing.T) {
	root := golden.make(t)
	full := errors.New("full")
	for fail := range 3 { // a pack, the manifest, the index
		n := 0
		_, _, err := Build(t.Context(), root, mustRead(t, root), Parent{}, "1.0.0", func(Object, []byte) error {
			if n++; n > fail {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) {
			t.Errorf("object %d: %v", fail, err)
		}
	}
	bad := &Manifest{Entries: []Entry{dirEntry("../x")}}
	var refused *refusedError
	if _, _, err := Build(t.Context(), root, bad, Parent{}, "1.0.0", objects{}.add); !errors.As(err, &refused) {
		t.Errorf("bad manifest: %v", err)
	}
}

func encode(t testing.TB, raw string, options ...zstd.EOption) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, append([]zstd.EOption{zstd.WithSingleSegment(true)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll([]byte(raw), nil)
}

// A frame with a wrong size could fill a node's memory, or contain unsigned bytes.
func TestUnpackRefuses(t *testing.T) {
	u, err := newUnpacker()
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	good := encode(t, "hello")
	skippable := []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00abcd")
	var streamed bytes.Buffer
	w, err := zstd.NewWriter(&streamed, zstd.WithWindowSize(maxRaw/2))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := w.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	bomb := encode(t, strings.Repeat("\x00", maxRaw+1))
	for name, c := range map[string]struct {
		stored []byte
		raw    int64
	}{
		"nothing":            {nil, 5},
		"no frame":           {[]byte("hello, I am no frame"), 5},
		"smaller than said":  {good, 6},
		"larger than said":   {good, 4},
		"no size":            {good, 0},
		"negative size":      {good, -1},
		"truncated":          {good[:len(good)-1], 5},
		"trailing byte":      {append(bytes.Clone(good), 0), 5},
		"second frame":       {append(bytes.Clone(good), good...), 10},
		"second empty frame": {append(bytes.Clone(good), encode(t, "", zstd.WithZeroFrames(true))...), 5},
		"skippable after":    {append(bytes.Clone(good), skippable...), 5},
		"skippable before":   {append(bytes.Clone(skippable), good...), 5},
		"only skippable":     {skippable, 4},
		"no stated size":     {streamed.Bytes(), 10},
		"bomb":               {bomb, maxRaw + 1},
		"bomb that lies":     {bomb, 5},
		"dictionary":         {encode(t, "hello", zstd.WithEncoderDictRaw(7, []byte("hello, hello, hello"))), 5},
	} {
		if got, err := u.unpack(c.stored, c.raw); err == nil {
			t.Errorf("%s: decoded to %d bytes", name, len(got))
		}
	}
	if got, err := u.unpack(good, 5); err != nil || string(got) != "hello" {
		t.Errorf("after all those: %q, %v", got, err)
	}
	if got, err := u.unpack(encode(t, "hello", zstd.WithEncoderCRC(true)), 5); err != nil || string(got) != "hello" {
		t.Errorf("with a checksum: %q, %v", got, err)
	}
}

// An error that names an object three times hides the cause.
func TestUnstorableObjectIsNamedOnce(t *testing.T) {
	full := errors.New("cannot store content 0123456789ab: etcd has no space left")
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, _, err := Build(t.Context(), root, mustRead(t, root), Parent{}, "1.0.0", func(Object, []byte) error { return full })
	if !errors.Is(err, full) || strings.Contains(err.Error(), "object") {
		t.Error(err)
	}
}
