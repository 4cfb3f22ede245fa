package source

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOverlayIsReadFromTheCommandLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Overlay{
		"../private":                            {"", "../private", ""},
		"hieradata=../private":                  {"hieradata", "../private", ""},
		"./a/=/srv/b#v1":                        {"a", "/srv/b", "v1"},
		".=x":                                   {"", "x", ""},
		"https://u:p@git.example/x.git?a=b":     {"", "https://u:p@git.example/x.git?a=b", ""},
		"data/x=https://git.example/x.git#main": {"data/x", "https://git.example/x.git", "main"},
		"git@git.example:x=y.git":               {"", "git@git.example:x=y.git", ""},
		"hieradata=git@git.example:team/hiera":  {"hieradata", "git@git.example:team/hiera", ""},
		"hieradata=ssh://git@git.example/h#a/b": {"hieradata", "ssh://git@git.example/h", "a/b"},
		"":                                      {}, "a=": {}, "x#": {}, "../x=y": {}, "/etc=y": {}, "=y": {},
	} {
		if got, err := ParseOverlay(text); (want == Overlay{}) != (err != nil) || err == nil && got != want {
			t.Errorf("%q: %+v %v, want %+v", text, got, err, want)
		}
	}
	if got := withoutUser("https://u:p@git.example/x"); got != "https://git.example/x" {
		t.Error(got)
	}
}

// Private data that is joined on a Puppet server today must reach the nodes, and a file that it hides must be named.
func TestOverlaysAreMerged(t *testing.T) {
	t.Parallel()
	dir, private, shared := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{"site.pp": "a", "data/common.yaml": "public", "data/nodes/a.yaml": "a", "notes/x": "x", ".pulleyignore": "notes\n"})
	write(t, private, map[string]string{"common.yaml": "private", "nodes/b.yaml": "b", ".pulleyignore": "README\n", "README": "x"})
	write(t, shared, map[string]string{"files/logo": "png", "site.pp": "shared"})
	if err := os.Symlink("/etc/keys", filepath.Join(shared, "keys")); err != nil {
		t.Fatal(err)
	}
	at := commit(t, private, "data")
	write(t, private, map[string]string{"nodes/b.yaml": "changed"})
	before := snapshot(t, dir)
	f := open(t, dir, Options{Overlays: []Overlay{{"data", "file://" + private, "main"}, {"", shared, ""}}})
	same(t, "merged", published(t, f), "data/", "data/common.yaml", "data/nodes/", "data/nodes/a.yaml", "data/nodes/b.yaml", "files/", "files/logo", "keys → /etc/keys", "site.pp")
	for name, want := range map[string]string{"data/common.yaml": "private", "data/nodes/b.yaml": "b", "site.pp": "shared"} {
		if got, err := os.ReadFile(filepath.Join(f.Root, name)); string(got) != want || err != nil {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	o := f.Overlays
	if len(o) != 2 || o[0].Commit != at || o[0].Ref != "main" || o[0].Dirty || !slices.Equal(o[0].Shadows, []string{"data/common.yaml"}) ||
		o[1].Commit != "" || !slices.Equal(o[1].Shadows, []string{"site.pp"}) {
		t.Errorf("%+v", o)
	}
	same(t, "the operator's folder", snapshot(t, dir), before...)
	if o := open(t, dir, Options{Overlays: []Overlay{{"data", private, ""}}}).Overlays; len(o) != 1 || !o[0].Dirty || o[0].Commit != at {
		t.Errorf("%+v", o)
	}
}

// An overlay must not write outside of the copy, nor vanish silently.
func TestOverlaysAreRefused(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{"site.pp": "a", "data/x": "x", ".pulleyignore": "private\n"})
	write(t, outside, map[string]string{"victim": "x"})
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	from := func(files map[string]string) string {
		d := t.TempDir()
		write(t, d, files)
		return d
	}
	for _, c := range []struct {
		overlay Overlay
		cause   string
	}{
		{Overlay{"link", from(map[string]string{"victim": "y"}), ""}, "link in the folder to publish is not a folder"},
		{Overlay{"", from(map[string]string{"link/victim": "y"}), ""}, "link is a folder in one of both"},
		{Overlay{"", from(map[string]string{"data": "y"}), ""}, "data is a folder in one of both"},
		{Overlay{"site.pp", from(map[string]string{"y": "y"}), ""}, "site.pp in the folder to publish is not a folder"},
		{Overlay{"private", from(map[string]string{"y": "y"}), ""}, "private/y is left out of the release (.pulleyignore:1: private)"},
		{Overlay{"", from(nil), ""}, "it contains no files"},
		{Overlay{"", "/none", ""}, "no such file"},
		{Overlay{"", "file:///none/x.git", ""}, "git clone: exit status 128"},
		{Overlay{"", "file://u:secret@localhost/none/x.git", ""}, "cannot use overlay file://localhost/none/x.git"},
		{Overlay{"", from(map[string]string{"y": "y"}), "v1"}, "it is in no git repository"},
	} {
		f, err := Open(context.Background(), dir, Options{CacheDir: t.TempDir(), Overlays: []Overlay{c.overlay}})
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.cause) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v, want %q", c.overlay, err, c.cause)
		}
	}
	if text, err := os.ReadFile(filepath.Join(outside, "victim")); string(text) != "x" || err != nil {
		t.Errorf("outside: %q %v", text, err)
	}
}
