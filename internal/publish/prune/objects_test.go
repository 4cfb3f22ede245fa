package prune_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/publish/prune"
	"pulley/internal/release"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A node fifty releases behind needs one or two requests. Etcd must not build a line of large deltas in memory at
// once.
func TestDeltasComeInPages(t *testing.T) {
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	raw := server.Client()
	put := func(line string, seq, size int) {
		t.Helper()
		if _, err := raw.Put(ctx, fmt.Sprintf("/pulley/v1/deltas/%s/%09d", line, seq), strings.Repeat(fmt.Sprint(seq%10), size)); err != nil {
			t.Fatal(err)
		}
	}
	for seq := 1; seq <= 200; seq++ {
		put("1.0.0", seq, 1+seq)
		put("1.0.0-rc1", seq, 1)
	}
	for seq := 1; seq <= 10; seq++ {
		put("2.0.0", seq, 400<<10)
	}
	for _, c := range []struct {
		line     string
		from, to int64
		requests int
	}{{"1.0.0", 1, 50, 1}, {"1.0.0", 7, 7, 1}, {"1.0.0", 1, 200, 4}, {"2.0.0", 1, 10, 1}, {"1.0.0", 5, 4, 0}} {
		before := server.Requests()
		got, err := release.In(st).Deltas(ctx, c.line, c.from, c.to)
		if n := server.Requests() - before; err != nil || n != c.requests {
			t.Errorf("%s from %d to %d: %d requests, %v", c.line, c.from, c.to, n, err)
		}
		if int64(len(got)) != c.to-c.from+1 {
			t.Errorf("%s from %d to %d: %d deltas", c.line, c.from, c.to, len(got))
		}
		for i, b := range got {
			if seq := c.from + int64(i); b[0] != byte('0'+seq%10) || c.line == "1.0.0" && int64(len(b)) != 1+seq {
				t.Errorf("%s: at position %d stands %.10q", c.line, seq, b)
			}
		}
	}
	server.Drop("/pulley/v1/deltas/1.0.0/000000040")
	for _, c := range [][2]int64{{1, 50}, {40, 40}, {40, 50}} {
		if _, err := release.In(st).Deltas(ctx, "1.0.0", c[0], c[1]); !errors.Is(err, etcd.ErrNotFound) || !strings.Contains(err.Error(), "position 40:") {
			t.Errorf("from %d to %d: %v", c[0], c[1], err)
		}
	}
	if _, err := release.In(st).Deltas(ctx, "1.0.0", 200, 201); err == nil || !strings.Contains(err.Error(), "position 201:") {
		t.Errorf("behind the end: %v", err)
	}
	facts, err := prune.In(st).PruneFacts(ctx)
	keys := facts.Deltas
	if err != nil || len(keys) != 199+200+10 || keys[200] != (release.DeltaKey{Line: "1.0.0", Seq: 1}) {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

// A prune depends on the list of objects: no single answer may contain them all.
func TestObjectsAreListedPageByPage(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx, raw := t.Context(), server.Client()
	const all = 1203
	var puts []clientv3.Op
	for i := range all {
		puts = append(puts, clientv3.OpPut(fmt.Sprintf("/pulley/v1/content/%064x", i), "x"))
	}
	for batch := range slices.Chunk(puts, etcd.MaxOps) {
		if _, err := raw.Txn(ctx).Then(batch...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	if err := release.In(st).Objects(ctx, func(hash string) error { seen[hash] = true; return nil }); err != nil || len(seen) != all {
		t.Errorf("%d objects, %v", len(seen), err)
	}
	if _, err := raw.Put(ctx, "/pulley/v1/content/a/b", "x"); err != nil {
		t.Fatal(err)
	}
	if err := release.In(st).Objects(ctx, func(string) error { return nil }); err == nil || !strings.Contains(err.Error(), "content/a/b") {
		t.Errorf("a key that is not Pulley's: %v", err)
	}
}
