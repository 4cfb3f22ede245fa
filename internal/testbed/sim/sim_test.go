package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/rollout"
)

var (
	seeds = flag.Uint64("sim.seeds", 12, "number of simulated campaigns")
	first = flag.Uint64("sim.seed", 1, "the first seed; with -sim.seeds 1 it replays a failure")
)

// configOf draws a fleet and its misfortunes from a seed.
func configOf(seed uint64) Config {
	pick := func(n uint64) uint64 { return seed / n }
	c := Config{
		Seed: seed, Nodes: 6 + int(seed*37%50), Controllers: 1 + int(seed%3), Until: 4 * time.Hour,
		Chaos: []float64{0, 0.05, 0.2, 0.5}[pick(3)%4], Operators: []float64{0, 2, 6}[pick(5)%3], Broken: []float64{0, 0, 0.02, 0.2}[pick(7)%4],
		Restore: seed%5 == 0,
		Policy: rollout.Policy{
			Canaries: "2", Batch: []rollout.Share{"10%", "1", "25%"}[pick(2)%3], Failures: []rollout.Share{"0", "2", "10%"}[pick(11)%3],
			Settle: model.Duration([]time.Duration{0, 2 * time.Minute}[pick(2)%2]), Deadline: model.Duration(20 * time.Minute),
			Progress: model.Duration(time.Hour), Retries: int(pick(4) % 2),
			Unready: []map[rollout.UnreadyCause]rollout.Unready{
				nil, {rollout.UnreadyOthers: rollout.UnreadySkip}, {rollout.UnreadyOthers: rollout.UnreadyFail},
				{rollout.UnreadySilent: rollout.UnreadySkip, rollout.UnreadyStuck: rollout.UnreadyFail}, {rollout.UnreadyHeld: rollout.UnreadyFail, rollout.UnreadyOthers: rollout.UnreadySkip},
			}[pick(13)%5],
			Sample: []int{0, 0, 5, 20}[pick(19)%4], BatchFailures: []rollout.Share{"", "", "1", "30%"}[pick(23)%4],
			Promote: []rollout.Promotion{rollout.Automatic, rollout.Automatic, rollout.Manual, rollout.Batches}[pick(17)%4],
		},
	}
	if seed%4 == 0 {
		c.Policy.MaxUnavailable = map[string]int{"rack": 1}
	}
	if seed%8 == 2 {
		c.Policy.MaxPlaces = map[string]int{"rack": 1}
	}
	if seed%2 == 0 {
		c.New = 0.2
	}
	if seed%6 == 1 {
		c.Policy.Windows = windows
	}
	if seed%7 == 3 {
		c.Policy.Gates = []string{"smoke", "errors"}
	}
	if seed%3 == 1 {
		c.Policy.Roles = map[string]rollout.RolePolicy{"db": {Batch: "1", BatchFailures: "0"}, "app": {Batch: "2"}}
	}
	if seed%2 == 0 {
		c.Policy.Skip = "2"
	}
	if seed%4 == 1 {
		c.Joins = 8
	}
	if seed%9 == 4 { // nothing but nodes on which the target fails, and a percentage of the first ones decides
		c.Nodes, c.Broken, c.Chaos, c.Operators, c.Restore = 60, 0.15, 0, 0, false
		c.Policy = rollout.Policy{Canaries: "2", Batch: "10%", Failures: "20%", Sample: 5, Deadline: c.Policy.Deadline}
	}
	if seed%5 == 2 { // the release in place fails on some nodes
		c.Ill = 0.4
		if len(c.Policy.MaxPlaces) == 0 {
			c.Policy.MaxUnavailable = map[string]int{"rack": 1}
		}
	}
	if seed%10 == 2 { // and nothing else does: the target repairs all of them
		c.Broken, c.Chaos, c.Operators, c.Restore = 0, 0, 0, false
		c.Policy.Unready, c.Policy.Promote, c.Policy.Windows = nil, rollout.Automatic, nil
		c.Role = []string{"web", "db"}[pick(10)%2] // groups follow each other, and a broken node of a later one keeps others back
	}
	if seed%8 == 6 { // nodes outside of the rollout claim the racks of others, and fall silent
		c.Role, c.Liars, c.Policy.MaxUnavailable = "web", 2, map[string]int{"rack": 1}
	}
	if seed%100 == 99 {
		c.Nodes = 1000
	}
	return c
}

// TestCampaigns: without it, a rollout could exceed its budget, overlap its groups, start after an abort or never end.
func TestCampaigns(t *testing.T) {
	t.Parallel()
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := Run(configOf(seed))
			for _, v := range r.Violations {
				t.Errorf("%s\nreplay it: go test ./internal/testbed/sim -run TestCampaigns -sim.seed %d -sim.seeds 1", v, seed)
			}
			t.Logf("%s after %v: %d advances, %d admissions, %d done, %d failed, waits for %s", r.State.Phase, r.Took, r.Advances, r.Admissions, r.State.Done, len(r.State.Failed), r.Wait.Code)
		})
	}
}

// TestReverts: without it, a node could stay on a release that was taken back, whatever happened at that moment.
func TestReverts(t *testing.T) {
	t.Parallel()
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := configOf(seed)
			rng := rand.New(rand.NewPCG(seed, 7))
			if seed%3 == 0 {
				c.Policy.OnFailure, c.Broken = rollout.FailureReverts, 0.2
			} else {
				c.Revert = time.Duration(rng.Int64N(int64(c.Until / 2)))
			}
			r := Run(c)
			for _, v := range r.Violations {
				t.Errorf("%s\nreplay it: go test ./internal/testbed/sim -run TestReverts -sim.seed %d -sim.seeds 1", v, seed)
			}
			t.Logf("%s after %v: %d advances, %d admissions, %d done, %d failed, waits for %s", r.State.Phase, r.Took, r.Advances, r.Admissions, r.State.Done, len(r.State.Failed), r.Wait.Code)
		})
	}
}

// TestOverhead: without it, a rollout could be slow although its agents are fast.
func TestOverhead(t *testing.T) {
	if testing.Short() {
		t.Skip("it simulates 1,000 agents")
	}
	t.Parallel()
	c := Thousand(*first)
	r := Run(c)
	for _, v := range r.Violations {
		t.Error(v)
	}
	overhead := (r.Took - r.Own) / time.Duration(max(r.Batches, 1))
	if r.State.Done != c.Nodes || r.Batches != 20 || overhead > c.Poll {
		t.Errorf("%d nodes in %d batches took %v, of which %v are runs: %v more in each batch", r.State.Done, r.Batches, r.Took, r.Own, overhead)
	}
	t.Logf("%d batches took %v, of which %v are runs: %v more in each batch", r.Batches, r.Took, r.Own, overhead)
}
