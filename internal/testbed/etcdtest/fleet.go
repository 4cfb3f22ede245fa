package etcdtest

import (
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// FleetOfOne returns an etcd with the environment dev and the node web1.
func FleetOfOne(t *testing.T, spec string) (*Server, *etcd.DB) {
	t.Helper()
	server, ctx := Start(t), t.Context()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Prefix: etcd.DefaultPrefix, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte(spec))
	if err == nil {
		err = specs.In(s).PutSpec(ctx, e, 0)
	}
	if err == nil {
		err = desired.Register(ctx, s, "dev", model.Host{Node: "web1", Role: "web"})
	}
	if err != nil {
		t.Fatal(err)
	}
	return server, s
}
