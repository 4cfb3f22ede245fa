package change

import (
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// A target of a removed node would never be taken. The operator meant another node.
func TestFindRejectsRemovedNode(t *testing.T) {
	t.Parallel()
	server, dev, ctx := etcdtest.Start(t), environments.Ref{Environment: "dev"}, t.Context()
	s, err := store.Open(store.Config{Endpoints: []string{server.Endpoint}, Prefix: store.DefaultPrefix, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1}\n"))
	if err == nil {
		err = s.Environments.PutSpec(ctx, e, 0)
	}
	if err == nil {
		err = s.Fleet.Register(ctx, "dev", agent.Host{Node: "extra1", Role: "extra"})
	}
	if err == nil {
		err = s.Node.Report(ctx, agent.Identity{Node: "removed1", Environment: "dev"}, agent.Status{Node: "removed1"}, nil, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for node, known := range map[string]bool{"web1": true, "extra1": true, "removed1": false} {
		_, err := Find(ctx, s, dev, Scope{Node: node})
		if known && err != nil || !known && (err == nil || !strings.Contains(err.Error(), `cannot find node "removed1"`)) {
			t.Errorf("%s: %v", node, err)
		}
	}
}
