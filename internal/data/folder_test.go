package data

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/publish/prune"
	"pulley/internal/testbed/etcdtest"
)

// etcd takes 128 operations and 1.5 MiB in one transaction. A folder with more must still be one generation, from which no prune took
// a layer.
func TestLargeFolderIsOneGeneration(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 400}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	author := promotion.Author{Author: targets.Author{By: "ann", At: time.Now()}}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "nodes"), 0o700); err != nil {
		t.Fatal(err)
	}
	const nodes = 300
	for i := range nodes {
		text := fmt.Sprintf("k: %d\nlong: %s\n", i, strings.Repeat("x", 10<<10)) // 3 MB in all
		if err := os.WriteFile(filepath.Join(dir, "nodes", fmt.Sprintf("web%d.yaml", i+1)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	prune, err := prune.In(s).BeginPrune(ctx, "ben")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Import(ctx, s, dev, dir, false, nil, author); err == nil || !strings.Contains(err.Error(), "ben") {
		t.Errorf("an import during a prune: %v", err)
	}
	if err := prune.Close(); err != nil {
		t.Fatal(err)
	}
	done, err := Import(ctx, s, dev, dir, false, nil, author)
	if err != nil || len(done.Layers) != nodes || done.Generation != 1 {
		t.Fatalf("%d layers, data %d, %v", len(done.Layers), done.Generation, err)
	}
	if reverted, err := Revert(ctx, s, dev, 0, author); err != nil || len(reverted.Layers) != nodes {
		t.Fatalf("%d layers, %v", len(reverted.Layers), err)
	}
	if _, err := Revert(ctx, s, dev, 1, author); err != nil {
		t.Fatal(err)
	}
	if _, files, err := Export(ctx, s, dev, dir, false); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
	if again, err := Import(ctx, s, dev, dir, false, nil, author); err != nil || again.Made {
		t.Errorf("%+v, %v", again, err)
	}
}

// A layer that does not fit into etcd must be refused with its size, and links must not lead out of the folder.
func TestFolderRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret.yaml")
	err := errors.Join(os.WriteFile(outside, []byte("a: 1\n"), 0o600), os.Symlink(outside, filepath.Join(dir, "common.yaml")),
		os.WriteFile(filepath.Join(dir, "environment.yaml"), []byte("a: "+strings.Repeat("x", 3<<20)+"\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := hieradata.Folder(os.DirFS(dir))
	if err == nil || !strings.Contains(err.Error(), "common.yaml is not a file") || !strings.Contains(err.Error(), "environment.yaml: ") {
		t.Errorf("%v: %v", maps.Keys(layers), err)
	}
	_, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 1}\n")
	value := strings.Repeat("x", 600<<10)
	_, err = EditLayer(t.Context(), s, model.Ref{Environment: "dev"}, LayerEdit{Keys: []KeyEdit{{"a", &value}}}, promotion.Author{Author: targets.Author{By: "ann", At: time.Now()}})
	if err == nil || !strings.Contains(err.Error(), "a layer may be at most") {
		t.Errorf("%v", err)
	}
}
