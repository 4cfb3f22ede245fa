package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/release/content"
)

// fixed is a time long ago.
var fixed = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// memory is a source that counts requests.
type memory struct {
	content.Source
	objects map[string][]byte
	asked   int
}

func (m *memory) Object(_ context.Context, hash string) ([]byte, error) {
	m.asked++
	if b, ok := m.objects[hash]; ok {
		return b, nil
	}
	return nil, errors.New("not there")
}

func (m *memory) put(text string) string {
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:])
	m.objects[hash] = []byte(text)
	return hash
}

// With a trusted cache, a user who can write to its folder would choose what nodes run. With an unused cache, every
// publish would read the last release again.
func TestCacheServesOnlyMatchingHash(t *testing.T) {
	src := &memory{objects: map[string][]byte{}}
	dir := filepath.Join(t.TempDir(), "made", "here")
	c := NewCached(src, dir)
	one := src.put("one")
	expect := func(what string, asked int) {
		t.Helper()
		src.asked = 0
		b, err := c.Object(t.Context(), one)
		if err != nil || string(b) != "one" || src.asked != asked {
			t.Errorf("%s: %q %v, the source was asked %d times, want %d", what, b, err, src.asked, asked)
		}
	}
	expect("cold", 1)
	expect("warm", 0)
	file := filepath.Join(dir, one)
	for name, spoil := range map[string]func() error{
		"altered":   func() error { return os.WriteFile(file, []byte("two"), 0o600) },
		"truncated": func() error { return os.WriteFile(file, []byte("o"), 0o600) },
		"huge":      func() error { return os.Truncate(file, 1<<40) },
		"a link": func() error {
			return errors.Join(os.Remove(file), os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), file))
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		expect(name, 1)
		expect("after "+name, 0)
	}
	c.Keep(one, []byte("something else"))
	expect("after a wrong word", 0)
	if _, err := c.Object(t.Context(), "../../../elsewhere"); err == nil {
		t.Error("a path was read")
	}
	spoiled := src.put("right")
	src.objects[spoiled] = []byte("wrong")
	var unavailable *UnavailableError
	if b, err := c.Object(t.Context(), spoiled); !errors.As(err, &unavailable) || b != nil {
		t.Errorf("from a spoiled source: %q %v", b, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info, err)
	}
	c = NewCached(src, "/proc/none")
	expect("unwritable", 1)
	c = NewCached(src, "")
	expect("none", 1)
	if err := errors.Join(c.Trim(0), NewCached(src, "/proc/none").Trim(0)); err != nil {
		t.Error(err)
	}
}

// A cache without a limit fills the home directory, and users delete it at the wrong moment.
func TestCacheIsBounded(t *testing.T) {
	src := &memory{objects: map[string][]byte{}}
	dir := t.TempDir()
	c := NewCached(src, dir)
	var hashes []string
	for i, text := range []string{"aaaa", "bbbb", "cccc", "dddd"} {
		hash := src.put(text)
		hashes = append(hashes, hash)
		c.Keep(hash, []byte(text))
		at := fixed.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(filepath.Join(dir, hash), at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, map[string]string{temporary + "1": "left by a process that died", "mine": "not Pulley's"})
	if err := os.Chtimes(filepath.Join(dir, temporary+"1"), fixed, fixed); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Object(t.Context(), hashes[0]); err != nil { // used now
		t.Fatal(err)
	}
	if err := c.Trim(8); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, e := range entries {
		left[e.Name()] = true
	}
	if len(left) != 3 || !left[hashes[0]] || !left[hashes[3]] || !left["mine"] {
		t.Errorf("%v", left)
	}
}
