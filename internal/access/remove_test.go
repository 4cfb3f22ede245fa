package access_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// of returns the keys that contain a node's name, in order.
func of(t *testing.T, server *etcdtest.Auth, node string) []string {
	t.Helper()
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(fleettest.Contents(t, server))) {
		if slices.Contains(strings.Split(key, "/"), node) {
			keys = append(keys, strings.TrimPrefix(key, "/pulley/v1/"))
		}
	}
	return keys
}

// The key of a removed node must be useless, and no part of the node may block others. Its reports must stay until an
// operator deletes them.
func TestRemovedNodeHasNoAccessAndNoKeys(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	apply(t, st)
	fleettest.Joined(t, server, "controller1", fleettest.NodeA)
	fleettest.Joined(t, server, "controller10", "pulley/node/dev/controller10/00000000000000f0")
	if err := access.In(st).EnsureNode(ctx, "dev", "controller1", nodeAOld); err != nil { // half of an interrupted join
		t.Fatal(err)
	}
	others := of(t, server, "controller10")
	node := server.DB(fleettest.NodeA)
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{At: time.Now(), By: "ann", Why: "scrapped"}, records.Left); err != nil {
		t.Fatal(err)
	}
	if left, want := of(t, server, "controller1"), []string{"identities/dev/controller1", "runs/dev/controller1/1", "status/dev/controller1"}; !slices.Equal(left, want) {
		t.Errorf("left of it is %v, not %v", left, want)
	}
	if now := of(t, server, "controller10"); !slices.Equal(now, others) {
		t.Errorf("another node had %v and has %v", others, now)
	}
	users, err := access.In(st).Users(ctx)
	if err != nil || slices.ContainsFunc(users, func(u string) bool { return strings.Contains(u, "/controller1/") }) {
		t.Errorf("users are %v, %v", users, err)
	}
	if _, err := server.ClientOf(etcdtest.Serve).RoleGet(ctx, "pulley/node/dev/controller1"); err == nil {
		t.Error("its role still exists")
	}
	i, _, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, "controller1")
	if err != nil || i.Live() || i.Removed == nil || i.Removed.By != "ann" || i.Removed.Why != "scrapped" || i.Machine != "machine of controller1" {
		t.Errorf("its identity says %+v, %v", i, err)
	}
	_, err = control.In(node).Desire(ctx, fleettest.ID)
	if !errors.Is(err, etcd.ErrRevoked) || !strings.Contains(err.Error(), "for it to join again: `pulley token create -e dev --node controller1`, then") {
		t.Errorf("it hears: %v", err)
	}
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{}, records.Left); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("removed again: %v", err)
	}
	if f, err := access.JoinsIn(st).ForgetNode(ctx, fleettest.Dev, "controller1", access.Removal{}, records.Left); err != nil || f.Keys != 2 || f.Room {
		t.Errorf("forgotten: %+v, %v", f, err)
	}
	if left := of(t, server, "controller1"); !slices.Equal(left, []string{"identities/dev/controller1"}) {
		t.Errorf("left of it is %v", left)
	}
	if i, _, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, "controller1"); err != nil || i.Removed == nil || i.Removed.Why != "scrapped" {
		t.Errorf("who removed it is forgotten: %+v, %v", i, err)
	}
}

// A script with an unset variable must not remove the users of all nodes, or the environment's hold and target.
func TestRemoveRejectsEmptyName(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	fleettest.Joined(t, server, "controller1", fleettest.NodeA)
	if err := fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{}, model.Hold{Mode: model.Freeze, Who: "ann", Why: "test"}, 0, 0); err != nil {
		t.Fatal(err)
	}
	before := fleettest.Contents(t, server)
	users, err := access.In(st).Users(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "", access.Removal{}, records.Left); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("RemoveNode: %v", err)
	}
	if _, err := access.JoinsIn(st).ForgetNode(ctx, fleettest.Dev, "", access.Removal{}, records.Left); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("ForgetNode: %v", err)
	}
	if err := access.IdentitiesIn(st).DropFormer(ctx, fleettest.Dev, "", nodeB); err != nil {
		t.Errorf("DropFormer: %v", err)
	}
	if after, err := access.In(st).Users(ctx); err != nil || !slices.Equal(after, users) {
		t.Errorf("users are %v, %v, not %v", after, err, users)
	}
	if !maps.Equal(fleettest.Contents(t, server), before) {
		t.Error("keys were deleted")
	}
}

// A damaged machine record must not keep an unlisted node in the fleet. A listed node needs the record: the removal
// marks it as joined.
func TestRemoveIgnoresDamagedRecordOfUnlistedNode(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	fleettest.Joined(t, server, "controller1", fleettest.NodeA)
	raw := server.ClientOf(etcdtest.Serve)
	if _, err := raw.Put(ctx, "/pulley/v1/environments/dev/machines/controller1", "garbage"); err != nil {
		t.Fatal(err)
	}
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{}, records.Left); err == nil || !strings.Contains(err.Error(), "machines/controller1") {
		t.Errorf("a listed node: %v", err)
	}
	if resp, err := raw.Delete(ctx, "/pulley/v1/environments/dev/hosts/nodes/controller1"); err != nil || resp.Deleted != 1 {
		t.Fatal(resp, err)
	}
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Errorf("an unlisted node: %v", err)
	}
	if i, _, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, "controller1"); err != nil || i.Removed == nil {
		t.Errorf("its identity is %+v, %v", i, err)
	}
}

// An operator without the permission must not half remove a node, and must learn which role is needed.
func TestOnlyAnAdminRemovesNodes(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	ctx := t.Context()
	fleettest.Joined(t, server, "controller1", fleettest.NodeA)
	if err := access.In(server.Admin()).EnsureOperatorRoles(ctx); err != nil {
		t.Fatal(err)
	}
	if err := access.In(server.Admin()).EnsureOperator(ctx, fleettest.Operator, access.RoleOperator); err != nil {
		t.Fatal(err)
	}
	before := fleettest.Contents(t, server)
	err := access.JoinsIn(server.DB(fleettest.Operator)).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{}, records.Left)
	if err == nil || !strings.Contains(err.Error(), "`pulley operators list` shows who is an admin") {
		t.Errorf("an operator hears: %v", err)
	}
	if !maps.Equal(before, fleettest.Contents(t, server)) {
		t.Error("something was removed")
	}
	if _, err := control.In(server.DB(fleettest.NodeA)).Desire(ctx, fleettest.ID); err != nil {
		t.Errorf("the node has no access: %v", err)
	}
}

// A node that fills etcd stops the complete fleet. One command of an admin must remove the node, free space and
// unblock the others.
func TestOneCommandEndsFlood(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{QuotaBytes: 16 << 20})
	st, ctx := server.Admin(), t.Context()
	fleettest.Joined(t, server, "controller1", fleettest.NodeA)
	fleettest.Joined(t, server, "compute1", nodeB)
	flood, filler := server.ClientOf(fleettest.NodeA), server.ClientOf(etcdtest.Serve)
	noise := strings.Repeat("x", 1<<20) // the embedded etcd refuses it to a node, and other etcds do not: another client writes it here
	written, full := int64(0), false    // how many fit depends on the moments at which etcd commits
	for n := 0; n < 200 && !full; n++ {
		_, err := filler.Put(ctx, fmt.Sprintf("/pulley/v1/runs/dev/controller1/%d", n), noise)
		if full = errors.Is(err, etcd.ErrFull); err != nil && !full {
			t.Fatal(err)
		}
		if err == nil {
			written++
		}
	}
	if !full {
		t.Fatal("16 MiB did not get full")
	}
	other := model.Identity{Node: "compute1", Environment: "dev"}
	if err := control.In(server.DB(nodeB)).Report(ctx, other, model.Status{Node: "compute1"}, nil, nil); !errors.Is(err, etcd.ErrFull) {
		t.Fatalf("another node reports into a full etcd: %v", err)
	}
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{By: "ann"}, records.Left); !errors.Is(err, etcd.ErrFull) {
		t.Errorf("removed without making room: %v", err)
	}
	if _, err := flood.Delete(ctx, "/pulley/v1/runs/dev/controller1/0"); !fleettest.Refusal(err) {
		t.Errorf("a node that could not be removed still has access: %v", err)
	}
	f, err := access.JoinsIn(st).ForgetNode(ctx, fleettest.Dev, "controller1", access.Removal{By: "ann", Why: "it floods"}, records.Left)
	if err != nil || !f.Room || f.Bytes < 8<<20 || f.Keys < written {
		t.Errorf("forgotten after %d runs: %+v, %v", written, f, err)
	}
	if _, err := flood.Put(ctx, "/pulley/v1/runs/dev/controller1/0", "x"); !fleettest.Refusal(err) {
		t.Errorf("the flood continues: %v", err)
	}
	if err := control.In(server.DB(nodeB)).Report(ctx, other, model.Status{Node: "compute1"}, nil, nil); err != nil {
		t.Errorf("another node can't report: %v", err)
	}
	if i, _, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, "controller1"); err != nil || i.Removed == nil {
		t.Errorf("its identity says %+v, %v", i, err)
	}
	alarms, err := server.ClientOf(etcdtest.Serve).AlarmList(ctx)
	if err != nil || len(alarms.Alarms) > 0 {
		t.Errorf("alarms: %v, %v", alarms, err)
	}
	if got, err := server.ClientOf(etcdtest.Serve).Get(ctx, "/pulley/v1/runs/dev/controller1/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count != 0 {
		t.Errorf("%d of its runs are left, %v", got.Count, err)
	}
}

// A node that joins during its removal must be in or out. A working certificate of an unlisted node is neither.
func TestConcurrentRemovalAndRejoin(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	for round := range 10 {
		node := fmt.Sprintf("controller%d", round+1)
		first, second := fmt.Sprintf("pulley/node/dev/%s/%016x", node, 1), fmt.Sprintf("pulley/node/dev/%s/%016x", node, 2)
		fleettest.Joined(t, server, node, first)
		rejoin := make(chan error, 1)
		go func() {
			i, at, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, node)
			if err == nil {
				err = access.In(st).EnsureNode(ctx, "dev", node, second)
			}
			if err == nil && i.Live() {
				i.User, i.Replaces = second, first
				err = access.IdentitiesIn(st).Put(ctx, fleettest.Dev, *i, at)
			}
			rejoin <- err
		}()
		if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, node, access.Removal{At: time.Now()}, records.Left); err != nil {
			t.Fatal(err)
		}
		// A join that loses its role fails, and retries from the start, where it finds the removal.
		if err := <-rejoin; err == nil {
			t.Logf("%s: the rejoin was before", node)
		}
		i, _, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, node)
		if err != nil || i.Live() {
			t.Errorf("%s is %+v, %v", node, i, err)
		}
	}
}

// apply stores environment dev.
func apply(t *testing.T, st *etcd.DB) {
	t.Helper()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  controller: {cardinality: 2}\n  compute: {cardinality: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := specs.In(st).PutSpec(t.Context(), e, 0); err != nil {
		t.Fatal(err)
	}
}

// A record of a first boot that stays may hold the turn of a machine that is gone.
func TestRemovedNodeHasNoFirstBoots(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	fleettest.Joined(t, server, "controller1", "pulley/node/dev/controller1/0123456789abcdef")
	st := server.Admin()
	for n := range 140 {
		b := access.FirstBoot{Machine: fmt.Sprint("m", n), Node: "controller1", Step: "turn", State: access.BootStarted, Heard: time.Now()}
		if n == 0 {
			b.Node = "controller2"
		}
		if err := access.FirstBootsIn(st).Put(t.Context(), fleettest.Dev, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := access.JoinsIn(st).ForgetNode(t.Context(), fleettest.Dev, "controller1", access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Fatal(err)
	}
	if left, _, err := access.FirstBootsIn(st).List(t.Context(), fleettest.Dev); err != nil || len(left) != 1 || left["m0"].Node != "controller2" {
		t.Errorf("%d records are left, %v", len(left), err)
	}
}
