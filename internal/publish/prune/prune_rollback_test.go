package prune_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	pruning "pulley/internal/publish"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A rollback to a pruned release would send every node to a target that no node can install.
func TestRollbackToPrunedReleaseIsRefused(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, etcdtest.Start(t), "")
	ctx := t.Context()
	all := fleettest.Line(t, st, 4)
	for _, r := range all {
		fleettest.PromoteTo(t, st, etcd.Scope{}, r.Target())
	}
	for _, value := range []string{"a", "b", "c", "d"} {
		fleettest.Set(t, st, fleettest.Dev, "ntp", value, fleettest.Me)
	}
	history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pruning.PlanPrune(ctx, st, fleettest.Few, time.Now())
	if err == nil {
		_, err = pruning.ApplyPrune(ctx, st, plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := fleettest.Desires(t, st, fleettest.Dev)
	for _, undo := range history {
		b := undo.Before
		wants := "1.0.0"
		switch {
		case b.Data == 1 && b.Release == all[3].Version:
			wants = "data generation 1 of dev"
		case b.Data == 0 && b.Release == all[0].Version:
		default:
			continue
		}
		_, err := targets.In(st).Rollback(ctx, fleettest.Dev, d, undo, fleettest.Me)
		if err == nil || errors.Is(err, etcd.ErrConflict) || !strings.HasPrefix(err.Error(), "cannot roll back to "+wants) || !strings.Contains(err.Error(), ": it was pruned\n") {
			t.Errorf("epoch %d, to %s: %v", undo.Epoch, b, err)
		}
	}
	if now := fleettest.Desires(t, st, fleettest.Dev); now.Default != d.Default || now.Gate != d.Gate {
		t.Errorf("the target is now %s", now.Default)
	}
	undo, ok := targets.Undo(history, etcd.Scope{})
	if !ok || undo.Before.Data != 3 {
		t.Fatalf("the newest is %+v", undo)
	}
	if _, err := targets.In(st).Rollback(ctx, fleettest.Dev, d, undo, fleettest.Me); err != nil {
		t.Errorf("to what was kept: %v", err)
	}
}
