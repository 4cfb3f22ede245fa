//go:build bench

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/release/content"
)

const (
	installRounds  = 15
	installFolders = 1200
	installFiles   = 9 // of each folder
)

// Measures the installation of a large tree on an empty node, beside tar. Both read local files, without etcd.
func TestBenchInstall(t *testing.T) {
	requirePeers(t, "tar")
	dir := t.TempDir()
	tree, archive := filepath.Join(dir, "tree"), filepath.Join(dir, "tree.tar")
	if err := errors.Join(generateTree(tree), command("tar", "-cf", archive, "-C", tree, ".")); err != nil {
		t.Fatal(err)
	}
	want, err := treeHash(tree)
	if err != nil {
		t.Fatal(err)
	}
	objects := objectFolder(filepath.Join(dir, "objects"))
	r := objects.build(t, tree)
	at := func(name string, round int) string { return filepath.Join(dir, fmt.Sprintf("%s-%d", name, round)) }
	var stores [installRounds]*content.Store
	timings := inTurn(t, installRounds, func(int) string { return want }, []job{
		{
			name: "**Pulley**", flushes: true, tree: func(round int) string { return stores[round].Path(r.Tree) },
			prepare: func(round int) (err error) { stores[round], err = content.OpenStore(at("pulley", round)); return err },
			run:     func(round int) error { return stores[round].Install(t.Context(), objects, r) },
		},
		{
			name: "`tar -x`", tree: func(round int) string { return at("tar", round) },
			prepare: func(round int) error { return os.Mkdir(at("tar", round), 0o755) },
			run:     func(round int) error { return command("tar", "-xf", archive, "-C", at("tar", round)) },
		},
	})
	fmt.Printf("Installation of %d files, %.1f MB in packs, %d runs each, in turn\n\n", r.Files, float64(r.Base.Stored)/1e6, installRounds)
	printTimings(timings)
	var pairs figures
	for round := range installRounds {
		pairs = append(pairs, timings[0].wall[round]/timings[1].wall[round])
	}
	fmt.Printf("Of tar, pair by pair: %s\n\n", pairs.spread(2))
}

// objectFolder is a content.Source in a folder.
type objectFolder string

func (f objectFolder) Object(_ context.Context, hash string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(f), hash))
}

func (f objectFolder) Deltas(context.Context, string, int64, int64) ([][]byte, error) {
	return nil, errors.New("no deltas")
}

func (f objectFolder) build(t *testing.T, tree string) content.Record {
	t.Helper()
	m, err := content.ReadTree(tree, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(string(f), 0o755); err != nil {
		t.Fatal(err)
	}
	r, _, err := content.Build(t.Context(), tree, m, content.Parent{}, "1.0.0", func(o content.Object, b []byte) error {
		return os.WriteFile(filepath.Join(string(f), o.Hash), b, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// generateTree writes files of words, a third of their size when compressed.
func generateTree(tree string) error {
	random := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 4000)
	for i := range words {
		words[i] = fmt.Sprintf("%x", random.Uint64()>>(8*random.IntN(7)))
	}
	for d := range installFolders {
		dir := filepath.Join(tree, fmt.Sprintf("modules/m%d/manifests/part%d", d/12, d%12))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for f := range installFiles {
			var text strings.Builder
			for range 20 + random.IntN(300) {
				text.WriteString(words[random.IntN(len(words))])
				text.WriteString([]string{" ", "\n  ", " => "}[random.IntN(3)])
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d.pp", f)), []byte(text.String()), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
