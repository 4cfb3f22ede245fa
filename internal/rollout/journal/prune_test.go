package journal_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	pruning "pulley/internal/publish"
	"pulley/internal/release"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// Rollouts of 10,000 nodes would fill etcd. The one that owns the environment must survive, with its way back.
func TestOldCampaignsAreDeleted(t *testing.T) {
	t.Parallel()
	r := beginRolling(t)
	server := r.node("web", "web1").server
	plan := rollout.Plan{Target: r.two, Groups: []rollout.Group{{Kind: rollout.OfRole, Role: "web", Batch: 1, Size: 1, Nodes: []rollout.Member{{Node: "web1"}}}}}
	var ids []string
	for range 4 {
		ids = append(ids, r.start(plan))
		r.revert(ids[len(ids)-1], r.served)
	}
	aborted := r.start(plan)
	if err := journal.In(r.st).Set(t.Context(), fleettest.Dev, r.campaign(aborted), model.GateAborted, nil, fleettest.Me); err != nil {
		t.Fatal(err)
	}
	starting := fmt.Sprintf("/pulley/v1/environments/dev/campaigns/r%d/nodes/000000000000", r.campaign(aborted).Plan.Epoch+1)
	if _, err := server.Client().Put(t.Context(), starting, `{"v":1}`); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		keep, deleted int
		left          []string
	}{{4, 0, []string{aborted, ids[3], ids[2], ids[1], ids[0]}}, {2, 2, []string{aborted, ids[3], ids[2]}}, {0, 2, []string{aborted}}} {
		deleted, err := journal.In(r.st).Prune(t.Context(), fleettest.Dev, c.keep)
		if err != nil || deleted != c.deleted {
			t.Errorf("with %d kept, %d deleted: %v", c.keep, deleted, err)
		}
		list, damaged, err := journal.In(r.st).List(t.Context(), fleettest.Dev)
		var left []string
		for _, one := range list {
			left = append(left, one.Plan.ID)
		}
		if fmt.Sprint(left) != fmt.Sprint(c.left) || damaged != nil || err != nil {
			t.Errorf("with %d kept: %v, %v, %v", c.keep, left, damaged, err)
		}
	}
	keys := strings.Join(server.Keys(), "\n")
	for _, id := range ids {
		if strings.Contains(keys, "campaigns/"+id+"/") {
			t.Errorf("keys of %s are left:\n%s", id, keys)
		}
	}
	if !strings.Contains(keys, starting) {
		t.Error("the nodes of a start in progress are gone")
	}
	if c := r.revert(aborted, r.served); c.Unsigned || c.Unstated {
		t.Errorf("%+v", c)
	}
}

// Nodes of a rollout, also of a paused or an aborted one, must be able to take its target and to return to its origin.
func TestPruneKeepsBothEndsOfARollout(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"release", "data"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			st, ctx := fleettest.Open(t, etcdtest.Start(t), ""), t.Context()
			all := fleettest.Line(t, st, 9)
			fleettest.PromoteTo(t, st, etcd.Scope{}, all[0].Target())
			fleettest.PromoteTo(t, st, etcd.Scope{Role: "compute"}, all[1].Target())
			first := fleettest.Set(t, st, fleettest.Dev, "x", "1", fleettest.Me).After
			fleettest.Set(t, st, fleettest.Dev, "x", "2", fleettest.Me)
			fleettest.Set(t, st, fleettest.Dev, "x", "3", fleettest.Me)
			plan := rollout.Plan{Role: "compute", Target: all[4].Target()}
			there := func() bool { _, err := release.In(st).Get(ctx, all[4].Version); return err == nil }
			if of == "data" {
				plan = rollout.Plan{Target: model.Target{Data: first.Data, DataDigest: first.DataDigest}}
				there = func() bool { _, err := targets.In(st).Generation(ctx, "dev", first.Data); return err == nil }
			}
			prune := func() {
				t.Helper()
				removes, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
				if err == nil {
					_, err = pruning.ApplyPrune(ctx, st, removes)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			plan, err := journal.In(st).Start(ctx, fleettest.Dev, fleettest.Desires(t, st, fleettest.Dev), plan, fleettest.Me)
			if err != nil {
				t.Fatal(err)
			}
			for _, state := range []model.GateState{model.GateOpen, model.GatePaused, model.GateAborted} {
				c, err := journal.In(st).Get(ctx, fleettest.Dev, plan.ID, nil)
				if err == nil {
					err = journal.In(st).Set(ctx, fleettest.Dev, c, state, nil, fleettest.Me)
				}
				if err != nil {
					t.Fatal(err)
				}
				prune()
				if !there() {
					t.Errorf("%s: the target is gone", state)
				}
				_, ofAll := release.In(st).Get(ctx, all[0].Version)
				_, ofRole := release.In(st).Get(ctx, all[1].Version)
				_, data := targets.In(st).Generation(ctx, "dev", 3)
				if err := errors.Join(ofAll, ofRole, data); err != nil {
					t.Errorf("%s: the origin is gone: %v", state, err)
				}
			}
			c, err := journal.In(st).Get(ctx, fleettest.Dev, plan.ID, nil)
			if err == nil {
				_, err = journal.In(st).Revert(ctx, fleettest.Dev, c, fleettest.Me)
			}
			if err != nil {
				t.Fatal(err)
			}
			if prune(); there() != (of == "data") { // its rollout may start again
				t.Errorf("after the end, the target is there: %v", there())
			}
		})
	}
}
