package content

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
)

// many returns a tree of several packs and no small files.
func manyPacks() folder {
	f := folder{}
	for i := range 6 {
		f[fmt.Sprintf("dense%d", i)] = noise(uint64(i), 300<<10)
	}
	return f
}

// On a bad link with repeated interruptions, a node must finish and not fetch the same bytes again.
func TestInstallGoesOnWhereItWasCutOff(t *testing.T) {
	root := manyPacks().make(t)
	r, src := mustBuild(t, root)
	all := len(mustOpen(t, src, r).Objects())
	if all < 6 {
		t.Fatalf("only %d objects", all)
	}
	for k := range all {
		s := newStore(t, quick(t))
		var left atomic.Int64
		left.Store(int64(k))
		failing := spoiled{src, func(hash string) ([]byte, error) {
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
		err := s.Install(t.Context(), spoiled{src, func(hash string) ([]byte, error) {
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
	objects := mustOpen(t, src, r).Objects()
	for name, spoil := range map[string]func(path string, good []byte) error{
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
			if err := spoil(filepath.Join(dir, o.Hash), src[o.Hash]); err != nil {
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
