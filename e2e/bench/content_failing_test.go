//go:build bench

package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// One peer that cannot read a repository must not cost the table of the others.
func TestBenchPeerThatFails(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(other, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	want, err := treeHash(dir)
	if err != nil {
		t.Fatal(err)
	}
	runs, tree := 0, func(int) string { return dir }
	all := inTurn(t, 3, func(int) string { return want }, []job{
		{name: "own", flushes: true, tree: tree, run: func(int) error { return nil }},
		{name: "unprepared", failed: errors.New("no tree"), tree: tree, run: func(int) error { t.Error("it ran"); return nil }},
		{name: "wrong", tree: func(int) string { return other }, run: func(int) error { runs++; return nil }},
	})
	if len(all) != 3 || len(all[0].wall) != 3 || all[0].failed != nil || all[1].failed == nil || all[2].failed == nil || runs != 1 {
		t.Errorf("%d runs: %+v", runs, all)
	}
	printTimings(all)
	if got := failure(errors.New("g10k: x\n\t| y")); got != "failed: g10k: x / y" || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
}
