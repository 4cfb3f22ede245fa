package content

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Each of these would write outside the tree, hide a file, or give two nodes different trees.
func forbidden() []forbiddenTree {
	return []forbiddenTree{
		{"empty path", []Entry{dirEntry("")}, "is empty"},
		{"NUL", []Entry{dirEntry("a\x00b")}, "NUL byte"},
		{"absolute", []Entry{fileEntry("/etc/passwd", "x")}, "plain path"},
		{"parent", []Entry{fileEntry("../evil", "x")}, "plain path"},
		{"parent inside", []Entry{dirEntry("a"), fileEntry("a/../../evil", "x")}, "plain path"},
		{"dot", []Entry{dirEntry(".")}, "plain path"},
		{"dot inside", []Entry{dirEntry("a"), dirEntry("a/./b")}, "plain path"},
		{"double slash", []Entry{dirEntry("a"), dirEntry("a//b")}, "plain path"},
		{"trailing slash", []Entry{dirEntry("a/")}, "plain path"},
		{"long component", []Entry{dirEntry(strings.Repeat("a", 256))}, "at most 255"},
		{"long path", nest(5, 250), "at most 1024"},
		{"deep", nest(33, 1), "at most 32"},
		{"git", []Entry{dirEntry("a"), dirEntry("a/.git")}, "Git"},
		{"out of order", []Entry{dirEntry("b"), dirEntry("a")}, "out of order"},
		{"twice", []Entry{dirEntry("a"), dirEntry("a")}, "twice"},
		{"no folder", []Entry{fileEntry("a/b", "x")}, `"a" is not listed`},
		{"below a file", []Entry{fileEntry("a", "x"), fileEntry("a/b", "x")}, `"a" is not listed as a folder`},
		{"below a link", []Entry{dirEntry("b"), linkEntry("c", "b"), fileEntry("c/d", "x")}, `"c" is not listed as a folder`},
		{"device", []Entry{{Path: "a", Kind: 'b'}}, "neither a file"},
		{"no kind", []Entry{{Path: "a"}}, "neither a file"},
		{"folder with size", []Entry{{Path: "a", Kind: KindDirectory, Size: 1}}, "folder with content"},
		{"file with target", []Entry{{Path: "a", Kind: KindFile, Hash: emptyHash, Target: "b"}}, "contradicts"},
		{"negative size", []Entry{{Path: "a", Kind: KindFile, Size: -1}}, "at most"},
		{"empty file with another hash", []Entry{{Path: "a", Kind: KindFile}}, "contradicts"},
		{"large file", []Entry{{Path: "a", Kind: KindFile, Size: MaxFileBytes + 1}}, "at most"},
		{"large tree", large(17), "with it the tree has more than"},
		{"many entries", many(MaxEntries + 1), "more than 100000"},
		{"link to nothing", []Entry{linkEntry("a", "")}, "is empty"},
		{"link with NUL", []Entry{linkEntry("a", "b\x00c")}, "NUL byte"},
		{"long link", []Entry{linkEntry("a", strings.Repeat("b", 4096))}, "at most 4095"},
		{"link with another hash", []Entry{{Path: "a", Kind: KindLink, Size: 1, Target: "b"}}, "contradicts"},
	}
}

type forbiddenTree struct {
	name    string
	entries []Entry
	why     string
}

func nest(levels, bytes int) []Entry {
	var entries []Entry
	var parts []string
	for range levels {
		parts = append(parts, strings.Repeat("d", bytes))
		entries = append(entries, dirEntry(strings.Join(parts, "/")))
	}
	return entries
}

func many(n int) []Entry {
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = dirEntry(fmt.Sprintf("%06d", i))
	}
	return entries
}

func large(files int) []Entry {
	var entries []Entry
	for i := range files {
		entries = append(entries, Entry{
			Path: fmt.Sprintf("%06d", i), Kind: KindFile, Size: MaxFileBytes, Hash: sha256.Sum256([]byte{byte(i)}),
		})
	}
	return entries
}

func TestRulesRefuse(t *testing.T) {
	for _, c := range forbidden() {
		err := checkEntries(c.entries)
		var refused *refusedError
		if !errors.As(err, &refused) || !strings.Contains(refused.Why, c.why) || refused.Hint == "" {
			t.Errorf("%s: %v, want %q", c.name, err, c.why)
		}
		if _, err := decodeManifest(string((&Manifest{Entries: c.entries}).Encode())); err == nil && !neverEncoded[c.name] {
			t.Errorf("%s: decoded", c.name)
		}
	}
}

// The encoding cannot express these contradictions.
var neverEncoded = map[string]bool{"file with target": true, "link with another hash": true}

// Rules must accept valid content: these names occur in real control repositories.
func TestRulesAccept(t *testing.T) {
	for name, entries := range map[string][]Entry{
		"nothing":                   nil,
		"as deep as allowed":        nest(32, 1),
		"as long as allowed":        nest(4, 255),
		"as large as allowed":       large(16),
		"sibling sorts in between":  {dirEntry("a"), fileEntry("a-b", "x"), fileEntry("a/b", "x")},
		"spaces and umlauts":        {fileEntry("Übung 1.txt", "x")},
		"dots that are no parents":  {fileEntry("...", "x"), fileEntry("..data", "x"), fileEntry(".gitignore", "x")},
		"same name in two folders":  {dirEntry("a"), fileEntry("a/X", "x"), dirEntry("b"), fileEntry("b/x", "x")},
		"link to a file":            {fileEntry("a", "x"), linkEntry("b", "a")},
		"link to the root":          {dirEntry("s"), linkEntry("s/m", "../")},
		"link to a folder above":    {dirEntry("m"), dirEntry("m/f"), linkEntry("m/f/m", "../../m")},
		"link to what is not there": {linkEntry("a", "b/../c")},
		"absolute link":             {linkEntry("a", "/etc/puppetlabs/keys")},
		"link out of the tree":      {dirEntry("a"), linkEntry("a/b", "c/../../../d")},
		"link through links":        {dirEntry("d"), linkEntry("l", "d"), linkEntry("m", "l/../l")},
		"link to itself":            {linkEntry("a", "a")},
		"long link":                 {linkEntry("a", strings.Repeat("b", 4095))},
		"any bytes":                 {fileEntry("a\tb\nc\x7f\u0085", "x"), fileEntry(`srv-a\x2db.mount`, "x"), linkEntry("z\xff", "\\\xff\n")},
		"names that differ in case": {dirEntry("README"), dirEntry("e\u0301"), dirEntry("readme"), dirEntry("é")},
		"empty file":                {fileEntry("a", "")},
	} {
		if err := checkEntries(entries); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The error for content that can't be published must name it and its remedy, before anything is stored.
func TestReadTreeRefuses(t *testing.T) {
	mk := func(f folder) func(*testing.T, string) { return func(t *testing.T, root string) { f.write(t, root) } }
	for _, c := range []struct {
		name string
		make func(t *testing.T, root string)
		path string
		why  string
	}{
		{"pipe", func(t *testing.T, root string) {
			if err := syscall.Mkfifo(filepath.Join(root, "p"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "p", "neither a file"},
		{"socket", func(t *testing.T, root string) {
			l, err := net.Listen("unix", filepath.Join(root, "s"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "s", "neither a file"},
		{"deep", mk(folder{strings.Repeat("d/", 33): ""}), strings.Repeat("d/", 32) + "d", "levels deep"},
		{"large file", func(t *testing.T, root string) {
			folder{"big": ""}.write(t, root)
			if err := os.Truncate(filepath.Join(root, "big"), MaxFileBytes+1); err != nil {
				t.Fatal(err)
			}
		}, "big", "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			c.make(t, root)
			_, err := ReadTree(root, nil)
			var refused *refusedError
			if !errors.As(err, &refused) || refused.Path != c.path || !strings.Contains(refused.Why, c.why) || refused.Hint == "" {
				t.Errorf("%v, want %q: %s", err, c.path, c.why)
			}
		})
	}
	root := t.TempDir()
	for _, name := range []string{"a", "z"} {
		if err := syscall.Mkfifo(filepath.Join(root, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadTree(root, nil); err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"z"`) {
		t.Errorf("not all are named: %v", err)
	}
	if _, err := ReadTree(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
}

// An ignored file must not be published and must not stop the publication.
func TestReadTreeIgnores(t *testing.T) {
	root := folder{
		"a": "x", "b.swp": "x", "vendor/big\nname": "x", "vendor/l": "-> /etc", "m/vendor/y": "x",
	}.make(t)
	asked := map[string]bool{}
	m, err := ReadTree(root, func(p string, dir bool) bool {
		asked[p] = dir
		return strings.HasSuffix(p, ".swp") || p == "vendor" && dir
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range m.Entries {
		got = append(got, e.Path)
	}
	if want := "a m m/vendor m/vendor/y"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if dir, ok := asked["vendor/l"]; ok || dir {
		t.Error("looked into an ignored folder")
	}
}
