package change

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/facts"
	"pulley/internal/rollout"
	"pulley/internal/store"
)

// A rollout must follow the policy of the environment file, not the defaults.
func TestPlanRolloutFollowsPolicy(t *testing.T) {
	t.Parallel()
	_, s := fleetOfOne(t, `rollout:
  canaries_where: role == "db" && node != "db1"
  batch: 2
  failures: 5%
  settle: 1m
  on_failure: revert
  roles: {web: {batch: 1, batch_failures: 1}, db: {after: [web]}}
roles:
  db: {cardinality: 3}
  web: {cardinality: 2}
`)
	dev, ctx := environments.Ref{Environment: "dev"}, t.Context()
	for _, node := range []string{"web1", "web2", "db1", "db2", "db3"} {
		if err := s.Fleet.Register(ctx, "dev", agent.Host{Node: node, Role: strings.TrimRight(node, "123"), MachineID: "m-" + node}); err != nil {
			t.Fatal(err)
		}
	}
	target := agent.Target{Release: "2.0.0", Tree: strings.Repeat("b", 64)}
	p, err := PlanRollout(ctx, s, dev, target, "", store.Author{By: "ann", At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for _, g := range p.Plan.Groups {
		text := string(g.Kind) + " " + g.Role
		for _, m := range g.Nodes {
			text += " " + m.Node
		}
		groups = append(groups, text)
	}
	if got := strings.Join(groups, ", "); got != "canaries  db2 db3, role web web1 web2, role db db1" {
		t.Error(got)
	}
	policy := p.Plan.Policy
	if p.Plan.Groups[1].Batch != 1 || p.Plan.Groups[1].Failures != 1 || policy.Failures != "5%" || time.Duration(policy.Settle) != time.Minute || policy.OnFailure != rollout.FailureReverts {
		t.Errorf("%+v", p.Plan)
	}
	_, err = PlanRollout(ctx, s, dev, target, "web", store.Author{By: "ann", At: time.Now()})
	if err == nil || !strings.HasPrefix(err.Error(), "cannot plan a rollout in dev: canaries_where selects no node of the rollout\n") {
		t.Errorf("canaries of another role: %v", err)
	}
}

// A limit by a fact must find the nodes that share it, also those outside of the rollout; one that no node has would limit nothing.
func TestPlanRolloutPlacesNodes(t *testing.T) {
	t.Parallel()
	_, s := fleetOfOne(t, `layers: [node, role, pair, environment, common]
rollout: {max_unavailable: {pair: 1, chassis.rack: 1}}
nodes: {web1: {attributes: {pair: a}}}
roles:
  web: {cardinality: 1}
  db: {cardinality: 1}
`)
	dev, ctx := environments.Ref{Environment: "dev"}, t.Context()
	if err := s.Fleet.Register(ctx, "dev", agent.Host{Node: "db1", Role: "db", MachineID: "m-db1"}); err != nil {
		t.Fatal(err)
	}
	target, author := agent.Target{Release: "2.0.0", Tree: strings.Repeat("b", 64)}, store.Author{By: "ann", At: time.Now()}
	_, err := PlanRollout(ctx, s, dev, target, "web", author)
	if err == nil || !strings.Contains(err.Error(), "by chassis.rack, and no registered node has such an attribute or fact\n") {
		t.Errorf("a fact that no node has: %v", err)
	}
	for _, node := range []string{"web1", "db1"} {
		published, err := facts.Published{Facts: map[string]json.RawMessage{"chassis": []byte(`{"rack":"r7"}`)}}.Encode()
		if err == nil {
			err = s.Node.PublishFacts(ctx, agent.Identity{Node: node, Environment: "dev"}, published)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := PlanRollout(ctx, s, dev, target, "web", author)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Plan.Groups[0].Nodes[0].Places; !slices.Equal(got, []string{"pair=a", "chassis.rack=r7"}) {
		t.Errorf("web1 is in %q", got)
	}
	if out := p.Plan.Outside; len(out) != 1 || out[0].Node != "db1" || !slices.Equal(out[0].Places, []string{"chassis.rack=r7"}) {
		t.Errorf("outside are %+v", out)
	}
}

// An operator must learn before the start which nodes will not take the target, and what the policy does with them.
func TestPlanRolloutNamesNodesThatCannotBegin(t *testing.T) {
	t.Parallel()
	for policy, does := range map[string]string{
		"unready: wait": "waits for such nodes up to their deadline (`unready: wait`)", "unready: fail": "counts such nodes as failed (`unready: fail`)",
		"unready: skip":            "skips such nodes (`unready: skip`)",
		"unready: skip, skip: 10%": "skips such nodes, up to 10% of the rollout, and counts the others as failed (`unready: skip`)",
	} {
		_, s := fleetOfOne(t, "rollout: {"+policy+"}\nroles: {web: {cardinality: 2}}\n")
		dev, ctx, now := environments.Ref{Environment: "dev"}, t.Context(), time.Now()
		err := s.Fleet.Register(ctx, "dev", agent.Host{Node: "web2", Role: "web"})
		for node, seen := range map[string]time.Time{"web1": now, "web2": now.Add(-24 * time.Hour)} {
			if err == nil {
				err = s.Node.Report(ctx, agent.Identity{Node: node, Environment: "dev"}, agent.Status{Node: node, Role: "web", SeenAt: seen, Settings: agent.DefaultSettings()}, nil, nil)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		p, err := PlanRollout(ctx, s, dev, agent.Target{Release: "2.0.0", Tree: strings.Repeat("b", 64)}, "", store.Author{By: "ann", At: now})
		want := "these nodes could not begin now: web2 (silent); the policy " + does
		if err != nil || len(p.Notes) != 1 || p.Notes[0] != want {
			t.Errorf("%s: %v, %q", policy, err, p.Notes)
		}
	}
}

// A node that waits for its second attempt took nothing yet.
func TestRolloutShowsNodesThatAreOrderedAgain(t *testing.T) {
	t.Parallel()
	members := []rollout.Member{{Node: "web1"}, {Node: "web2"}, {Node: "web3"}}
	p := rollout.Plan{ID: "r2", Kind: rollout.Take, Groups: []rollout.Group{{Kind: rollout.OfRole, Role: "web", Batch: 1, Size: 3, Nodes: members}}}
	state := rollout.Start(time.Now())
	state.Next, state.Failed = 2, map[string]rollout.Failure{"web1": {Code: rollout.RunFailed}, "web2": {Code: rollout.RunFailed}}
	gate := agent.Gate{Rollout: "r2", State: agent.GateOpen}
	before := describeRollout(p, state, gate)
	state, _, err := state.Retry(p)
	if err != nil {
		t.Fatal(err)
	}
	r := describeRollout(p, state, gate)
	if got := strings.Join(r.Since(before), ", "); got != "web1: waits to be ordered again, web2: waits to be ordered again" {
		t.Errorf("watch prints %q", got)
	}
	if got := place(r, &store.Campaign{Plan: p, State: state, Gate: gate}, "web2"); got != "it failed, and waits to be ordered again" {
		t.Errorf("explain prints %q", got)
	}
}
