package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// An operator who reads "message larger than max" knows neither what is too large nor what to do.
func TestSizeLimitsHaveWords(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, raw, ctx := fleettest.Open(t, server, ""), server.Client(), t.Context()
	// etcd itself refuses a value of 1.7 MiB. Its client does not send one of 3 MiB.
	for _, mib := range []float64{1.7, 3} {
		h := model.Host{Node: "db1", Role: "db", Hostname: strings.Repeat("x", int(mib*(1<<20)))}
		if err := fleet.In(st).Register(ctx, "dev", h); err == nil || !strings.HasSuffix(err.Error(), "the value is larger than etcd accepts, 1.5 MiB by default\nstore it in smaller parts") {
			t.Errorf("a value of %v MiB: %.300v", mib, err)
		}
	}
	if resp, err := raw.Get(ctx, "/pulley/v1/environments/dev/hosts/nodes/db1", clientv3.WithCountOnly()); err != nil || resp.Count != 0 {
		t.Errorf("it is stored: %v, %v", resp, err)
	}
	if f, err := fleet.In(st).One(ctx, model.Ref{Environment: "dev"}, "db1"); err != nil || f.Known()["db1"] {
		t.Errorf("one node: %v", err)
	}
}

// Thirteen nodes with one large value each stopped `status`, `rollout start`, `doctor` and the start of `serve`: the answer of etcd was too large.
func TestLargeValuesHideNoOthers(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, raw, ctx := fleettest.Open(t, server, ""), server.Client(), t.Context()
	large := `{"v":1,"seen_at":"2026-03-04T05:06:07Z","why":"` + strings.Repeat("x", 1_450_000) + `"}`
	put := func(key, value string) {
		t.Helper()
		if _, err := raw.Put(ctx, "/pulley/v1/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for i := range 50 { // their statuses are more than one answer
		put(fmt.Sprintf("status/dev/bad%d", i+1), large)
	}
	for i := range 13 {
		bad, good := fmt.Sprintf("bad%d", i+1), fmt.Sprintf("web%d", i+1)
		names = append(names, bad, good)
		for _, kind := range []string{"facts/dev/", "environments/dev/hosts/exports/"} {
			put(kind+bad, large)
		}
		put("status/dev/"+good, `{"v":1,"seen_at":"2026-03-04T05:06:07Z"}`)
		put("facts/dev/"+good, "good")
		put("environments/dev/hosts/exports/"+good, `{"v":1,"alive":1}`)
		put("environments/dev/hosts/nodes/"+good, `{"v":1,"node":"`+good+`","role":"web"}`)
	}
	readable := func(what string, n int, damaged []string, err error) {
		t.Helper()
		if err != nil || n != 13 {
			t.Errorf("%s: %d of 13 are readable: %v", what, n, err)
		}
		if damaged != nil && (len(damaged) != 50 || !strings.Contains(damaged[0], "bad1: its value has 1416 KiB")) {
			t.Errorf("%s: %d of 13 are named: %.300q", what, len(damaged), damaged)
		}
	}
	f, err := fleet.In(st).State(ctx, fleettest.Dev)
	var statuses []string
	for _, d := range f.Damaged {
		if strings.Contains(d, "/status/") {
			statuses = append(statuses, d)
		}
	}
	readable("the state", len(f.Statuses), append([]string{}, statuses...), err)
	some, err := fleet.In(st).StatusesOf(ctx, fleettest.Dev, names)
	for i := 13; i < 50; i++ {
		names = append(names, fmt.Sprintf("bad%d", i+1))
	}
	if some, err := fleet.In(st).StatusesOf(ctx, fleettest.Dev, names); err != nil || len(some) != 13 {
		t.Errorf("%d statuses by name: %v", len(some), err)
	}
	readable("statuses by name", len(some), nil, err)
	_, exports, _, err := control.In(st).Hosts(ctx, model.Identity{Environment: "dev", Node: "web1", Role: "web"})
	readable("exports", len(exports), nil, err)
	facts := 0
	err = fleet.In(st).Facts(ctx, fleettest.Dev, func(_ string, b []byte) {
		if string(b) == "good" {
			facts++
		}
	})
	readable("facts", facts, nil, err)
	if at, err := cluster.In(st).NodesTime(ctx); err != nil || at.Year() != 2026 {
		t.Errorf("the time of nodes: %s, %v", at, err)
	}
}
