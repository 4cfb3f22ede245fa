package mirror_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pulley/internal/release/content"
	"pulley/internal/release/mirror"
)

// kept is a source in memory.
type kept map[string][]byte

func (k kept) Object(_ context.Context, hash string) ([]byte, error) { return k.get(hash) }

func (k kept) Deltas(_ context.Context, line string, from, to int64) (all [][]byte, err error) {
	for seq := from; seq <= to && err == nil; seq++ {
		var b []byte
		b, err = k.get(fmt.Sprintf("%s/%d", line, seq))
		all = append(all, b)
	}
	return all, err
}

func (k kept) get(name string) ([]byte, error) {
	if b, ok := k[name]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("cannot read %s: %w", name, os.ErrNotExist)
}

// publish adds a release with one file to a source.
func (k kept) publish(t *testing.T, text string, parent content.Parent) content.Record {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "site.pp"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := content.ReadTree(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, delta, err := content.Build(t.Context(), dir, m, parent, "1.0.0", func(o content.Object, b []byte) error {
		k[o.Hash] = bytes.Clone(b)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if delta != nil {
		k[fmt.Sprintf("%s/%d", r.Chain.Line, r.Chain.Seq)] = delta
	}
	return r
}

// A delta that is damaged in one source and correct in the other costs a node one more request, not its update.
func TestDamagedDeltaIsReadFromSecondSource(t *testing.T) {
	whole := kept{}
	one := whole.publish(t, "notify { 'one': }\n", content.Parent{})
	view, err := content.OpenView(t.Context(), whole, one)
	if err != nil {
		t.Fatal(err)
	}
	two := whole.publish(t, "notify { 'two': }\n", content.Parent{View: view, Last: true})
	name := fmt.Sprintf("%s/%d", two.Chain.Line, two.Chain.Seq)
	damaged := kept{}
	for key, b := range whole {
		damaged[key] = b
	}
	damaged[name] = bytes.Clone(whole[name])
	damaged[name][len(damaged[name])/2] ^= 1
	s, err := content.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.Reserve = 0
	if err := s.Install(t.Context(), whole, one); err != nil {
		t.Fatal(err)
	}
	// The delta is the only way to the release.
	for _, src := range []kept{whole, damaged} {
		for key := range src {
			if key != name {
				delete(src, key)
			}
		}
	}
	if err := s.Install(t.Context(), mirror.Fallback(damaged, damaged), two); err == nil {
		t.Fatal("it was installed from a damaged delta")
	}
	if err := s.Install(t.Context(), mirror.Fallback(damaged, whole), two); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(s.Path(two.Tree), "site.pp")); err != nil || string(b) != "notify { 'two': }\n" {
		t.Errorf("%q, %v", b, err)
	}
}
