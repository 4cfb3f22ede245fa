package publish

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/publish/controlrepo"
	"pulley/internal/publish/source"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// treeOf returns the manifest of a tree: content by path, with "-> " before a link's target and "#!" before an
// executable.
func treeOf(t *testing.T, files map[string]string) *content.Manifest {
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
	return m
}

// Operators promote by this list. It must contain each change once.
func TestCompareListsEachChangeOnce(t *testing.T) {
	before := treeOf(t, map[string]string{
		"same": "same", "gone": "gone\n", "edited": "one\ntwo\nthree\n", "a/old.pp": "moved\n", "b/twin.pp": "twin\n", "link": "-> same",
		"mode": "#!x\n", "empty": "", "binary": "\x00one", "latin": "gr\xf6\xdfe", "turns": "file\n", "edited.mode": "x\n",
	})
	after := treeOf(t, map[string]string{
		"same": "same", "new": "new", "edited": "one\n2\nthree\n", "c/old.pp": "moved\n", "a/new.pp": "moved\n", "c/twin.pp": "twin\n", "link": "-> edited",
		"mode": "x\n", "empty2": "", "binary": "\x00two", "latin": "gr\xf6\xdfer", "turns": "-> same", "edited.mode": "#!x\n",
	})
	var got []string
	for _, f := range compare(before, after, nil) {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Change, f.Path, f.Describe())))
	}
	want := []string{
		"added a/new.pp",
		"changed binary",
		"renamed c/old.pp from a/old.pp",
		"renamed c/twin.pp from b/twin.pp",
		"changed edited",
		"changed edited.mode file → executable",
		"removed empty",
		"added empty2",
		"removed gone",
		"changed latin",
		"changed link target same → edited",
		"changed mode executable → file",
		"added new",
		"changed turns file → link",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if c := compare(before, after, []string{"b"}); len(c) != 1 || c[0].OldPath != "b/twin.pp" {
		t.Errorf("a rename out of a folder is not a change of the folder: %+v", c)
	}
}

// A hotfix must not be built on a later release, because nodes with the old release could not use its delta. It must
// not use a taken position, because it could not be published.
func TestParentIsTheReleaseBelow(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	aRelease := func(version, line string, seq int64, hour int) release.SignedRelease {
		return release.SignedRelease{Release: release.Release{Version: version, At: at.Add(time.Duration(hour) * time.Hour),
			Content: content.Record{Chain: content.Chain{Line: line, Seq: seq}}}}
	}
	all := []release.SignedRelease{
		aRelease("1.0.0", "1.0.0", 0, 0), aRelease("1.2.0", "1.0.0", 1, 1), aRelease("1.10.0", "1.0.0", 2, 2),
		aRelease("2.0.0-rc1", "2.0.0-rc1", 0, 4), aRelease("2.0.0", "2.0.0-rc1", 1, 3),
	}
	for version, want := range map[string]struct {
		parent string
		last   bool
	}{
		"1.2.1": {"1.2.0", false}, "1.10.1": {"1.10.0", true}, "1.9.0": {"1.2.0", false}, "3.0.0": {"2.0.0", true},
		"2.0.0": {"2.0.0-rc1", false}, "0.1.0": {"2.0.0-rc1", false}, "1.0.0": {"2.0.0-rc1", false},
	} {
		parent, last := parentOf(version, all)
		if parent == nil || parent.Version != want.parent || last != want.last {
			t.Errorf("%s: %v, last %t; want %s, %t", version, parent, last, want.parent, want.last)
		}
	}
	if parent, _ := parentOf("1.0.0", nil); parent != nil {
		t.Errorf("of nothing: %v", parent)
	}
}

// A note that counts findings must name a command that lists them, and what is broken in modules of others is shown at once.
func TestWarningsAreListedByTheirCommand(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "Puppetfile"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var notes []string
	f := &Folder{Folder: &source.Folder{Root: root, Facts: source.Facts{Modules: source.G10k}}, Dir: "my repo"}
	f.noteWarnings(Reporter{Note: func(n Note) { notes = append(notes, n.String()) }}, controlrepo.Report{Findings: []controlrepo.Finding{
		{File: "a.pp", Rule: controlrepo.ExportedResource, Severity: controlrepo.Warning},
		{File: "modules/m/b.pp", Rule: controlrepo.ExportedResource, Severity: controlrepo.Warning, Vendored: true},
		{File: "modules/m/c.pp", Rule: controlrepo.UnusedSyntax, Severity: controlrepo.Warning, Vendored: true, Problem: "it is broken"},
	}}, FolderOptions{Ref: "v1", Overlays: []source.Overlay{{Folder: "data", Source: "../x", Ref: "main"}}})
	want := []string{"modules/m/c.pp: warning: it is broken [unused_syntax]",
		"validation found 1 warning: run `pulley validate 'my repo' --puppetfile g10k --git-ref v1 --overlay 'data=../x#main'` to list it"}
	if !slices.Equal(notes, want) {
		t.Errorf("got %q", notes)
	}
}
