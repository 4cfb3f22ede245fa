package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pulley/internal/model"
)

// fleetOf lists nodes: "web*3 db*2" is web1, web2, web3, db1 and db2.
func fleetOf(text string) (all []Candidate) {
	for _, word := range strings.Fields(text) {
		role, count, _ := strings.Cut(word, "*")
		n := 0
		_, _ = fmt.Sscan(count, &n)
		for i := range n {
			node := fmt.Sprintf("%s%d", role, i+1)
			all = append(all, Candidate{Node: node, Role: role, Machine: "m-" + node, Canary: role == "canary"})
		}
	}
	return all
}

// shape renders groups and batches: "canaries db1 | db db2 db3, db4".
func shape(p Plan) string {
	var groups []string
	for _, g := range p.Groups {
		var batches []string
		for i := range g.Batches() {
			var names []string
			from, to := g.batch(i)
			for _, m := range g.Nodes[from:to] {
				names = append(names, m.Node)
			}
			batches = append(batches, strings.Join(names, " "))
		}
		name := string(g.Kind)
		if g.Kind == OfRole {
			name = g.Role
		}
		groups = append(groups, name+": "+strings.Join(batches, ", "))
	}
	return strings.Join(groups, " | ")
}

// TestPlanSpreadsPlaces: a batch whose nodes wait for each other would make a rollout many times slower.
func TestPlanSpreadsPlaces(t *testing.T) {
	t.Parallel()
	fleet := fleetOf("web*6")
	for i := range fleet {
		fleet[i].Places = []string{fmt.Sprintf("pair=%d", i/2), fmt.Sprintf("rack=%d", i/4)}
	}
	for _, c := range []struct {
		policy Policy
		want   string
	}{
		{Policy{MaxUnavailable: map[string]int{"pair": 1}}, "web: web1 web3 web5, web2 web4 web6"},
		{Policy{MaxPlaces: map[string]int{"rack": 1}}, "web: web1 web2 web3, web4 web5 web6"},
		{Policy{MaxUnavailable: map[string]int{"pair": 1}, MaxPlaces: map[string]int{"rack": 1}}, "web: web1 web3 web2, web4 web5 web6"},
	} {
		c.policy.Canaries, c.policy.Batch = "0", "3"
		p, err := Make(Order{Policy: c.policy}, fleet)
		if got := shape(p); err != nil || got != c.want {
			t.Errorf("%v: %s (%v)", c.policy.Limits(), got, err)
		}
	}
}

// TestPlanRepairsFirst: a canary that waits for a broken node of its pair would wait for ever, because the release repairs that one later.
// Without limits of places, nothing waits, and the order stays.
func TestPlanRepairsFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		broken string // web1, if it is not broken, is new: it converges before its turn
		policy Policy
		want   string
	}{
		{"web2 web6", Policy{MaxUnavailable: map[string]int{"pair": 1}}, "canaries: web3 | web: web2 web6, web1 web5, web4"},
		{"web2 web4 web6", Policy{MaxUnavailable: map[string]int{"pair": 1}}, "canaries: web2 | web: web4 web6, web1 web3, web5"},
		{"web4", Policy{MaxPlaces: map[string]int{"rack": 1}}, "canaries: web4 | web: web1 web2, web3 web5, web6"},
		{"web2 web6", Policy{}, "canaries: web1 | web: web2 web3, web4 web5, web6"},
	} {
		fleet := fleetOf("web*6")
		for i := range fleet {
			fleet[i].Places = []string{fmt.Sprintf("pair=%d", i/2), fmt.Sprintf("rack=%d", i)}
			fleet[i].View.New = i == 0
			if strings.Contains(c.broken, fleet[i].Node) {
				fleet[i].View.State = model.FailedState
			}
		}
		c.policy.Canaries, c.policy.Batch = "1", "2"
		p, err := Make(Order{Policy: c.policy}, fleet)
		if got := shape(p); err != nil || got != c.want {
			t.Errorf("%s, %v: %s (%v)", c.broken, c.policy.Limits(), got, err)
		}
	}
}

// TestPlan: without it, a rollout could begin with all nodes of a role, or in another order than the file's.
func TestPlan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, fleet string
		order       Order
		want        string
	}{
		{"by default one canary and a tenth at a time", "web*3 db*2", Order{Roles: []string{"db", "web"}},
			"canaries: db1 | db: db2 | web: web1, web2, web3"},
		{"canaries of an expression are all of its nodes", "web*2 canary*2 db*1", Order{Policy: Policy{CanariesWhere: "x", Batch: "5"}},
			"canaries: canary1 canary2 | db: db1 | web: web1 web2"},
		{"canaries of an expression, fewer", "web*2 canary*2 db*1", Order{Policy: Policy{CanariesWhere: "x", Canaries: "1", Batch: "5"}},
			"canaries: canary1 | canary: canary2 | db: db1 | web: web1 web2"},
		{"canaries are of each role in turn", "web*3 db*2", Order{Roles: []string{"db", "web"}, Policy: Policy{Canaries: "3", Batch: "2"}},
			"canaries: db1 web1 db2 | web: web2 web3"},
		{"no canaries", "web*3", Order{Policy: Policy{Canaries: "0", Batch: "2"}}, "web: web1 web2, web3"},
		{"more canaries than nodes", "web*2", Order{Policy: Policy{Canaries: "9"}}, "canaries: web1 web2"},
		{"a percentage is of the whole role, rounded down", "web*11", Order{Policy: Policy{Canaries: "1", Batch: "50%"}},
			"canaries: web1 | web: web2 web3 web4 web5 web6, web7 web8 web9 web10 web11"},
		{"a role has its own batch", "web*4 db*4", Order{Policy: Policy{Canaries: "0", Batch: "4", Roles: map[string]RolePolicy{"db": {Batch: "2"}}}},
			"db: db1 db2, db3 db4 | web: web1 web2 web3 web4"},
		{"one role", "web*2 db*2", Order{Role: "web", Policy: Policy{Canaries: "0", Batch: "9"}}, "web: web1 web2"},
		{"names are in the order of their numbers", "web*11", Order{Policy: Policy{Canaries: "0", Batch: "11"}},
			"web: web1 web2 web3 web4 web5 web6 web7 web8 web9 web10 web11"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fleet := fleetOf(c.fleet)
			slices.Reverse(fleet)
			p, err := Make(c.order, fleet)
			if err != nil || shape(p) != c.want {
				t.Errorf("%v\ngot  %s\nwant %s", err, shape(p), c.want)
			}
		})
	}
}

func TestPlanLeavesOutExcludedNodes(t *testing.T) {
	t.Parallel()
	fleet := fleetOf("web*5")
	fleet[1].Excluded, fleet[3].Daemon = true, true
	p, err := Make(Order{Policy: Policy{Canaries: "0", Batch: "100%"}}, fleet)
	if err != nil || shape(p) != "web: web1 web3 web5" || !slices.Equal(p.Excluded, []string{"web2"}) || !slices.Equal(p.Daemons, []string{"web4"}) || p.Groups[0].Batch != 3 {
		t.Errorf("%v %s without %v and %v", err, shape(p), p.Excluded, p.Daemons)
	}
	if _, err := Make(Order{Role: "db"}, fleet); !errors.Is(err, ErrEmpty) {
		t.Errorf("a plan without nodes: %v", err)
	}
}

// TestPlanKeepsItsPromises: each node is in a plan exactly once, and no batch is larger than its group's.
func TestPlanKeepsItsPromises(t *testing.T) {
	t.Parallel()
	share := rapid.SampledFrom([]Share{"", "0", "1", "3", "1%", "10%", "34%", "100%"})
	rapid.Check(t, func(t *rapid.T) {
		fleet := fleetOf(fmt.Sprintf("web*%d db*%d x*%d", rapid.IntRange(0, 40).Draw(t, "web"), rapid.IntRange(0, 9).Draw(t, "db"), rapid.IntRange(0, 2).Draw(t, "x")))
		policy := Policy{Canaries: share.Draw(t, "canaries"), Batch: share.Draw(t, "batch"), Roles: map[string]RolePolicy{"db": {Batch: share.Draw(t, "of db")}}}
		roles := rapid.Permutation([]string{"web", "db", "unused"}).Draw(t, "roles")
		p, err := Make(Order{Policy: policy, Roles: roles}, fleet)
		if len(fleet) == 0 {
			if !errors.Is(err, ErrEmpty) {
				t.Fatalf("an empty plan: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i, g := range p.Groups {
			if g.Batch < 1 || len(g.Nodes) == 0 || g.Size != len(g.Nodes) || (g.Kind == Canaries) != (i == 0 && g.Kind == Canaries) {
				t.Fatalf("group %d is %+v", i, g)
			}
			for _, m := range g.Nodes {
				if seen[m.Node] {
					t.Fatalf("%s is in the plan twice", m.Node)
				}
				seen[m.Node] = true
			}
			for b := range g.Batches() {
				if from, to := g.batch(b); to-from > g.Batch || to == from {
					t.Fatalf("batch %d of %s is %d to %d", b, g.Role, from, to)
				}
			}
		}
		if len(seen) != len(fleet) || p.Nodes() != len(fleet) {
			t.Fatalf("%d of %d nodes are in the plan", len(seen), len(fleet))
		}
	})
}

func TestShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		share              Share
		total, least, want int
	}{
		{"3", 10, 1, 3}, {"10%", 25, 1, 2}, {"10%", 5, 1, 1}, {"10%", 5, 0, 0}, {"0", 5, 1, 1}, {"100%", 7, 0, 7}, {"", 7, 2, 2}, {"x", 7, 2, 2}, {"-1", 7, 1, 1},
	} {
		if got := c.share.Of(c.total, c.least); got != c.want {
			t.Errorf("%q of %d, at least %d, is %d, not %d", c.share, c.total, c.least, got, c.want)
		}
	}
}
