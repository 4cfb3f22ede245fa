package journal_test

import (
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/testbed/fleettest"
)

// TestObserveSeesReplacedMachines: without it, a rollout would take the other node of a pair while an apply replaces the machine of the one.
func TestObserveSeesReplacedMachines(t *testing.T) {
	t.Parallel()
	st, places := fleettest.Open(t, fleettest.Shared.Keyspace(t), ""), []string{"pair=a"}
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	for _, r := range []machines.Record{
		{Node: "web1", Phase: machines.Making, Places: places}, {Node: "web2", Phase: machines.Retiring, Places: places},
		{Node: "web3", Phase: machines.Made, Joined: true, Places: places}, {Node: "web4", Phase: machines.Made}, // an operator removed web3
	} {
		if err := a.Put(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	c := &journal.Campaign{Plan: rollout.Plan{ID: "r1", Kind: rollout.Take, Policy: rollout.Policy{MaxUnavailable: map[string]int{"pair": 1}}}}
	for _, all := range []bool{false, true} {
		o, err := journal.In(st).Observe(t.Context(), fleettest.Dev, c, rollout.Needs{Nodes: []string{"web1", "web2", "web3", "web4", "web5"}, All: all}, records.Away, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for node, want := range map[string]bool{"web1": true, "web2": true, "web3": false, "web4": false, "web5": false} {
			if o.Nodes[node].Replaced != want {
				t.Errorf("%s is replaced: %t (all: %t)", node, o.Nodes[node].Replaced, all)
			}
		}
	}
}
