package content

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// between is a context that calls a function at the n-th check for cancellation. An installation checks before each
// name that it creates.
type between struct {
	context.Context
	n  *atomic.Int64
	do func()
}

func (b between) Err() error {
	if b.n.Add(-1) == -1 {
		b.do()
	}
	return b.Context.Err()
}

// The disk fills up at any point of any way to a release. Installed trees must remain, no partial file must be left,
// and the tree kept for reuse is deleted before the release fails.
func TestDiskFullOnAnyWay(t *testing.T) {
	t.Parallel()
	dir := onSmallDisk(t, "size=6m,nr_inodes=400")
	if dir == "" {
		return
	}
	src := objects{}
	f := folder{"link": "-> run", "run": "#!/bin/sh\n", "empty/": ""}
	var line []Record
	for n := range 4 {
		f = maps.Clone(f)
		for i := range 3 {
			f[fmt.Sprintf("modules/m%d/r%d", i, n)] = noise(uint64(100*n+i), 5000)
		}
		f["link"] = fmt.Sprint("-> modules/m", n)
		f["changes"] = noise(uint64(n), 20_000)
		line = append(line, src.build(t, f.make(t), append([]Record{{}}, line...)[n], "1.0.0"))
	}
	type fill = func(*testing.T, string, int64) func()
	for way, c := range map[string]struct {
		have []Record
		to   Record
		keep int // of have, if a tree is kept for reuse
	}{
		"cold":          {[]Record{line[0]}, line[3], 0},
		"delta":         {[]Record{line[2]}, line[3], 0},
		"back":          {[]Record{line[3]}, line[1], 0},
		"previous tree": {[]Record{line[0], line[1], line[2]}, line[3], 2},
	} {
		for resource, leave := range map[string]fill{"bytes": leave, "inodes": leaveInodes} {
			failed := 0
			for n := int64(0); ; n++ {
				s := newStore(t, filepath.Join(dir, fmt.Sprint(way, resource, n)))
				var before []string
				for _, r := range c.have {
					mustInstall(t, s, src, r)
					mustActivate(t, s, r.Tree)
					before = append(before, r.Tree)
				}
				if c.keep > 0 {
					if removed, _, err := s.Collect(nil, c.keep); err != nil || len(removed) != 1 {
						t.Fatalf("%q, %v", removed, err)
					}
					before = before[1:]
				}
				if way == "cold" { // no installed tree helps
					if err := os.Remove(s.manifestFile(line[0].Tree)); err != nil {
						t.Fatal(err)
					}
				}
				full, undo := false, func() {}
				var left atomic.Int64
				left.Store(n)
				ctx := between{t.Context(), &left, func() { full, undo = true, leave(t, dir, 0) }}
				err := s.Install(ctx, src, c.to)
				undo()
				if err == nil {
					wantTrees(t, s, append(before, c.to.Tree)...)
				} else {
					failed++
					if !errors.Is(err, unix.ENOSPC) {
						t.Fatalf("%s, full at %d: %v", way, n, err)
					}
					wantTrees(t, s, before...)
					mustInstall(t, s, src, c.to)
					wantTrees(t, s, append(before, c.to.Tree)...)
				}
				wantCurrent(t, s, c.have[len(c.have)-1].Tree)
				if err := os.RemoveAll(s.dir); err != nil {
					t.Fatal(err)
				}
				if !full {
					break
				}
			}
			if failed < 5 {
				t.Errorf("%s: only %d points of failure with %s: the disk was not full", way, failed, resource)
			}
		}
	}
}

// The tree kept for reuse must never prevent an installation.
func TestPreviousTreeIsDeletedForRoom(t *testing.T) {
	dir := onSmallDisk(t, "size=8m")
	if dir == "" {
		return
	}
	src := objects{}
	large := func(n uint64) folder { return folder{"large": noise(n, 1<<20), "version": fmt.Sprint(n)} }
	s := newStore(t, dir)
	var line []Record
	for n := range 4 {
		line = append(line, src.build(t, large(uint64(n)).make(t), Record{}, fmt.Sprint(n, ".0.0")))
	}
	mustInstall(t, s, src, line[0])
	mustInstall(t, s, src, line[1])
	mustActivate(t, s, line[1].Tree)
	if removed, freed, err := s.Collect(nil, 2); err != nil || len(removed) != 0 || freed != 0 {
		t.Fatalf("%q, %d, %v", removed, freed, err)
	}
	mustInstall(t, s, src, line[2])
	mustActivate(t, s, line[2].Tree)
	if removed, _, err := s.Collect(nil, 2); err != nil || len(removed) != 1 {
		t.Fatalf("%q, %v", removed, err)
	}
	if left, err := os.ReadDir(s.previous()); err != nil || len(left) != 2 {
		t.Fatalf("no previous tree: %v, %v", left, err)
	}
	defer leave(t, dir, 2_000_000)() // and 3% of 8 MiB: too little for a release and its fetched objects
	mustInstall(t, s, src, line[3])
	wantTrees(t, s, line[1].Tree, line[2].Tree, line[3].Tree)
	if left, err := os.ReadDir(s.previous()); err == nil && len(left) > 0 {
		t.Errorf("the previous tree is still there: %v", left)
	}

	// With space for only one tree, collection keeps no tree for reuse.
	mustActivate(t, s, line[3].Tree)
	removed, freed, err := s.Collect(nil, 1)
	if err != nil || len(removed) != 2 || freed < 2<<20 {
		t.Errorf("%q, %d bytes, %v", removed, freed, err)
	}
}
