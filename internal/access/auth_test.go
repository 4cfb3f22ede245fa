package access_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

const (
	nodeAOld = "pulley/node/dev/controller1/00000000000000a0"
	nodeB    = "pulley/node/dev/compute1/00000000000000b1"
)

// Otherwise a fleet could not be started again, or repaired after a crash during the setup.
func TestUsersAreSetUpAnyNumberOfTimes(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	if on, err := access.In(st).AuthEnabled(ctx); err != nil || !on {
		t.Fatalf("auth is on: %v, %v", on, err)
	}
	raw := server.ClientOf(etcdtest.Serve)
	var revision uint64
	for range 2 {
		for _, err := range []error{
			access.In(st).SetUpAuth(ctx, etcdtest.Serve), access.In(st).EnsureEnvironment(ctx, "dev"), access.In(st).EnsureNode(ctx, "dev", "controller1", fleettest.NodeA),
			access.In(st).EnsureOperator(ctx, "pulley/operator/ann/0000000000000001", access.RoleViewer),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		status, err := raw.AuthStatus(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if revision != 0 && status.AuthRevision != revision {
			t.Errorf("what was there already was changed again: auth revision %d became %d; each change rebuilds the permissions of every user", revision, status.AuthRevision)
		}
		revision = status.AuthRevision
	}
	users, err := access.In(st).Users(ctx)
	if err != nil || !slices.Equal(users, []string{fleettest.NodeA, "pulley/operator/ann/0000000000000001", etcdtest.Serve, "root"}) {
		t.Errorf("users are %v, %v", users, err)
	}
}

// At each change etcd rebuilds every user's permissions: unneeded changes of a join slow the complete fleet.
func TestJoinMakesFewChanges(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	changes := func(do func() error) uint64 {
		t.Helper()
		before, err := raw.AuthStatus(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := do(); err != nil {
			t.Fatal(err)
		}
		after, err := raw.AuthStatus(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return after.AuthRevision - before.AuthRevision
	}
	if err := access.In(st).EnsureEnvironment(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		do   func() error
		most uint64
	}{
		{"a new node", func() error { return access.In(st).EnsureNode(ctx, "dev", "controller1", nodeAOld) }, 8}, // RoleAdd rebuilds nothing; a node shows exports to others by a key of its own
		{"the same again", func() error { return access.In(st).EnsureNode(ctx, "dev", "controller1", nodeAOld) }, 0},
		{"its rejoin", func() error { return access.In(st).EnsureNode(ctx, "dev", "controller1", fleettest.NodeA) }, 3},
		{"dropping a user", func() error { return access.In(st).DropUser(ctx, nodeAOld) }, 1},
		{"dropping a missing user", func() error { return access.In(st).DropUser(ctx, nodeAOld) }, 0},
		{"an environment that is set up", func() error { return access.In(st).EnsureEnvironment(ctx, "dev") }, 0},
	} {
		if n := changes(c.do); n > c.most {
			t.Errorf("%s took %d changes of etcd's users and roles, more than %d", c.what, n, c.most)
		}
	}
}

// A role without a needed grant stops a fleet, and a role with an extra grant opens it. The setup must repair both.
func TestWrongGrantsAreRepaired(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	for _, err := range []error{access.In(st).EnsureEnvironment(ctx, "dev"), access.In(st).EnsureNode(ctx, "dev", "controller1", fleettest.NodeA)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := raw.RoleRevokePermission(ctx, "pulley/nodes/dev", "/pulley/v1/releases/", "/pulley/v1/releases0")
	if err == nil {
		_, err = raw.RoleGrantPermission(ctx, "pulley/nodes/dev", "/pulley/v1/tokens/", "/pulley/v1/tokens0", 0)
	}
	if err == nil { // the same range, with more
		_, err = raw.RoleGrantPermission(ctx, "pulley/nodes/dev", "/pulley/v1/environments/dev/", "/pulley/v1/environments/dev0", 2)
	}
	if err == nil {
		_, err = raw.UserGrantRole(ctx, fleettest.NodeA, "root")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{access.In(st).EnsureEnvironment(ctx, "dev"), access.In(st).EnsureNode(ctx, "dev", "controller1", fleettest.NodeA)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	role, err := raw.RoleGet(ctx, "pulley/nodes/dev")
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for _, p := range role.Perm {
		has = append(has, strings.TrimPrefix(string(p.Key), "/pulley/v1/")+" "+p.PermType.String())
	}
	if want := []string{"agents/ READ", "content/ READ", "deltas/ READ", "environments/dev/ READ", "environments/dev/hosts/head WRITE", "releases/ READ", "retirements/dev/ READ"}; !slices.Equal(has, want) {
		t.Errorf("nodes may %v, not %v", has, want)
	}
	user, err := raw.UserGet(ctx, fleettest.NodeA)
	if err != nil || !slices.Equal(user.Roles, []string{"pulley/node/dev/controller1", "pulley/nodes/dev"}) {
		t.Errorf("the node's roles are %v, %v", user, err)
	}
}

// Otherwise the nodes of a recreated environment could read nothing after the deletion of the former one.
func TestRecreatedEnvironmentKeepsNodeRole(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	admin, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	has := func(user string, want ...string) {
		t.Helper()
		if got, err := raw.UserGet(ctx, user); err != nil || !slices.Equal(got.Roles, want) {
			t.Errorf("%s has the roles %v, not %v (%v)", user, got.Roles, want, err)
		}
	}
	half := "pulley/node/dev/web9/00000000000000a9" // half-made: it has no role of its own
	again := func() {
		_, err := raw.UserAddWithOptions(ctx, half, "", &clientv3.UserAddOptions{NoPassword: true})
		if err := errors.Join(err, specs.In(admin).PutSpec(ctx, &environments.Environment{Name: "dev"}, 0), access.In(admin).EnsureEnvironment(ctx, "dev"), access.In(admin).EnsureNode(ctx, "dev", "controller1", fleettest.NodeA)); err != nil {
			t.Error(err)
		}
	}
	etcdtest.CancelAfter(server.Admin(), 2, again, func(st *etcd.DB) { // between the check and the deletion
		if err := access.In(st).DropSharedRole(ctx, fleettest.Dev); err != nil {
			t.Fatal(err)
		}
	})
	has(fleettest.NodeA, "pulley/node/dev/controller1", "pulley/nodes/dev")
	has(half)
	if _, err := control.In(server.DB(fleettest.NodeA)).Desire(ctx, fleettest.ID); err != nil {
		t.Errorf("the node can't read what is wanted of it: %v", err)
	}
	if err := access.In(admin).DropSharedRole(ctx, model.Ref{Environment: "dev", Stack: "t4"}); err != nil { // it never existed
		t.Error(err)
	}
	if err := access.In(admin).DropSharedRole(ctx, fleettest.Dev); err != nil {
		t.Fatal(err)
	}
	has(fleettest.NodeA, "pulley/node/dev/controller1", "pulley/nodes/dev")
	if _, err := raw.Delete(ctx, "/pulley/v1/environments/dev/spec"); err != nil {
		t.Fatal(err)
	}
	if err := access.In(admin).DropSharedRole(ctx, fleettest.Dev); err != nil {
		t.Fatal(err)
	}
	has(fleettest.NodeA, "pulley/node/dev/controller1")
}
