package targets_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// inBatches writes many keys, with few requests.
func inBatches(t *testing.T, c *clientv3.Client, n int, keyOf func(int) (key, value string)) {
	t.Helper()
	for from := 0; from < n; from += 128 {
		var ops []clientv3.Op
		for i := from; i < min(n, from+128); i++ {
			ops = append(ops, clientv3.OpPut(keyOf(i)))
		}
		if _, err := c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// changeOf returns the key and the value of the n-th change of dev, which promotes release 1.0.n.
func changeOf(n int) (key, value string) {
	return fmt.Sprintf("/pulley/v1/environments/dev/history/%012d", n),
		fmt.Sprintf(`{"v":1,"epoch":%d,"kind":"promote","before":{"release":"1.0.%d"},"after":{"release":"1.0.%d"},"at":"2026-03-04T05:06:07Z"}`, n, n-1, n)
}

// before runs do before a call of the store to etcd, once.
func before(t *testing.T, st *etcd.DB, call int32, do func()) (ran *bool) {
	t.Helper()
	ran = new(bool)
	etcdtest.BeforeCalls(st, func(n int32) {
		if n == call {
			*ran = true
			do()
		}
	})
	return ran
}

func compact(t *testing.T, c *clientv3.Client) {
	t.Helper()
	resp, err := c.Put(t.Context(), "/other", "x")
	if err == nil {
		_, err = c.Compact(t.Context(), resp.Header.Revision)
	}
	if err != nil {
		t.Error(err)
	}
}

// A history of several pages has each change once and in order, whoever writes or prunes between two pages.
func TestHistoryIsReadPageByPage(t *testing.T) {
	t.Parallel()
	const changes = 1300 // three pages
	// check returns the number of changes of a history that begins with the newest one, without a gap before from.
	check := func(t *testing.T, history []targets.Change, newest, contiguous int) {
		t.Helper()
		for i, c := range history {
			if i > 0 && c.Epoch >= history[i-1].Epoch {
				t.Fatalf("epoch %d follows %d", c.Epoch, history[i-1].Epoch)
			}
			if i < contiguous && int(c.Epoch) != newest-i {
				t.Fatalf("change %d is of epoch %d", i, c.Epoch)
			}
		}
	}
	start := func(t *testing.T) (*etcdtest.Server, *etcd.DB, context.Context) {
		t.Parallel()
		server := etcdtest.Start(t)
		inBatches(t, server.Client(), changes, func(i int) (string, string) { return changeOf(i + 1) })
		return server, fleettest.Open(t, server, ""), t.Context()
	}
	t.Run("a change between two pages", func(t *testing.T) {
		server, st, ctx := start(t)
		ran := before(t, st, 2, func() {
			if _, err := server.Client().Put(ctx, "/other", "x"); err != nil {
				t.Error(err)
			}
			inBatches(t, server.Client(), 1, func(int) (string, string) { return changeOf(changes + 1) })
		})
		history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0)
		if err != nil || !*ran || len(history) != changes {
			t.Fatalf("%d changes, %v", len(history), err)
		}
		check(t, history, changes, changes)
		if history, _, err = targets.In(st).History(ctx, fleettest.Dev, 700); err != nil || len(history) != 700 {
			t.Fatalf("%d changes, %v", len(history), err)
		}
		check(t, history, changes+1, 700)
	})
	t.Run("a prune between two pages", func(t *testing.T) {
		server, st, ctx := start(t)
		ran := before(t, st, 3, func() {
			if n, err := targets.In(fleettest.Open(t, server, "")).PruneHistory(ctx, "dev", targets.HistoryKept, fleettest.Me.At); err != nil || n != changes-targets.HistoryKept {
				t.Errorf("%d pruned, %v", n, err)
			}
			compact(t, server.Client())
		})
		history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0)
		if err != nil || !*ran || len(history) != targets.HistoryKept {
			t.Fatalf("%d changes, %v", len(history), err)
		}
		check(t, history, changes, targets.HistoryKept)
	})
	t.Run("a decision on a compacted revision", func(t *testing.T) {
		server, st, ctx := start(t)
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		before(t, st, 2, func() { compact(t, server.Client()) })
		if _, err := targets.In(st).HistoryOf(ctx, fleettest.Dev, d); !errors.Is(err, etcd.ErrConflict) {
			t.Errorf("%v: want an error after which the caller reads again", err)
		}
		if d, err = targets.In(st).Desires(ctx, fleettest.Dev); err != nil {
			t.Fatal(err)
		}
		history, err := targets.In(st).HistoryOf(ctx, fleettest.Dev, d)
		if err != nil || len(history) != changes {
			t.Fatalf("%d changes, %v", len(history), err)
		}
		check(t, history, changes, changes)
	})
}

// The targets of a large fleet are those of one moment: a mixture of two would look like a contradiction, or be signed.
func TestTargetsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	const nodes = 2500
	start := func(t *testing.T) (*etcdtest.Server, *etcd.DB, context.Context, func(release string)) {
		t.Parallel()
		server, ctx := etcdtest.Start(t), t.Context()
		c := server.Client()
		write := func(release string) {
			if _, err := c.Put(ctx, "/pulley/v1/environments/dev/desired/default", fmt.Sprintf(`{"v":1,"release":%q}`, release)); err != nil {
				t.Error(err)
			}
			inBatches(t, c, nodes, func(i int) (string, string) {
				return fmt.Sprintf("/pulley/v1/environments/dev/desired/nodes/web%d", i+1), fmt.Sprintf(`{"v":1,"release":%q}`, release)
			})
		}
		write("1.0.0")
		return server, fleettest.Open(t, server, ""), ctx, write
	}
	all := func(t *testing.T, d targets.Desires, release string) {
		t.Helper()
		want := model.Target{Release: release}
		if d.Default != want || len(d.Nodes) != nodes {
			t.Fatalf("default %v, %d nodes", d.Default, len(d.Nodes))
		}
		for node, target := range d.Nodes {
			if target != want {
				t.Fatalf("%s has %v, want %s", node, target, release)
			}
		}
	}
	t.Run("a change between two pages", func(t *testing.T) {
		_, st, ctx, write := start(t)
		ran := before(t, st, 3, func() { write("2.0.0") })
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err != nil || !*ran {
			t.Fatal(err)
		}
		all(t, d, "1.0.0")
	})
	t.Run("a prune between two pages", func(t *testing.T) {
		server, st, ctx, write := start(t)
		ran := before(t, st, 3, func() { write("2.0.0"); compact(t, server.Client()) })
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err != nil || !*ran {
			t.Fatal(err)
		}
		all(t, d, "2.0.0")
	})
}
