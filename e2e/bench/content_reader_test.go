//go:build bench

package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"pulley/internal/release/content"
)

const (
	readUpdates  = 200
	g10kUpdates  = 5 // more take too long
	readersFirst = commits - 40
)

// seen counts the reads of complete trees: equal to a published tree, mixed, or unreadable.
type seen struct{ whole, mixed, unreadable int }

// benchReaders repeatedly hashes a node's tree during updates, as a Puppet run reads it.
func benchReaders(t *testing.T, p *pulley, others *peers, dir string) {
	t.Helper()
	fmt.Println("| what a reader saw | updates | reads | no published tree | could not be read |\n|---|---|---|---|---|")
	row := func(name string, updates int, s seen, err error) {
		if err != nil {
			fmt.Printf("| %s | %s | | | |\n", name, failure(err))
			return
		}
		fmt.Printf("| %s | %d | %d | %d | %d |\n", name, updates, s.whole+s.mixed+s.unreadable, s.mixed, s.unreadable)
	}
	turns := func(round int) int { // cyclic, so that each release is deleted before its next turn
		return readersFirst + round%(commits-readersFirst+1)
	}

	node := filepath.Join(dir, "pulley")
	if err := p.install(p.endpoint, node, turns(0)); err != nil {
		t.Fatal(err)
	}
	trees, err := content.OpenStore(node)
	if err != nil {
		t.Fatal(err)
	}
	s, err := reading(t, p.h, func() (string, func(), error) {
		for {
			tree, err := trees.Current()
			if err != nil {
				return "", nil, err
			}
			release, err := trees.Lock(tree)
			var gone *content.NotInstalledError
			if errors.As(err, &gone) { // the tree was replaced and collected in between
				continue
			}
			return trees.Path(tree), release, err
		}
	}, func(ctx context.Context) error {
		for round := 1; round <= readUpdates && ctx.Err() == nil; round++ {
			if err := p.install(p.endpoint, node, turns(round)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	row("**Pulley**", readUpdates, s, nil)

	inPlace := func(tree string) func() (string, func(), error) {
		return func() (string, func(), error) { return tree, func() {}, nil }
	}
	peer := func(name string, updates int, tree string, begin, update func() error) {
		var s seen
		err := p.h.checkout(turns(0))
		if err == nil {
			err = begin()
		}
		if err == nil {
			s, err = reading(t, p.h, inPlace(tree), func(context.Context) error {
				for round := 1; round <= updates; round++ {
					if err := errors.Join(p.h.checkout(turns(round)), update()); err != nil {
						return err
					}
				}
				return nil
			})
		}
		row(name, updates, s, err)
	}
	clone := filepath.Join(dir, "git")
	peer("`git fetch`, `git checkout`", readUpdates, clone, func() error { return command("git", "clone", "-q", "--branch", "main", "file://"+p.h.origin, clone) }, func() error {
		return errors.Join(command("git", "-C", clone, "fetch", "-q", "origin", "main"), command("git", "-C", clone, "checkout", "-q", "--force", "--detach", "FETCH_HEAD"))
	})
	g10k := others.g10k(filepath.Join(dir, "g10k"))
	peer("g10k", g10kUpdates, g10k.tree(), g10k.begin, g10k.run)
	fmt.Println()
}

// reading repeatedly reads the tree from open until update has ended.
func reading(t *testing.T, h *history, open func() (string, func(), error), update func(context.Context) error) (seen, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var s seen
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		for ctx.Err() == nil && failed == nil {
			var tree string
			var done func()
			if tree, done, failed = open(); failed != nil {
				cancel()
				return
			}
			hash, err := treeHash(tree)
			done()
			switch {
			case err != nil:
				s.unreadable++
			case slices.Contains(h.hashes, hash):
				s.whole++
			default:
				s.mixed++
			}
		}
	})
	err := update(ctx)
	cancel()
	wg.Wait()
	return s, errors.Join(err, failed)
}
