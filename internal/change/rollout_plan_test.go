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
