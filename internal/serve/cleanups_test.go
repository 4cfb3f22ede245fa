package serve

import (
	"testing"
	"time"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/puppetserver"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// What a destruction recorded must stay while the nodes are still there, or their certificates would stay valid without a word. After one that was
// killed, the nodes are as before.
func TestCleanupsOfADestructionStay(t *testing.T) {
	t.Parallel()
	server, ctx, dev := etcdtest.Start(t), t.Context(), model.Ref{Environment: "dev"}
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	spec := &environments.Environment{Name: "dev", Puppet: settings.PuppetSettings{PuppetDB: "https://127.0.0.1:1"}}
	err = specs.In(s).PutSpec(ctx, spec, 0)
	if err == nil {
		err = fleet.In(s).Register(ctx, "dev", model.Host{Node: "web1", Role: "web"})
	}
	if err == nil { // as a destruction writes it first
		_, err = server.Client().Put(ctx, "/pulley/v1/cleanups/dev/web1", `{"v":1,"node":"web1","certname":"web1","removed":"2026-11-26T12:00:00Z","by":"ann","steps":[{"kind":"puppetdb","url":"https://127.0.0.1:1"}]}`)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &cleanups{Tasks: &Tasks{TasksConfig: TasksConfig{DB: s, Now: time.Now, Log: (&observe.Log{}).Logger()}}, failed: pauses{}}
	left := func() bool {
		t.Helper()
		all, _, err := access.JoinsIn(s).Cleanups(ctx)
		for _, one := range all {
			if err == nil {
				err = c.clean(ctx, one, puppetserver.Credentials{})
			}
		}
		if err == nil {
			all, _, err = access.JoinsIn(s).Cleanups(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(all) > 0
	}
	destruction, err := records.In(s).BeginApply(ctx, dev, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if !left() {
		t.Fatal("serve dropped the record of a destruction in progress")
	}
	if err := destruction.Close(); err != nil {
		t.Fatal(err)
	}
	kv, err := server.Client().Get(ctx, "/pulley/v1/environments/dev/spec")
	if err == nil {
		_, err = server.Client().Delete(ctx, "/pulley/v1/environments/dev/spec")
	}
	if err != nil {
		t.Fatal(err)
	}
	if !left() {
		t.Fatal("serve dropped the record of a destruction that was killed after its first deletion")
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/spec", string(kv.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	if left() {
		t.Error("after a destruction that was killed before it deleted anything, the node is still to be removed")
	}
}

// A node that was removed while its environment was damaged must be cleaned once that is repaired, and not before.
func TestRemovalOfADamagedEnvironmentIsCleanedLater(t *testing.T) {
	t.Parallel()
	server, ctx, dev := etcdtest.Start(t), t.Context(), model.Ref{Environment: "dev"}
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	spec := "/pulley/v1/environments/dev/spec"
	if _, err = server.Client().Put(ctx, spec, "?"); err == nil {
		err = fleet.In(s).Register(ctx, "dev", model.Host{Node: "web1", Role: "web"})
	}
	if err == nil {
		err = access.JoinsIn(s).RemoveNode(ctx, dev, "web1", access.Removal{At: time.Now(), By: "ann"}, records.Left)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &cleanups{Tasks: &Tasks{TasksConfig: TasksConfig{DB: s, Now: time.Now, Log: (&observe.Log{}).Logger()}}, failed: pauses{}}
	look := func() *access.Cleanup {
		t.Helper()
		if err := c.work(ctx); err != nil {
			t.Fatal(err)
		}
		left, err := access.JoinsIn(s).Cleanup(ctx, dev, "web1")
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
	if err := specs.In(s).PutSpec(ctx, &environments.Environment{Name: "dev", Puppet: settings.PuppetSettings{
		Servers: map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1", Name: "puppet.example.com"}}, CA: settings.PuppetCA{URL: "https://10.0.0.1"}}}, 0); err != nil {
		t.Fatal(err)
	}
	if left := look(); left == nil || len(left.Steps) != 1 || left.Steps[0].Kind != access.CleanCertificate || left.Steps[0].URL != "https://10.0.0.1" {
		t.Errorf("with a repaired environment: %+v", left)
	}
}
