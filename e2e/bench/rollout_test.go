//go:build bench

package bench

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/serve/control"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/sim"
)

const (
	rolled   = 10000 // nodes
	racks    = 50
	decided  = 21 // runs of each function
	watchers = 5  // looks of a controller
)

// Measures a staged rollout of 10,000 nodes in batches of 1,000: the time of the plan and of each step, and what a controller reads
// and writes. With max_unavailable, it reads all nodes before nodes begin.
func TestBenchRollout(t *testing.T) {
	fmt.Printf("\na rollout of %d nodes in batches of %d, plain text to etcd on loopback; %s, %d CPUs\n\n", rolled, rolled/10, runtime.Version(), runtime.NumCPU())
	var lines []string
	fmt.Println("| policy | plan, ms | step that opens a batch, ms | step that orders it, ms | look, ms |\n|---|---|---|---|---|")
	for _, limited := range []bool{false, true} {
		p, name := rollout.Policy{Canaries: "0"}, "no limit of places"
		if limited {
			p.MaxUnavailable, name = map[string]int{"rack": rolled / racks}, fmt.Sprintf("`max_unavailable` of %d racks", racks)
		}
		lines = append(lines, benchController(t, p, name)...)
	}
	fmt.Println("\n| policy | controller | requests | bytes from etcd | ms |\n|---|---|---|---|---|")
	for _, line := range lines {
		fmt.Println(line)
	}
	fmt.Println()
}

// benchController prints the row of a policy, and returns those of its controller.
func benchController(t *testing.T, p rollout.Policy, name string) (lines []string) {
	t.Helper()
	server, ctx, dev := etcdtest.Start(t), t.Context(), model.Ref{Environment: "dev"}
	registered(t, server, rolled)
	through := startTap(t, server.Endpoint)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{through.endpoint}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	r := release.Release{Version: "1.5.0", Author: "bench", At: time.Now().UTC(), Content: content.Record{Tree: fmt.Sprintf("%064d", 2)}}
	publishing, err := release.In(st).BeginPublish(ctx, "bench")
	if err == nil {
		_, err = release.In(st).Put(ctx, publishing, r, nil, nil)
		err = errors.Join(err, publishing.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := fleet.In(st).Hosts(ctx, dev)
	if err != nil {
		t.Fatal(err)
	}
	d, err := targets.In(st).Desires(ctx, dev)
	if err != nil {
		t.Fatal(err)
	}
	candidates := journal.Candidates(hosts, d, rollout.Plan{Kind: rollout.Take, Target: r.Target()})
	if len(p.Limits()) > 0 {
		for i := range candidates {
			candidates[i].Places = []string{fmt.Sprintf("rack=r%d", i%racks)}
		}
	}
	order := rollout.Order{Target: r.Target(), Origin: d.Default, Policy: p, Roles: []string{"compute"}, By: "bench", At: time.Now()}
	var plan rollout.Plan
	row := []float64{milliseconds(func() { plan, err = rollout.Make(order, candidates) })}
	if err == nil {
		plan, err = journal.In(st).Start(ctx, dev, d, plan, targets.Author{By: "bench", At: time.Now()})
	}
	if err != nil {
		t.Fatal(err)
	}
	row = append(row, benchSteps(t, st, dev, plan)...)
	fmt.Printf("| %s | %.1f | %.1f | %.1f | %.1f |\n", name, row[0], row[1], row[2], row[3])

	count := func(what string, times int, do func()) {
		before, bytes, start := server.Requests(), through.settledBytes(), time.Now()
		for range times {
			do()
		}
		took := time.Since(start)
		requests := float64(server.Requests()-before) / float64(times)
		lines = append(lines, fmt.Sprintf("| %s | %s | %.0f | %.0f | %.0f |", name, what, requests, float64(through.settledBytes()-bytes)/float64(times), 1e3*took.Seconds()/float64(times)))
	}
	c := &control.Controller{DB: st, Ref: dev, Now: time.Now}
	advance := func() {
		if wait, err := c.Advance(ctx); err != nil || wait.Code != rollout.WaitNodes || wait.Count != rolled/10 {
			t.Fatalf("it waits for %+v: %v", wait, err)
		}
	}
	count("reads the plan, opens and orders a batch", 1, advance)
	count("looks at the batch", watchers, advance)
	return lines
}

// benchSteps measures the functions on what the controller reads, and writes nothing.
func benchSteps(t *testing.T, st *etcd.DB, ref model.Ref, plan rollout.Plan) []float64 {
	t.Helper()
	c, err := journal.In(st).Get(t.Context(), ref, plan.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	_, o, err := rollout.Decide(c.Plan, c.State, now, func(needs rollout.Needs) (rollout.Observed, error) {
		return journal.In(st).Observe(t.Context(), ref, c, needs, records.Away, now)
	})
	if err != nil {
		t.Fatal(err)
	}
	var opened, ordered, looked rollout.Step
	opens := milliseconds(func() { opened = rollout.Advance(c.Plan, c.State, o, now) })
	if opened.State == nil || len(opened.State.Slots) != rolled/10 {
		t.Fatalf("it opens no batch: %+v", opened.Wait)
	}
	orders := milliseconds(func() { ordered = rollout.Advance(c.Plan, *opened.State, o, now) })
	if len(ordered.Assign) != rolled/10 {
		t.Fatalf("it orders %d nodes", len(ordered.Assign))
	}
	for _, a := range ordered.Assign {
		n := o.Nodes[a.Node]
		n.Assigned = &a.Assignment
		o.Nodes[a.Node] = n
	}
	looks := milliseconds(func() { looked = rollout.Advance(c.Plan, *opened.State, o, now) })
	if looked.State != nil || len(looked.Assign) > 0 || looked.Wait.Count != rolled/10 {
		t.Fatalf("it waits for %+v", looked.Wait)
	}
	return []float64{opens, orders, looks}
}

// milliseconds returns the median of some runs.
func milliseconds(do func()) float64 {
	var took []float64
	for range decided {
		start := time.Now()
		do()
		took = append(took, 1e3*time.Since(start).Seconds())
	}
	return percentile(took, 50)
}

// Measures how long a rollout of 1,000 simulated agents in 20 batches takes beyond the agents' own time: the longest staging and run
// of each batch.
func TestBenchRolloutOverhead(t *testing.T) {
	fmt.Println("\n| seed | batches | took | the agents' own time | overhead of a batch | wanted: at most |\n|---|---|---|---|---|---|")
	for seed := range uint64(5) {
		c := sim.Thousand(seed)
		r := sim.Run(c)
		if len(r.Violations) > 0 || r.State.Done != c.Nodes {
			t.Fatalf("%d nodes are done: %v", r.State.Done, r.Violations)
		}
		fmt.Printf("| %d | %d | %s | %s | %.1f s | %s |\n", seed, r.Batches, r.Took.Round(time.Second), r.Own.Round(time.Second), (r.Took-r.Own).Seconds()/float64(r.Batches), c.Poll)
	}
	fmt.Println()
}
