package prune_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	pruning "pulley/internal/publish"
	"pulley/internal/publish/prune"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

func versions(all []release.SignedRelease) string {
	var names []string
	for _, r := range all {
		names = append(names, r.Version)
	}
	return strings.Join(names, " ")
}

// After a prune all content in use can be installed from nothing, byte for byte, and all other content is deleted.
func TestPruneKeepsReleasesComplete(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	all := fleettest.Line(t, st, 9) // lines 1.0.0–1.2.0, 1.3.0–1.5.0, 1.6.0–1.8.0
	fleettest.PromoteTo(t, st, etcd.Scope{}, all[0].Target())
	fleettest.Set(t, st, fleettest.Dev, "x", "1", fleettest.Me)
	fleettest.Set(t, st, fleettest.Dev, "x", "2", fleettest.Me)
	fleettest.PromoteTo(t, st, etcd.Scope{Role: "compute"}, all[1].Target())
	fleettest.PromoteTo(t, st, etcd.Scope{}, all[7].Target()) // the newest change: 1.7.0, and before it 1.0.0 with data
	said := model.Status{Node: "compute9", Role: "compute", LastGood: all[4].Target(), Enforcing: all[4].Target()}
	if err := control.In(st).Report(ctx, model.Identity{Environment: "gone", Node: "compute9"}, said, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := release.In(st).PutObject(ctx, strings.Repeat("d", 64), []byte("left by a publish that was killed")); err != nil {
		t.Fatal(err)
	}
	before := server.Keys()

	plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(plan.Releases, " "); got != "1.2.0 1.3.0 1.5.0 1.6.0" {
		t.Errorf("goes: %s", got)
	}
	if got := fmt.Sprint(plan.Deltas); got != "[{1.0.0 2} {1.3.0 2}]" {
		t.Errorf("deltas that go: %s", got)
	}
	if !slices.Equal(plan.Objects, []string{strings.Repeat("d", 64)}) {
		t.Errorf("objects that go: %v", plan.Objects)
	}
	if len(plan.Generations) != 1 || plan.Generations[0] != (prune.GenerationKey{Environment: "dev", Number: 1}) || len(plan.Layers) != 1 {
		t.Errorf("data that goes: %v %v", plan.Generations, plan.Layers)
	}
	for _, k := range []pruning.KeptRelease{
		{Version: "1.0.0", Reason: pruning.KeptRollback, Environment: "dev", Epoch: 5},
		{Version: "1.1.0", Reason: "desired", Environment: "dev", Scope: "role compute"},
		{Version: "1.4.0", Reason: "enforced", Environment: "gone", Scope: "node compute9"},
		{Version: "1.7.0", Reason: "desired", Environment: "dev", Scope: "all nodes"},
		{Version: "1.8.0", Reason: pruning.KeptHighest, Place: 1},
	} {
		if !slices.Contains(plan.Kept, k) {
			t.Errorf("%v is not among %v", k, plan.Kept)
		}
	}
	if after := server.Keys(); !slices.Equal(before, after) {
		t.Fatalf("a plan changed something: %v", after)
	}

	freed, err := pruning.ApplyPrune(ctx, st, plan)
	if err != nil || freed != plan.Bytes || freed == 0 {
		t.Errorf("freed %d of %d, %v", freed, plan.Bytes, err)
	}
	left, err := release.In(st).List(ctx)
	if err != nil || versions(left) != "1.0.0 1.1.0 1.4.0 1.7.0 1.8.0" {
		t.Errorf("left: %s, %v", versions(left), err)
	}
	for _, r := range left {
		if err := content.Audit(ctx, release.In(st), r.Content); err != nil {
			t.Errorf("%s: %v", r.Version, err)
		}
	}
	if data, err := targets.In(st).Data(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev)); err != nil {
		t.Error(err)
	} else {
		for _, digest := range data.Layers {
			if _, err := targets.In(st).Layer(ctx, "dev", digest); err != nil {
				t.Error(err)
			}
		}
	}
	if keys := server.Keys(); len(keys) != len(before)-len(plan.Releases)-len(plan.Deltas)-len(plan.Objects)-len(plan.Generations)-len(plan.Layers) {
		t.Errorf("left: %v", keys)
	}
	if _, err := server.Client().Get(ctx, "x", clientv3.WithRev(2)); err == nil {
		t.Error("etcd still has what was removed: it was not compacted")
	}
	again, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
	if err != nil || !again.Empty() {
		t.Errorf("a second prune: %+v, %v", again, err)
	}

	// A pruned version may be published again only if it cannot be confused.
	r := fleettest.ARelease("1.0.0", "f")
	server.Drop("/pulley/v1/releases/1.0.0")
	r.Content.Chain.Line = "1.0.0"
	if _, err := fleettest.Publish(t, st, r); err == nil || !strings.Contains(err.Error(), "under a new version") {
		t.Errorf("a line that begins twice: %v", err)
	}
}

// Minutes pass between the plan and the prune. Content that is needed since then must stay.
func TestPruneKeepsReleasesNeededSincePlan(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	all := fleettest.Line(t, st, 7) // 1.3.0 begins the second line, 1.6.0 the third
	plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
	if err != nil || len(plan.Releases) != 6 {
		t.Fatal(plan.Releases, err)
	}
	fleettest.PromoteTo(t, st, etcd.Scope{}, all[4].Target())
	freed, err := pruning.ApplyPrune(ctx, st, plan)
	if err != nil || freed >= plan.Bytes {
		t.Errorf("freed %d of %d, %v", freed, plan.Bytes, err)
	}
	left, err := release.In(st).List(ctx)
	if err != nil || versions(left) != "1.4.0 1.6.0" {
		t.Fatalf("left: %s, %v", versions(left), err)
	}
	for _, r := range left {
		if err := content.Audit(ctx, release.In(st), r.Content); err != nil {
			t.Errorf("%s: %v", r.Version, err)
		}
	}
}

// An unreadable value may name any object: then the prune deletes nothing, even if it was planned before.
func TestPruneStopsAtUnreadableRecord(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	all := fleettest.Line(t, st, 4)
	fleettest.PromoteTo(t, st, etcd.Scope{}, all[0].Target())
	fleettest.Set(t, st, fleettest.Dev, "x", "1", fleettest.Me)
	fleettest.PromoteTo(t, st, etcd.Scope{}, all[3].Target())
	plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
	if err != nil || plan.Empty() {
		t.Fatal(plan, err)
	}
	raw := server.Client()
	for _, key := range []string{
		"releases/1.9.0", "environments/dev/desired/roles/compute", "environments/dev/desired/nonsense", "environments/dev/history/000000000009",
		"environments/dev/gate", "environments/dev/assigned/compute1", "status/dev/compute1", "status/other/compute1",
		"environments/dev/data/generations/000000000009", "deltas/1.0.0/x", "content/x/y", "content/" + all[0].Content.Base.Index.Hash,
	} {
		key = "/pulley/v1/" + key
		was := fleettest.Value(t, server, key)
		before := server.Keys()
		if _, err := raw.Put(ctx, key, `{"v":2}`); err != nil {
			t.Fatal(err)
		}
		named := key
		if strings.HasSuffix(key, all[0].Content.Base.Index.Hash) {
			named = "release 1.0.0"
		}
		if _, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now()); err == nil || !strings.Contains(err.Error(), named) {
			t.Errorf("a plan with %s: %v", key, err)
		}
		if freed, err := pruning.ApplyPrune(ctx, st, plan); err == nil || freed != 0 || !strings.Contains(err.Error(), named) {
			t.Errorf("a prune with %s: %d, %v", key, freed, err)
		}
		if len(was.Kvs) > 0 {
			_, err = raw.Put(ctx, key, string(was.Kvs[0].Value))
		} else {
			_, err = raw.Delete(ctx, key)
		}
		if err != nil {
			t.Fatal(err)
		}
		if after := server.Keys(); !slices.Equal(before, after) {
			t.Errorf("%s: left %v of %v", key, after, before)
		}
	}
	if freed, err := pruning.ApplyPrune(ctx, st, plan); err != nil || freed != plan.Bytes {
		t.Errorf("all can be read again: %d, %v", freed, err)
	}
}
