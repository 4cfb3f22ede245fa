package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/content"
)

// packed is a tree and its objects in memory.
type packed map[string][]byte

func (p packed) Object(_ context.Context, hash string) ([]byte, error) { return p[hash], nil }
func (p packed) Deltas(context.Context, string, int64, int64) ([][]byte, error) {
	return nil, fmt.Errorf("there are none")
}

// viewOf is the view of a tree: content by path, "-> " before a link's target, "#!" before an executable.
func viewOf(t *testing.T, files map[string]string) *content.View {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		var err error
		if target, link := strings.CutPrefix(text, "-> "); link {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := content.ReadTree(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := packed{}
	r, _, err := content.Build(t.Context(), root, m, content.Parent{}, "1.0.0", func(o content.Object, b []byte) error {
		p[o.Hash] = b
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	v, err := content.OpenView(t.Context(), p, r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A diff that tells less than what changed, or more, is what a promotion is decided by.
func TestDiffNamesEveryChangeOnce(t *testing.T) {
	big := strings.Repeat("a line of a large file\n", maxPatchBytes/20)
	before := viewOf(t, map[string]string{
		"same": "same", "gone": "gone\n", "edited": "one\ntwo\nthree\n", "a/old.pp": "moved\n", "b/twin.pp": "twin\n", "link": "-> same",
		"mode": "#!x\n", "empty": "", "big": big, "binary": "\x00one", "latin": "gr\xf6\xdfe", "turns": "file\n", "edited.mode": "x\n",
	})
	after := viewOf(t, map[string]string{
		"same": "same", "new": "new", "edited": "one\n2\nthree\n", "c/old.pp": "moved\n", "a/new.pp": "moved\n", "c/twin.pp": "twin\n", "link": "-> edited",
		"mode": "x\n", "empty2": "", "big": big + "x", "binary": "\x00two", "latin": "gr\xf6\xdfer", "turns": "-> same", "edited.mode": "#!x\n",
	})
	c := compare(before.Manifest(), after.Manifest(), func(string) bool { return true })
	if err := c.readPatches(t.Context(), before, after); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range c.changes {
		line := changeLetters[f.Change] + " " + f.Path + " " + counted(f.Added) + "/" + counted(f.Removed)
		if n := f.notes(); n != "" {
			line += " " + n
		}
		got = append(got, line)
	}
	want := []string{
		"A a/new.pp 1/0",
		"M big / has more than 1.0 MiB",
		"M binary / no text",
		"R c/old.pp / from a/old.pp",
		"R c/twin.pp / from b/twin.pp",
		"M edited 1/1",
		"M edited.mode 1/1 file → executable",
		"D empty 0/0",
		"A empty2 0/0",
		"D gone 0/1",
		"M latin / no text",
		"M link / target same → edited",
		"M mode 1/1 executable → file",
		"A new 1/0",
		"M turns 0/1 file → link",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if c := compare(before.Manifest(), after.Manifest(), func(p string) bool { return within(p, []string{"b"}) }); len(c.changes) != 1 || c.changes[0].OldPath != "b/twin.pp" {
		t.Errorf("what was renamed away from a folder is no change of it: %+v", c.changes)
	}
}

// A file that a machine wrote must not write on the terminal of whoever looks at a diff.
func TestPatchesOnATerminalObeyNothing(t *testing.T) {
	if got := strings.Join(cleanFields("+a\x1b[2J\tb\n"), "\t"); got != "+a [2J\tb" {
		t.Errorf("%q", got)
	}
}
