package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files behind a link belong to the machine. Moving them would remove them there: publish runs as the operator, often
// as root.
func TestNothingIsMovedThroughALink(t *testing.T) {
	for name, link := range map[string]string{"the folder itself": "modules", "a folder above it": "site"} {
		work, outside := t.TempDir(), t.TempDir()
		write(t, outside, map[string]string{"one": "1", "modules/two": "2", "dir/three": "3"})
		before := snapshot(t, outside)
		write(t, work, map[string]string{"tree/Puppetfile": "x", "aside-of-old": "x"})
		if err := os.Symlink(outside, filepath.Join(work, "tree", link)); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(work)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		folder := map[string]string{"modules": "modules", "site": "site/modules"}[link]
		m := moving{root, treeFolder, &puppetfile{folders: []string{folder}}}
		if err := m.setAside(); err == nil || !strings.Contains(err.Error(), "is not a folder") && !strings.Contains(err.Error(), "escapes") {
			t.Errorf("%s was set aside: %v", name, err)
		}
		// As if it had been moved.
		if err := os.Symlink(outside, filepath.Join(work, asideFolder, "0")); err != nil {
			t.Fatal(err)
		}
		if err := m.putBack(); err == nil {
			t.Errorf("%s was put back", name)
		}
		same(t, name, snapshot(t, outside), before...)
	}
}

// The folder's own modules must remain after the tool, even if one module folder lies in another.
func TestModulesOfFolderAreRestored(t *testing.T) {
	work, outside := t.TempDir(), t.TempDir()
	write(t, outside, map[string]string{"x": "x"})
	write(t, work, map[string]string{"tree/site/own/a": "a", "tree/site/made/old": "old", "tree/site/ext/own/b": "b", "tree/site/empty/deep/": ""})
	if err := os.Symlink(outside, filepath.Join(work, "tree/site/link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(work)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	m := moving{root, treeFolder, &puppetfile{folders: []string{"site", "site/ext", "none"}}}
	if err := m.setAside(); err != nil {
		t.Fatal(err)
	}
	write(t, work, map[string]string{"tree/site/made/new": "new", "tree/site/ext/m/c": "c"})
	if err := m.putBack(); err != nil {
		t.Fatal(err)
	}
	var left []string
	err = filepath.WalkDir(filepath.Join(work, "tree"), func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, strings.TrimPrefix(p, work+"/tree/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "left", left, "site/ext/m/c", "site/ext/own/b", "site/link", "site/made/new", "site/own/a")
	if _, err := os.Stat(filepath.Join(outside, "x")); err != nil {
		t.Error("what a link leads to is gone")
	}
	if _, err := os.Lstat(filepath.Join(work, "tree/none")); err == nil {
		t.Error("a folder came into being")
	}
}
