package sim

import (
	"fmt"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/rollout"
)

// jobOf draws a fleet, a job and their misfortunes from a seed.
func jobOf(seed uint64) JobConfig {
	pick := func(n uint64) uint64 { return seed / n }
	c := JobConfig{Layers: 1 + int(pick(3)%5), Lapses: seed%6 == 4, Config: Config{
		Seed: seed, Nodes: 6 + int(seed*37%50), Controllers: 1 + int(seed%3), Until: 90 * time.Minute,
		Chaos: []float64{0, 0.05, 0.2, 0.5}[pick(3)%4], Operators: []float64{0, 2, 6}[pick(5)%3], Broken: []float64{0, 0, 0.02, 0.2}[pick(7)%4],
		Restore: seed%5 == 0,
		Policy: rollout.Policy{
			Batch: []rollout.Share{"", "3", "25%"}[pick(2)%3], Concurrency: []int{0, 2, 1}[pick(11)%3], Deadline: model.Duration(20 * time.Minute),
		},
	}}
	if seed%7 == 5 && !c.Restore {
		c.Again = true
	}
	if seed%1000 == 999 {
		c.Nodes, c.Policy.Concurrency = 1000, 50
	}
	return c
}

// TestJobs: without it, a job could run too many nodes, run them beside those that they need, or leave nodes waiting for ever.
func TestJobs(t *testing.T) {
	t.Parallel()
	for seed := *first; seed < *first+8**seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := RunJob(jobOf(seed))
			for _, v := range r.Violations {
				t.Errorf("%s\nreplay it: go test ./internal/testbed/sim -run 'TestJobs/^%d$' -sim.seed %[2]d -sim.seeds 1", v, seed)
			}
			t.Logf("%s after %v: %d advances, %d turns, %d at once, %d done, %d failed, %d skipped", r.State.Phase, r.Took, r.Advances, r.Admissions, r.Most, r.State.Done, len(r.State.Failed), len(r.State.Skipped))
		})
	}
}

// TestJobOverhead: without it, a job could be slow although its agents are fast.
func TestJobOverhead(t *testing.T) {
	if testing.Short() {
		t.Skip("it simulates 1,000 agents")
	}
	t.Parallel()
	c := ThousandInOrder(*first)
	r := RunJob(c)
	for _, v := range r.Violations {
		t.Error(v)
	}
	overhead := (r.Took - r.Own) / time.Duration(max(r.Batches, 1))
	if r.State.Done != c.Nodes || len(r.State.Times) != 12 || r.Batches != 24 || r.Most < 40 || r.Most > 50 || overhead > c.Poll {
		t.Errorf("%d nodes in %d batches of %d groups, %d at once, took %v, of which %v are runs: %v more in each batch", r.State.Done, r.Batches, len(r.State.Times), r.Most, r.Took, r.Own, overhead)
	}
	t.Logf("%d batches took %v, of which %v are runs: %v more in each batch; %d at once", r.Batches, r.Took, r.Own, overhead, r.Most)
}
