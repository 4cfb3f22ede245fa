package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	pruning "pulley/internal/publish"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// A rollback to a pruned release would send every node to a target that no node can install.
func TestRollbackToPrunedReleaseIsRefused(t *testing.T) {
	t.Parallel()
	st := open(t, etcdtest.Start(t), "")
	ctx := t.Context()
	all := line(t, st, 4)
	for _, r := range all {
		promoteTo(t, st, store.Scope{}, r.Target())
	}
	for _, value := range []string{"a", "b", "c", "d"} {
		set(t, st, dev, "ntp", value, me)
	}
	history, _, err := st.Targets.History(ctx, dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pruning.PlanPrune(ctx, st, few, time.Now())
	if err == nil {
		_, err = pruning.ApplyPrune(ctx, st, plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := desires(t, st, dev)
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
		_, err := st.Targets.Rollback(ctx, dev, d, undo, me)
		if err == nil || errors.Is(err, store.ErrConflict) || !strings.HasPrefix(err.Error(), "cannot roll back to "+wants) || !strings.Contains(err.Error(), ": it was pruned\n") {
			t.Errorf("epoch %d, to %s: %v", undo.Epoch, b, err)
		}
	}
	if now := desires(t, st, dev); now.Default != d.Default || now.Gate != d.Gate {
		t.Errorf("the target is now %s", now.Default)
	}
	undo, ok := store.Undo(history, store.Scope{})
	if !ok || undo.Before.Data != 3 {
		t.Fatalf("the newest is %+v", undo)
	}
	if _, err := st.Targets.Rollback(ctx, dev, d, undo, me); err != nil {
		t.Errorf("to what was kept: %v", err)
	}
}
