package serve

import (
	"testing"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// A node that was removed while its environment was damaged must be cleaned once that is repaired, and not before.
func TestRemovalOfADamagedEnvironmentIsCleanedLater(t *testing.T) {
	t.Parallel()
	server, ctx, dev := etcdtest.Start(t), t.Context(), environments.Ref{Environment: "dev"}
	s, err := store.Open(store.Config{Endpoints: []string{server.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	spec := "/pulley/v1/environments/dev/spec"
	if _, err = server.Client().Put(ctx, spec, "?"); err == nil {
		err = s.Fleet.Register(ctx, "dev", agent.Host{Node: "web1", Role: "web"})
	}
	if err == nil {
		err = s.Joins.RemoveNode(ctx, dev, "web1", store.Removal{At: time.Now(), By: "ann"})
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &cleanups{Tasks: &Tasks{TasksConfig: TasksConfig{Store: s, Now: time.Now, Log: (&observe.Log{}).Logger()}}, failed: pauses{}}
	look := func() *store.Cleanup {
		t.Helper()
		if err := c.work(ctx); err != nil {
			t.Fatal(err)
		}
		left, err := s.Joins.Cleanup(ctx, dev, "web1")
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	if left := look(); !left.Unread() {
		t.Errorf("with a damaged environment: %+v", left)
	}
	if _, err := server.Client().Delete(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if err := s.Environments.PutSpec(ctx, &environments.Environment{Name: "dev", Puppet: environments.PuppetSettings{
		Servers: map[string]environments.PuppetServer{"eu1": {Address: "10.0.0.1", Name: "puppet.example.com"}}, CA: environments.PuppetCA{URL: "https://10.0.0.1"}}}, 0); err != nil {
		t.Fatal(err)
	}
	if left := look(); left == nil || len(left.Steps) != 1 || left.Steps[0].Kind != store.CleanCertificate || left.Steps[0].URL != "https://10.0.0.1" {
		t.Errorf("with a repaired environment: %+v", left)
	}
}
