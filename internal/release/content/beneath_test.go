package content

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// On systems without openat2, a link in a tree would lead out of its folder.
func TestFoldersAreOpenedWithoutLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"root/a/b", "out"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"out": "../out", "a/up": "..", "a/same": "b"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	at, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	for path, opens := range map[string]bool{
		"a": true, "a/b": true, "out": false, "a/up": false, "a/same": false, "a/up/a": false,
		"..": false, "../out": false, "a/../../out": false, dir: false, "missing": false, "": false,
	} {
		for name, open := range map[string]func(int, string) (int, error){"at once": openFolder, "each": openEach} {
			fd, err := open(int(at.Fd()), path)
			if (err == nil) != opens {
				t.Errorf("%q, %s: %v", path, name, err)
			}
			if err == nil {
				unix.Close(fd)
			}
		}
	}
}
