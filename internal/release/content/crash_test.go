//go:build failpoint

package content

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const crashDir = "PULLEY_TEST_CRASH_DIR"

// TestCrashChild is the process to kill: it installs and activates a release.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		return // only the parent test starts it
	}
	var r Record
	b, err := os.ReadFile(filepath.Join(dir, "record"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, filepath.Join(dir, "state"))
	mustInstall(t, s, folderSource(dir), r)
	mustActivate(t, s, r.Tree)
}

// situation is a node before an installation, one for each way.
type situation struct {
	src      objects
	roots    map[string]string // by tree
	to       Record
	prepare  func(t *testing.T, s *Store) // activates a release at the end
	previous bool
	later    Record // the release after it
}

// situations returns one situation for each way to a release.
func situations(t *testing.T) map[string]situation {
	t.Helper()
	src, roots := objects{}, map[string]string{}
	f := folder{"link": "-> run", "run": "#!/bin/sh\n", "empty/": "", "large": noise(1, 700<<10), "again": noise(2, 700<<10)}
	for i := range 20 {
		f[fmt.Sprintf("modules/m%d/manifests/init.pp", i)] = fmt.Sprintf("class m%d {}", i)
	}
	var line []Record
	for n := range 5 {
		f = maps.Clone(f)
		f["version"] = fmt.Sprint(n)
		f[fmt.Sprintf("modules/m%d/manifests/init.pp", n)] = fmt.Sprintf("class changed%d {}", n)
		delete(f, fmt.Sprintf("modules/m%d/manifests/init.pp", n+10))
		f[fmt.Sprintf("modules/new%d/files/run", n)] = fmt.Sprintf("#!/bin/sh\n: %d", n)
		f["link"] = fmt.Sprintf("-> modules/new%d", n)
		root := f.make(t)
		parent := Record{}
		if n > 0 {
			parent = line[n-1]
		}
		line = append(line, src.build(t, root, parent, "1.0.0"))
		roots[line[n].Tree] = root
	}
	other := golden.make(t)
	old := src.build(t, other, Record{}, "0.1.0")
	roots[old.Tree] = other
	install := func(which ...Record) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) {
			for _, r := range which {
				mustInstall(t, s, src, r)
				mustActivate(t, s, r.Tree)
			}
		}
	}
	return map[string]situation{
		"from nothing": {src, roots, line[1], install(old), false, line[3]},
		"by delta":     {src, roots, line[2], install(line[0], line[1]), false, line[3]},
		"with a previous tree": {src, roots, line[4], func(t *testing.T, s *Store) {
			install(line[0], line[1], line[2], line[3])(t, s)
			if removed, _, err := s.Collect(nil, 2); err != nil || len(removed) != 2 {
				t.Fatalf("%q, %v", removed, err)
			}
		}, true, line[3]},
		"back": {src, roots, line[0], install(line[3], line[4]), false, line[3]},
	}
}

// A power cut, an OOM kill or a reboot must leave the node with a complete release. The next run must reach the same
// result as without the crash.
func TestCrashAnywhere(t *testing.T) {
	for name, c := range situations(t) {
		for _, place := range CrashPoints {
			if place == "install:previous-taken" && !c.previous {
				continue
			}
			t.Run(name+"/"+place, func(t *testing.T) { crashAndRecover(t, c, place) })
		}
	}
}

func crashAndRecover(t *testing.T, c situation, place string) {
	dir := quick(t)
	c.store(t, dir)
	s := newStore(t, filepath.Join(dir, "state"))
	c.prepare(t, s)
	old, err := s.Current()
	if err != nil || old == "" {
		t.Fatalf("%q, %v", old, err)
	}
	before := trees(t, s)

	crash(t, dir, place)

	s = &Store{Reserve: 0, Now: s.Now, layout: s.layout} // the state for the next process, before it cleans up
	current, err := s.Current()
	if swapped := place == "install:after-swap"; err != nil || swapped && current != c.to.Tree || !swapped && current != old {
		t.Errorf("current is %q, %v", current, err)
	}
	want := before
	visible := slices.Index(CrashPoints, place) >= slices.Index(CrashPoints, "install:after-rename")
	if visible {
		want = append(slices.Clone(before), c.to.Tree)
	}
	c.wantWhole(t, s, want)

	s = newStore(t, s.dir)
	mustInstall(t, s, c.src, c.to)
	mustActivate(t, s, c.to.Tree)
	c.wantWhole(t, s, append(slices.Clone(before), c.to.Tree))
	wantTrees(t, s, append(slices.Clone(before), c.to.Tree)...)
	if !visible { // else nothing was left to install: the next installation deletes the fetched objects
		wantEmptySpool(t, s)
	}
	if _, _, err := s.Collect(nil, 0); err != nil {
		t.Error(err)
	}
	c.wantWhole(t, s, []string{c.to.Tree})
	wantTrees(t, s, c.to.Tree)
	left, err := os.ReadDir(filepath.Join(s.dir, releasesDir))
	if err != nil || len(left) > 3 { // the tree, its manifest, its lock
		t.Errorf("left: %v, %v", left, err)
	}
	if left, err := os.ReadDir(s.previous()); err == nil && len(left) > 0 {
		t.Errorf("left for reuse: %v", left)
	}
	mustInstall(t, s, c.src, c.later)
	c.wantWhole(t, s, []string{c.to.Tree, c.later.Tree})
	wantEmptySpool(t, s)
}

// store writes the child's input to files.
func (c situation) store(t *testing.T, dir string) {
	t.Helper()
	for name, b := range c.src {
		if err := folderSource(dir).put(strings.ReplaceAll(name, "/", "."), b); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(c.to)
	if err == nil {
		err = folderSource(dir).put("record", b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func trees(t *testing.T, s *Store) []string {
	t.Helper()
	there, err := s.installed()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, tree := range there {
		all = append(all, tree.tree)
	}
	slices.Sort(all)
	return all
}

// wantWhole checks, by reading everything, that exactly these trees are visible, each with its manifest.
func (c situation) wantWhole(t *testing.T, s *Store, want []string) {
	t.Helper()
	want = slices.Compact(slices.Sorted(slices.Values(want)))
	if got := trees(t, s); !slices.Equal(got, want) {
		t.Errorf("trees are %q, want %q", got, want)
	}
	for _, tree := range want {
		wantPublished(t, c.roots[tree], s.Path(tree))
		if k := mustLoad(t, s, tree); k.record.Tree != tree || k.record.Check() != nil {
			t.Errorf("the record beside %s is %+v", tree, k.record)
		}
		if _, _, ok := s.Position(tree); !ok {
			t.Errorf("%s has lost its position", tree)
		}
	}
}

func crash(t *testing.T, dir, place string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), crashDir+"="+dir, "PULLEY_FAILPOINT="+place)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("it did not die: %v\n%s", err, out)
	}
	status := exit.Sys().(syscall.WaitStatus)
	if status.Signal() != syscall.SIGKILL {
		t.Fatalf("it died otherwise: %v\n%s", err, out)
	}
}

// After a crash during collection or repair, the next run must repair the node.
func TestCrashThenDangling(t *testing.T) {
	c := situations(t)["by delta"]
	s := newStore(t, quick(t))
	c.prepare(t, s)
	current, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(s.Path(current)); err != nil { // its manifest and its lock remain
		t.Fatal(err)
	}
	wantCurrent(t, s, "")
	s = newStore(t, s.dir)
	mustInstall(t, s, c.src, c.to)
	mustActivate(t, s, c.to.Tree)
	if _, _, err := s.Collect(nil, 2); err != nil {
		t.Error(err)
	}
	c.wantWhole(t, s, trees(t, s))
}
