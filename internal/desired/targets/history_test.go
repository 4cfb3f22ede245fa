package targets_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// The history of a fleet whose CI promotes fifty times a day must not fill etcd. What is left must still name the last
// change of each scope, and the highest release and data: a permit to go back leads from there.
func TestPruneHistoryKeepsWhatDecisionsNeed(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	put := func(key, value string) {
		t.Helper()
		if _, err := server.Client().Put(ctx, key, value); err != nil {
			t.Fatal(err)
		}
	}
	change := func(epoch int, role, node, release string, data model.Generation) {
		t.Helper()
		put(fmt.Sprintf("/pulley/v1/environments/dev/history/%012d", epoch),
			fmt.Sprintf(`{"v":1,"epoch":%d,"kind":"promote","role":%q,"node":%q,"after":{"release":%q,"data":%d},"at":"2026-03-04T05:06:07Z"}`, epoch, role, node, release, data))
		put(fmt.Sprintf("/pulley/v1/environments/dev/rollbacks/%012d", epoch), "{}")
	}
	change(1, "", "", "1.0.0", 0)
	change(2, "compute", "", "1.0.0", 0)
	change(3, "compute", "", "1.1.0", 0) // last of its role
	change(4, "", "", "9.0.0", 0)        // highest release
	change(5, "", "", "1.1.0", 9)        // highest data
	change(6, "", "web1", "1.0.0", 0)    // last of its node
	for epoch := 7; epoch <= 130; epoch++ {
		change(epoch, "", "", "1.1.0", 0)
	}
	if n, err := targets.In(st).PruneHistory(ctx, "dev", 130, fleettest.Me.At); n != 0 || err != nil {
		t.Errorf("short enough: %d, %v", n, err)
	}
	n, err := targets.In(st).PruneHistory(ctx, "dev", 3, fleettest.Me.At)
	if err != nil || n != 123 {
		t.Errorf("%d deleted, %v", n, err)
	}
	history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	var left []model.Epoch
	for _, c := range history {
		left = append(left, c.Epoch)
	}
	if want := []model.Epoch{130, 129, 128, 6, 5, 4, 3}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	permits := slices.DeleteFunc(server.Keys(), func(key string) bool { return !strings.HasPrefix(key, "/pulley/v1/environments/dev/rollbacks/") })
	if len(permits) != 7 {
		t.Errorf("permits %v", permits)
	}
	if n, err := targets.In(st).PruneHistory(ctx, "dev", 3, fleettest.Me.At); n != 0 || err != nil {
		t.Errorf("again: %d, %v", n, err)
	}
}

// Whether nodes may still use the permit of a change depends on when the release and the data were set. Without that change, a used
// permit would count.
func TestPruneHistoryKeepsTheSettingChanges(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	put := func(epoch int, role, before, after string) {
		t.Helper()
		key := fmt.Sprintf("/pulley/v1/environments/dev/history/%012d", epoch)
		value := fmt.Sprintf(`{"v":1,"epoch":%d,"kind":"promote","role":%q,"before":%s,"after":%s}`, epoch, role, before, after)
		if _, err := server.Client().Put(ctx, key, value); err != nil {
			t.Fatal(err)
		}
	}
	high, low := `{"release":"2.0.0","tree":"b","data":9}`, `{"release":"1.0.0","tree":"a","data":4}`
	put(1, "", `{}`, high) // highest release and data
	put(2, "web", `{}`, `{"release":"1.0.0","tree":"a"}`)
	put(3, "", high, `{"release":"1.0.0","tree":"a","data":9}`) // sets the release
	put(4, "", `{"release":"1.0.0","tree":"a","data":9}`, low)  // sets the data
	put(5, "web", `{"release":"1.0.0","tree":"a"}`, `{"release":"1.0.0","tree":"a"}`)
	for epoch := 6; epoch <= 20; epoch++ {
		put(epoch, "", low, low) // promoted again, to sign it
	}
	if _, err := targets.In(st).PruneHistory(ctx, "dev", 3, fleettest.Me.At); err != nil {
		t.Fatal(err)
	}
	history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0)
	var left []model.Epoch
	for _, c := range history {
		left = append(left, c.Epoch)
	}
	if want := []model.Epoch{20, 19, 18, 5, 4, 3, 2, 1}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left %v, want %v; %v", left, want, err)
	}
}

// Somebody writes many changes by hand, or deletes one. The older changes may be all that shows the right targets.
func TestPruneHistoryKeepsEvidence(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(epoch int) int{
		"a gap":                            func(epoch int) int { return epoch + epoch/8 },
		"an epoch that no change can have": func(epoch int) int { return 999_999_000_000 + epoch },
	} {
		server := etcdtest.Start(t)
		st, ctx := fleettest.Open(t, server, ""), t.Context()
		for epoch := 1; epoch <= 10; epoch++ {
			key := fmt.Sprintf("/pulley/v1/environments/dev/history/%012d", forge(epoch))
			if _, err := server.Client().Put(ctx, key, fmt.Sprintf(`{"v":1,"epoch":%d,"kind":"promote"}`, forge(epoch))); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := targets.In(st).PruneHistory(ctx, "dev", 5, fleettest.Me.At); n != 0 || err == nil || !strings.Contains(err.Error(), "pulley recover -e dev") {
			t.Errorf("%s: %d deleted, %v", name, n, err)
		}
		if history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0); err != nil || len(history) != 10 {
			t.Errorf("%s: %d changes are left, %v", name, len(history), err)
		}
	}
}

// A rollback that steps over deleted changes would restore a target that was never before.
func TestUndoStopsAtDeletedChanges(t *testing.T) {
	t.Parallel()
	target := func(release string) model.Target { return model.Target{Release: release} }
	var history []targets.Change // newest first, with a gap before the oldest two
	for epoch := model.Epoch(5000); epoch > 5000-targets.HistoryKept; epoch-- {
		history = append(history, targets.Change{Epoch: epoch, Kind: targets.Promoted, Before: target(fmt.Sprintf("1.0.%d", epoch-1)), After: target(fmt.Sprintf("1.0.%d", epoch))})
	}
	oldest := history[len(history)-1]
	pin := targets.Change{Epoch: 40, Kind: targets.Promoted, Role: "compute", After: target("0.9.0")}
	history = append(history, pin, targets.Change{Epoch: 30, Kind: targets.Promoted, Before: target("8.0.0"), After: target("9.0.0")})

	if undo, ok := targets.Undo(history, etcd.Scope{Role: "compute"}); !ok || undo != pin {
		t.Errorf("the last change of a role: %+v, %t", undo, ok)
	}
	back := targets.Change{Epoch: 5001, Kind: targets.RolledBack, Undoes: oldest.Epoch}
	if undo, ok := targets.Undo(append([]targets.Change{back}, history[:len(history)-3]...), etcd.Scope{}); ok {
		t.Errorf("beyond the oldest change: %+v", undo)
	}
	if undo, ok := targets.Undo(slices.Concat([]targets.Change{back}, history), etcd.Scope{}); ok {
		t.Errorf("beyond the gap: %+v", undo)
	}
	if got := targets.OldestReachable(history); got != oldest.Epoch-1 {
		t.Errorf("oldest %d", got)
	}
	if undo, ok := targets.UndoTo(history, etcd.Scope{}, oldest.Epoch-1); !ok || undo != oldest {
		t.Errorf("%+v, %t", undo, ok)
	}
	if got := targets.OldestReachable(history[len(history)-1:]); got != 29 {
		t.Errorf("a short history without its beginning: %d", got)
	}
	if got := targets.OldestReachable(nil); got != 0 {
		t.Errorf("no history: %d", got)
	}
}

// One unreadable change must not hide the others from a person, and nothing may decide without it.
func TestUnreadableChangeIsSkippedInListsOnly(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	put := func(epoch int, value string) {
		t.Helper()
		if _, err := server.Client().Put(ctx, fmt.Sprintf("/pulley/v1/environments/dev/history/%012d", epoch), value); err != nil {
			t.Fatal(err)
		}
	}
	for epoch := 1; epoch <= 4; epoch++ {
		put(epoch, fmt.Sprintf(`{"v":1,"epoch":%d,"kind":"promote"}`, epoch))
	}
	put(2, "?")
	put(5, `{"v":1,"epoch":9,"kind":"promote"}`)
	for limit, want := range map[int][]model.Epoch{0: {4, 3, 1}, 1: {4}, 3: {4, 3, 1}} {
		var got []model.Epoch
		all, damaged, err := targets.In(st).History(ctx, fleettest.Dev, limit)
		for _, c := range all {
			got = append(got, c.Epoch)
		}
		if err != nil || !slices.Equal(got, want) || len(damaged) == 0 || !strings.Contains(damaged[0], "history/000000000005: it is the change of epoch 9") {
			t.Errorf("limit %d: %v, %q, %v; want %v", limit, got, damaged, err, want)
		}
	}
	d, err := targets.In(st).Desires(ctx, fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	_, last := targets.In(st).Last(ctx, fleettest.Dev)
	_, led := targets.In(st).HistoryOf(ctx, fleettest.Dev, d)
	_, prune := targets.In(st).PruneHistory(ctx, "dev", 1, fleettest.Me.At)
	for what, err := range map[string]error{"the last change": last, "all changes": led, "a prune": prune} {
		if !errors.As(err, new(*etcd.UnreadableError)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
