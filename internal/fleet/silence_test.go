package fleet_test

import (
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// One reader with another silence, or that believes a clock that is ahead, would contradict the others about the same node.
func TestAllReadersJudgeSilenceAlike(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{s.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	ctx, now := t.Context(), time.Now()
	spec := &environments.Environment{Name: "dev", Silence: model.Duration(15 * time.Minute), Roles: []environments.Role{{Name: "web", Cardinality: 3}}}
	if err := specs.In(st).PutSpec(ctx, spec, 0); err != nil {
		t.Fatal(err)
	}
	// The clock of web2 is ahead, and web1 reported long ago, but after it.
	names := []string{"web2", "web1", "web3"}
	for i, at := range []time.Time{now.Add(24 * time.Hour), now.Add(-17 * time.Minute), now.Add(-10 * time.Minute)} {
		for _, err := range []error{
			fleet.In(st).Register(ctx, "dev", model.Host{Node: names[i], Role: "web", At: now}),
			control.In(st).Report(ctx, model.Identity{Node: names[i], Environment: "dev"}, model.Status{Node: names[i], Role: "web", SeenAt: at}, nil, nil),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	w, err := records.In(st).World(ctx, fleettest.Dev, now)
	if err != nil {
		t.Fatal(err)
	}
	o, err := journal.In(st).Observe(ctx, fleettest.Dev, campaignOf(t, st), rollout.Needs{Nodes: names}, records.Away, now)
	if err != nil {
		t.Fatal(err)
	}
	some, err := fleet.In(st).StatusesOf(ctx, fleettest.Dev, names[:2])
	if err != nil {
		t.Fatal(err)
	}
	// A node must not make serve read the fleet.
	if f, err := fleet.In(st).OneAsReported(ctx, fleettest.Dev, "web2"); err != nil || !f.Statuses["web2"].Before.IsZero() {
		t.Errorf("a report alone was compared with others: %+v, %v", f.Statuses, err)
	}
	for node, silent := range map[string]bool{"web1": true, "web2": true, "web3": false} {
		f, err := fleet.In(st).State(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		one, err := fleet.In(st).One(ctx, fleettest.Dev, node)
		if err != nil {
			t.Fatal(err)
		}
		look := func(f fleet.FleetState) bool {
			said := f.Statuses[node]
			return model.Look(&said, f.Desired("web", node), now).State == model.Silent
		}
		got := map[string]bool{"the fleet": look(f), "the node alone": look(one), "the machines": w.Views[node].State == model.Silent, "a rollout": o.Nodes[node].View.State == model.Silent}
		if said, read := some[node]; read {
			got["some statuses"] = now.After(said.SilentFrom(15*time.Minute, now))
		}
		for reader, is := range got {
			if is != silent {
				t.Errorf("%s calls %s silent: %t", reader, node, is)
			}
		}
	}
}

// campaignOf returns a campaign of no nodes, with the targets of the environment.
func campaignOf(t *testing.T, st *etcd.DB) *journal.Campaign {
	t.Helper()
	d, err := targets.In(st).Desires(t.Context(), fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	return &journal.Campaign{Plan: rollout.Plan{ID: "r1", Kind: rollout.Take}, Desires: d}
}
