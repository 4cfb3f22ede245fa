package content

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

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
