package stage

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release/content"
	"pulley/internal/testbed/etcdtest"
)

// One node that changes its export in a loop must not run Puppet again and again on each node that sees it.
func TestNodeThatChangesInALoopIsShownSixTimesAnHour(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, err := control.Open(etcd.Config{Endpoints: []string{server.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	dir, tree, now := t.TempDir(), strings.Repeat("a", 64), time.Now()
	trees, err := content.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &Content{Store: st, trees: trees, dir: filepath.Join(dir, "data"), log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	file := filepath.Join(trees.Path(tree), "environments", "dev.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("hosts: {exports: [value]}\nroles:\n  web: {cardinality: 1}\n  balancer: {cardinality: 1, sees: [web]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	web := model.Identity{Node: "web1", Role: "web", Environment: "dev", PuppetEnvironment: "dev"}
	balancer := model.Identity{Node: "balancer1", Role: "balancer", Environment: "dev", PuppetEnvironment: "dev"}
	if err := st.Node.Register(t.Context(), "dev", model.Host{Node: web.Node, Role: web.Role}); err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	var seen model.Seen
	show := func(value int) {
		t.Helper()
		export := model.Export{Facts: map[string]json.RawMessage{"value": fmt.Appendf(nil, "%d", value)}}
		if err := st.Node.PublishExport(t.Context(), web, export, true); err != nil {
			t.Fatal(err)
		}
		if err := c.FetchHosts(t.Context(), balancer); err != nil {
			t.Fatal(err)
		}
		if seen, err = c.ShowHosts(balancer, tree, model.Watch{}); err != nil {
			t.Fatal(err)
		}
		shown[seen.Digest] = true
	}
	again := now.Add(2*time.Minute + time.Hour) // when the first change is an hour old
	for value := range 20 {
		now = now.Add(time.Minute)
		show(value)
	}
	if len(shown) != 7 || !seen.Again.Equal(again) { // with the value before the changes
		t.Errorf("a node that changed 20 times was shown with %d values, and is read again at %s, not %s", len(shown), seen.Again, again)
	}
	now = seen.Again
	show(20)
	if len(shown) != 8 || !seen.Again.IsZero() {
		t.Errorf("an hour later it was shown with %d values, and is read again at %s", len(shown), seen.Again)
	}
}
