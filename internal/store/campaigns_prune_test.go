package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
	pruning "pulley/internal/publish"
	"pulley/internal/rollout"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
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
	if err := r.st.Campaigns.Set(t.Context(), dev, r.campaign(aborted), model.GateAborted, nil, me); err != nil {
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
		deleted, err := r.st.Campaigns.Prune(t.Context(), dev, c.keep)
		if err != nil || deleted != c.deleted {
			t.Errorf("with %d kept, %d deleted: %v", c.keep, deleted, err)
		}
		list, damaged, err := r.st.Campaigns.List(t.Context(), dev)
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
			st, ctx := open(t, etcdtest.Start(t), ""), t.Context()
			all := line(t, st, 9)
			promoteTo(t, st, store.Scope{}, all[0].Target())
			promoteTo(t, st, store.Scope{Role: "compute"}, all[1].Target())
			first := set(t, st, dev, "x", "1", me).After
			set(t, st, dev, "x", "2", me)
			set(t, st, dev, "x", "3", me)
			plan := rollout.Plan{Role: "compute", Target: all[4].Target()}
			there := func() bool { _, err := st.Releases.Get(ctx, all[4].Version); return err == nil }
			if of == "data" {
				plan = rollout.Plan{Target: model.Target{Data: first.Data, DataDigest: first.DataDigest}}
				there = func() bool { _, err := st.Targets.Generation(ctx, "dev", first.Data); return err == nil }
			}
			prune := func() {
				t.Helper()
				removes, err := pruning.PlanPrune(ctx, st, few, time.Now())
				if err == nil {
					_, err = pruning.ApplyPrune(ctx, st, removes)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			plan, err := st.Campaigns.Start(ctx, dev, desires(t, st, dev), plan, me)
			if err != nil {
				t.Fatal(err)
			}
			for _, state := range []model.GateState{model.GateOpen, model.GatePaused, model.GateAborted} {
				c, err := st.Campaigns.Get(ctx, dev, plan.ID, nil)
				if err == nil {
					err = st.Campaigns.Set(ctx, dev, c, state, nil, me)
				}
				if err != nil {
					t.Fatal(err)
				}
				prune()
				if !there() {
					t.Errorf("%s: the target is gone", state)
				}
				_, release := st.Releases.Get(ctx, all[0].Version)
				_, ofRole := st.Releases.Get(ctx, all[1].Version)
				_, data := st.Targets.Generation(ctx, "dev", 3)
				if err := errors.Join(release, ofRole, data); err != nil {
					t.Errorf("%s: the origin is gone: %v", state, err)
				}
			}
			c, err := st.Campaigns.Get(ctx, dev, plan.ID, nil)
			if err == nil {
				_, err = st.Campaigns.Revert(ctx, dev, c, me)
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
