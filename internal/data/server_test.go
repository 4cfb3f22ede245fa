package data

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
)

// Three Puppet servers that follow the data of thousands of nodes must not load etcd while nothing changes, and a changed key must be
// beside them at once: each look is one request, and a generation costs what differs.
func TestServerDataCostsWhatChanges(t *testing.T) {
	// Not parallel: it counts the requests of this process.
	server, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 2}\n")
	dev, dir := model.Ref{Environment: "dev"}, t.TempDir()
	const layers = 100
	at := time.Now()
	set := func(texts map[hieradata.Layer][]byte) {
		t.Helper()
		d, err := targets.In(s).Desires(t.Context(), dev)
		if err != nil {
			t.Fatal(err)
		}
		data, err := targets.In(s).Data(t.Context(), dev, d)
		if err == nil {
			_, err = targets.In(s).ChangeData(t.Context(), dev, d, data, texts, targets.Author{By: "ann", At: at})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	layer := func(i int) hieradata.Layer { return hieradata.ForNode(fmt.Sprintf("web%d", i)) }
	all := map[hieradata.Layer][]byte{}
	for i := range layers {
		all[layer(i)] = fmt.Appendf(nil, "app::port: %d\n", i)
	}
	withSecret, err := hieradata.Parse([]byte("app::user: x\napp::password: '" + hieradata.SecretText("0123456789abcdef", "YWdl") + "'\n"))
	if err != nil {
		t.Fatal(err)
	}
	all["common"] = withSecret
	set(all)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	results := make(chan ServerData)
	proceed := make(chan bool)
	go Follow(ctx, s, dev, dir, time.Millisecond, func(d ServerData, err error) {
		if err != nil {
			t.Error(err)
		}
		results <- d
		<-proceed
	})
	// Follow stands still between a look and the next.
	look := func() (ServerData, int) {
		t.Helper()
		before := server.Requests()
		proceed <- true
		d := <-results
		return d, server.Requests() - before
	}
	first := <-results
	secret := []string{"common: app::password"}
	if !first.New || !slices.Equal(first.Secrets, secret) {
		t.Errorf("the first look is %+v", first)
	}
	if d, n := look(); n != 1 || d.New || d.Folder != first.Folder {
		t.Errorf("a look without a change is %d requests, want 1: %+v", n, d)
	}

	set(map[hieradata.Layer][]byte{layer(7): []byte("app::port: 8080\n")})
	second, n := look()
	if !second.New || n > 4 || !slices.Equal(second.Secrets, secret) { // target, generation, changed layer, layer with secrets
		t.Errorf("a changed key is %d requests, want at most 4: %+v", n, second)
	}
	read := func(folder string, layer hieradata.Layer) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(folder, layer.File()))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	same := func(layer hieradata.Layer) bool {
		a, err := os.Stat(filepath.Join(first.Folder, layer.File()))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.Stat(filepath.Join(second.Folder, layer.File()))
		return err == nil && os.SameFile(a, b)
	}
	if got := read(first.Folder, layer(7)) + read(second.Folder, layer(7)); got != "app::port: 7\napp::port: 8080\n" || same(layer(7)) {
		t.Errorf("the changed layer is %q in both folders", got)
	}
	for i := range layers {
		if i != 7 && !same(layer(i)) {
			t.Errorf("%s was written again", layer(i))
		}
	}

	// A file that somebody changed beside the server stays in its generation.
	if err := os.WriteFile(filepath.Join(second.Folder, layer(8).File()), []byte("app::port: 1\n"), 0); err != nil {
		t.Fatal(err)
	}
	set(map[hieradata.Layer][]byte{layer(7): nil})
	third, _ := look()
	if got := read(third.Folder, layer(8)); got != "app::port: 8\n" {
		t.Errorf("a file that was changed beside the server is in the next generation: %q", got)
	}
	if _, err := os.Lstat(filepath.Join(third.Folder, layer(7).File())); !os.IsNotExist(err) {
		t.Errorf("the removed layer is in the folder: %v", err)
	}

	// A folder or a link that somebody removed is restored.
	if err := os.RemoveAll(third.Folder); err != nil {
		t.Fatal(err)
	}
	look()
	if got := read(filepath.Join(dir, CurrentData), layer(8)); got != "app::port: 8\n" {
		t.Errorf("a removed folder is not restored: %q", got)
	}
	if err := os.Remove(filepath.Join(dir, CurrentData)); err != nil {
		t.Fatal(err)
	}
	if d, _ := look(); !d.New || d.Folder != third.Folder {
		t.Errorf("a removed link is not restored: %+v", d)
	}
}
