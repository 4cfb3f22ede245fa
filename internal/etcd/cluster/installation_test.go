package cluster_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"pulley/internal/access"
	"pulley/internal/etcd/cluster"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// With two IDs an installation would not recognize its own machines.
func TestInstallationHasOneID(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	if id, err := cluster.In(st).Installation(ctx); err != nil || id != "" {
		t.Fatalf("before the first apply: %q, %v", id, err)
	}
	ids := make([]string, 8)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			var err error
			if ids[i], err = cluster.In(st).InstallationID(ctx, "ann"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if slices.Sort(ids); ids[0] != ids[7] || len(ids[0]) != 16 {
		t.Errorf("the ids are %q", ids)
	}
	if id, err := cluster.In(st).Installation(ctx); err != nil || id != ids[0] {
		t.Errorf("it is %q, was %q (%v)", id, ids[0], err)
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/installation", `{"v":1}`); err != nil {
		t.Fatal(err)
	}
	if id, err := cluster.In(st).InstallationID(ctx, "ann"); err == nil {
		t.Errorf("one that is damaged is %q", id)
	}
}

// An operator who sets another installation's ID would have its machines deleted. An operator who may not create a
// missing ID could never apply.
func TestOnlyAdminsCreateInstallationID(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	admin, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	if err := errors.Join(access.In(admin).EnsureOperator(ctx, fleettest.Viewer, access.RoleViewer), access.In(admin).EnsureOperator(ctx, fleettest.Operator, access.RoleOperator)); err != nil {
		t.Fatal(err)
	}
	const key = "/pulley/v1/installation"
	id, err := cluster.In(admin).Installation(ctx)
	if err != nil || len(id) != 16 {
		t.Fatalf("where users are set up it is %q, %v", id, err)
	}
	for _, user := range []string{fleettest.Viewer, fleettest.Operator} {
		st := server.DB(user)
		if got, err := cluster.In(st).InstallationID(ctx, "olga"); err != nil || got != id {
			t.Errorf("%s reads %q, not %q (%v)", user, got, id, err)
		}
		if _, err := server.ClientOf(user).Put(ctx, key, `{"v":1,"id":"00000000000000aa"}`); !fleettest.Refusal(err) {
			t.Errorf("%s writes another one: %v", user, err)
		}
		if _, err := raw.Delete(ctx, key); err != nil { // like a fleet that an older Pulley set up
			t.Fatal(err)
		}
		_, err := cluster.In(st).InstallationID(ctx, "olga")
		if err == nil || !strings.Contains(err.Error(), "only an admin") || !strings.Contains(err.Error(), "pulley doctor --fix") {
			t.Errorf("%s finds none: %v", user, err)
		}
		repair := func() error { return access.In(admin).SetUpAuth(ctx, etcdtest.Serve) }
		if user == fleettest.Operator {
			repair = func() error { return cluster.In(admin).EnsureInstallation(ctx, etcdtest.Serve) } // like doctor
		}
		if err := repair(); err != nil {
			t.Fatal(err)
		}
		if id, err = cluster.In(admin).Installation(ctx); err != nil || len(id) != 16 {
			t.Errorf("after the repair the id is %q, %v", id, err)
		}
	}
	if _, err := raw.Put(ctx, key, `{"v":1}`); err != nil {
		t.Fatal(err)
	}
	if err := access.In(admin).SetUpAuth(ctx, etcdtest.Serve); err != nil {
		t.Errorf("an id that is damaged keeps serve from starting: %v", err)
	}
}
