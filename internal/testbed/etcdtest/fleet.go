package etcdtest

import (
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/model"
	"pulley/internal/store"
)

// FleetOfOne returns an etcd with the environment dev and the node web1.
func FleetOfOne(t *testing.T, spec string) (*Server, *store.Store) {
	t.Helper()
	server, ctx := Start(t), t.Context()
	s, err := store.Open(store.Config{Endpoints: []string{server.Endpoint}, Prefix: store.DefaultPrefix, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte(spec))
	if err == nil {
		err = s.Environments.PutSpec(ctx, e, 0)
	}
	if err == nil {
		err = s.Fleet.Register(ctx, "dev", model.Host{Node: "web1", Role: "web"})
	}
	if err != nil {
		t.Fatal(err)
	}
	return server, s
}
