package stage

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/hosts"
	"pulley/internal/model"
	"pulley/internal/release/content"
)

// Ten thousand changed hosts, each with an exported key, should delay a run by 150 ms at most: from the list as etcd has it to both files on disk.
// docs/performance.md has the measured time.
func BenchmarkTakeTenThousandHosts(b *testing.B) {
	dir, tree := b.TempDir(), strings.Repeat("a", 64)
	trees, err := content.OpenStore(dir)
	if err != nil {
		b.Fatal(err)
	}
	c := &Content{trees: trees, dir: filepath.Join(dir, "data"), log: slog.New(slog.DiscardHandler)}
	file := filepath.Join(trees.Path(tree), "environments", "dev.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("hosts: {exports: [ssh.ed25519.key]}\nroles:\n  web: {cardinality: 10000, flavor: small}\n  balancer: {cardinality: 1, sees: [web]}\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	list, exports := map[string]model.Host{}, map[string]model.Export{}
	for i := range 10_000 {
		name := fmt.Sprint("web", i+1)
		exports[name] = model.Export{Facts: map[string]json.RawMessage{"ssh.ed25519.key": json.RawMessage(fmt.Sprintf(`"AAAAC3NzaC1lZDI1NTE5AAAAI%043d"`, i))}}
		list[name] = model.Host{Node: name, Role: "web", Hostname: name, Addresses: []string{fmt.Sprintf("10.0.%d.%d", i>>8, i&255), "192.0.2.1"}}
	}
	id := model.Identity{Node: "balancer1", Role: "balancer", PuppetEnvironment: "dev"}
	for n := 0; b.Loop(); n++ {
		list["web1"] = model.Host{Node: "web1", Role: "web", Addresses: []string{fmt.Sprintf("10.1.%d.%d", n>>8&255, n&255)}}
		nodes, _ := hosts.Parse(list, exports)
		stored, err := json.Marshal(nodes)
		if err == nil {
			err = c.writeHosts(listFile, stored)
		}
		if err == nil {
			_, err = c.ShowHosts(id, tree, model.Watch{})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
