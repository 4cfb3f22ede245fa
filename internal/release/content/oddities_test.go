package content

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A link or a name that no node reads as its author meant must be shown, or a missing file is found on a node.
func TestOdditiesAreNamed(t *testing.T) {
	t.Parallel()
	m := mustRead(t, folder{
		"a": "x", "b": "-> a", "c": "-> b", "d/e": "x", "f": "-> d", "g": "-> f/../d/e", // fine
		"abs": "-> /etc/passwd", "out": "-> d/../../x", "far": "-> abs", "gone": "-> nothing", "gone2": "-> gone", "me": "-> me",
		"ping": "-> pong", "pong": "-> ping", "README": "x", "readme": "y", "D2/x": "x", "d2/x": "x", "\xff": "x", "\xff.d/a": "x",
		"s/up": "-> ..", "s/self": "-> .", "u/v": "-> ../w", "w/y/u": "-> ../../u", "one/two": "-> ../three", "three/x": "x", // around; one/two is not
		" lead": "x", "line\nbreak/a": "x", "tail ": "x",
		`a\x2d`: "x", "t\tb": "x", "e\u0301": "x", "é": "y",
	}.make(t))
	var got []string
	for _, o := range m.Oddities() {
		got = append(got, o.Path+" "+string(o.Code)+" "+o.Other)
	}
	want := []string{
		" lead name_control ", "abs link_outside /etc/passwd", "d2 name_ambiguous D2", "far link_outside abs", "gone link_dangling nothing", "gone2 link_dangling gone",
		"line\nbreak name_control ", "me link_loop me", "out link_outside d/../../x", "ping link_loop pong", "pong link_loop ping", "readme name_ambiguous README",
		"s/self link_around .", "s/up link_around ..", "tail  name_control ", "u/v link_around ../w", "w/y/u link_around ../../u",
		"é name_ambiguous e\u0301", "\xff name_not_utf8 ", "\xff.d name_not_utf8 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// A published link is no way for a release to write, read or change anything outside of its folder on a node.
func TestInstallFollowsNoLink(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	folder{"victim": "untouched", "dir/keep": "untouched"}.write(t, outside)
	before := listed(t, outside)
	src := objects{}
	first := src.build(t, folder{"files/x": "one", "link": "-> " + outside, "to": "-> " + filepath.Join(outside, "victim"), "z/a": "x"}.make(t), Record{}, "1.0.0")
	// Each link becomes a folder or a file of this name, and each folder a link.
	second := src.build(t, folder{"files": "-> " + outside, "link/victim": "new", "link/dir/keep": "new", "to": "new", "z": "-> " + outside}.make(t), first, "1.0.0")
	s := newStore(t, filepath.Join(quick(t), "state"))
	for _, r := range []Record{first, second, first, second} {
		mustInstall(t, s, src, r)
		if err := s.Verify(r.Tree); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Collect(nil, 0); err != nil { // the removed tree is reused by the next installation
			t.Fatal(err)
		}
	}
	if after := listed(t, outside); !slices.Equal(before, after) {
		t.Errorf("outside of the tree:\n%q\nbefore\n%q", after, before)
	}
	// A path through a link is refused, whatever the order of the entries.
	for _, entries := range [][]Entry{
		{linkEntry("a", outside), fileEntry("a/victim", "x")},
		{dirEntry("a"), linkEntry("a/b", outside), dirEntry("a/b/dir"), fileEntry("a/b/dir/keep", "x")},
	} {
		if err := checkEntries(entries); err == nil {
			t.Errorf("%v was accepted", entries)
		}
	}
	if _, err := ReadFiles(context.Background(), src, second, func(string) bool { return true }); err != nil {
		t.Error(err)
	}
}

func listed(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		text := ""
		if d.Type().IsRegular() {
			b, _ := os.ReadFile(p)
			text = string(b)
		}
		all = append(all, strings.Join([]string{p, info.Mode().String(), info.ModTime().String(), text}, " "))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
