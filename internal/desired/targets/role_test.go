package targets_test

import (
	"testing"

	"pulley/environments"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/fleettest"
)

// A member of a role that has not joined yet takes the role's target. A permit for the target of all nodes would not let it
// go back.
func TestPermitFollowsTheRoleOfAMember(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1, members: [old.example]}\n"))
	if err == nil {
		err = specs.In(st).PutSpec(ctx, e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	for scope, target := range map[etcd.Scope]model.Target{
		{}: fleettest.Published(t, st, "2.0.0", "b"), {Role: "web"}: fleettest.Published(t, st, "1.0.0", "a"), {Node: "old.example"}: fleettest.Published(t, st, "2.0.0", "b"),
	} {
		if _, err := targets.In(st).Promote(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), scope, targets.Promoted, target, fleettest.Me); err != nil {
			t.Fatal(err)
		}
	}
	if lower, err := targets.In(st).Lowers(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), etcd.Scope{Node: "old.example"}, model.Target{}, fleettest.Me.At); err != nil || !lower {
		t.Errorf("a node that takes 1.0.0 of its role after 2.0.0 needs no permit: %t, %v", lower, err)
	}
}
