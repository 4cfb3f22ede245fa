package rollouts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/facts"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/testbed/etcdtest"
)

// A rollout must follow the policy of the environment file, not the defaults.
func TestPlanRolloutFollowsPolicy(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, `rollout:
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
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	for _, node := range []string{"web1", "web2", "db1", "db2", "db3"} {
		if err := fleet.In(s).Register(ctx, "dev", model.Host{Node: node, Role: strings.TrimRight(node, "123"), MachineID: "m-" + node}); err != nil {
			t.Fatal(err)
		}
	}
	target := model.Target{Release: "2.0.0", Tree: strings.Repeat("b", 64)}
	p, err := PlanRollout(ctx, s, dev, target, "", targets.Author{By: "ann", At: time.Now()})
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
	if p.Plan.Groups[1].Batch != 1 || p.Plan.Groups[1].Failures != "1" || policy.Failures != "5%" || time.Duration(policy.Settle) != time.Minute || policy.OnFailure != rollout.FailureReverts {
		t.Errorf("%+v", p.Plan)
	}
	_, err = PlanRollout(ctx, s, dev, target, "web", targets.Author{By: "ann", At: time.Now()})
	if err == nil || !strings.HasPrefix(err.Error(), "cannot plan a rollout in dev: canaries_where selects no node of the rollout\n") {
		t.Errorf("canaries of another role: %v", err)
	}
}

// A limit by a fact must find the nodes that share it, also those outside of the rollout; one that no node has would limit nothing.
func TestPlanRolloutPlacesNodes(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, `layers: [node, role, pair, environment, common]
rollout: {max_unavailable: {pair: 1, chassis.rack: 1}, trusted_facts: [chassis.rack]}
nodes: {web1: {attributes: {pair: a}}}
roles:
  web: {cardinality: 1}
  db: {cardinality: 1}
`)
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	if err := fleet.In(s).Register(ctx, "dev", model.Host{Node: "db1", Role: "db", MachineID: "m-db1"}); err != nil {
		t.Fatal(err)
	}
	target, author := model.Target{Release: "2.0.0", Tree: strings.Repeat("b", 64)}, targets.Author{By: "ann", At: time.Now()}
	_, err := PlanRollout(ctx, s, dev, target, "web", author)
	if err == nil || !strings.Contains(err.Error(), "by chassis.rack, and no registered node has such an attribute or trusted fact\n") {
		t.Errorf("a fact that no node has: %v", err)
	}
	for _, node := range []string{"web1", "db1"} {
		published, err := facts.Published{Facts: map[string]json.RawMessage{"chassis": []byte(`{"rack":"r7"}`), "pair": []byte(`"a"`)}}.Encode()
		if err == nil {
			err = control.In(s).PublishFacts(ctx, model.Identity{Node: node, Environment: "dev"}, published)
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
		t.Errorf("outside are %+v", out) // a node must not join the pair of others with a fact
	}

	f, err := fleet.In(s).State(ctx, dev)
	if err != nil {
		t.Fatal(err)
	}
	f.Spec.Rollout.TrustedFacts = nil
	nodes := []rollout.Candidate{{Node: "web1", Role: "web"}, {Node: "db1", Role: "db"}}
	unknown, err := journal.In(s).Place(ctx, dev, f.Spec, []string{"chassis.rack"}, nodes)
	if err != nil || !slices.Equal(unknown, []string{"chassis.rack"}) || len(nodes[0].Places)+len(nodes[1].Places) > 0 {
		t.Errorf("a fact that the environment does not trust places %+v: %v, %v", nodes, unknown, err)
	}
}

// An operator must learn before the start which nodes will not take the target, for which cause, and what the policy does with them.
func TestPlanRolloutNamesNodesThatCannotBegin(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{
		"unready: wait": "[{silent wait [web2 web10]} {disabled wait [web1]}]",
		"unready: fail": "[{silent fail [web2 web10]} {disabled fail [web1]}]",
		"unready: {silent: skip, disabled: fail}": "[{silent skip [web2 web10]} {disabled fail [web1]}]",
	} {
		_, s := etcdtest.FleetOfOne(t, "rollout: {"+policy+"}\nroles: {web: {cardinality: 10}}\n")
		dev, ctx, now := model.Ref{Environment: "dev"}, t.Context(), time.Now()
		var err error
		for node, st := range map[string]model.Status{"web1": {SeenAt: now, Disabled: "maintenance"}, "web2": {SeenAt: now.Add(-24 * time.Hour)}, "web3": {SeenAt: now}, "web10": {SeenAt: now.Add(-24 * time.Hour)}} {
			if node != "web1" && err == nil {
				err = fleet.In(s).Register(ctx, "dev", model.Host{Node: node, Role: "web"})
			}
			st.Node, st.Role, st.Settings = node, "web", model.DefaultSettings()
			if err == nil {
				err = control.In(s).Report(ctx, model.Identity{Node: node, Environment: "dev"}, st, nil, nil)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		p, err := PlanRollout(ctx, s, dev, model.Target{Release: "2.0.0", Tree: strings.Repeat("b", 64)}, "", targets.Author{By: "ann", At: now})
		if got := fmt.Sprint(p.Unready); err != nil || got != want {
			t.Errorf("%s: %v, %s", policy, err, got)
		}
	}
}

// An operator who asks why a node did not begin must learn what opens its batch, and when.
func TestExplainNamesWhatOpensABatch(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var members []rollout.Member
	for i := range 7 {
		members = append(members, rollout.Member{Node: fmt.Sprintf("compute%d", i+1)})
	}
	p := rollout.Plan{ID: "r2", Kind: rollout.Take, Groups: []rollout.Group{
		{Kind: rollout.OfRole, Role: "compute", Batch: 2, Size: 7, Nodes: members},
		{Kind: rollout.OfRole, Role: "web", Batch: 1, Size: 2, Nodes: []rollout.Member{{Node: "web1"}, {Node: "web2"}}},
	}}
	state := rollout.Start(now)
	state.Batch, state.Next = 1, 4
	c := &journal.Campaign{Plan: p, State: state, Gate: model.Gate{Rollout: "r2", State: model.GateOpen}}
	at := "2026-03-01T12:02:00Z"
	for _, one := range []struct {
		wait       rollout.Wait
		node, want string
	}{
		{rollout.Wait{Code: rollout.WaitSettle, Nodes: []string{"compute4"}, Count: 1, Until: now.Add(2 * time.Minute)}, "compute5",
			"waiting for batch 3 of 4 of compute, which opens when compute4 stayed healthy for 2 more minutes"},
		{rollout.Wait{Code: rollout.WaitSettle, Nodes: []string{"compute4"}, Count: 1, Until: now.Add(time.Second)}, "compute5",
			"waiting for batch 3 of 4 of compute, which opens when compute4 stayed healthy for 1 more second"},
		{rollout.Wait{Code: rollout.WaitSettle, Nodes: []string{"compute4"}, Count: 1, Until: now}, "compute6",
			"waiting for batch 3 of 4 of compute, which opens when compute4 reported once more"},
		{rollout.Wait{Code: rollout.WaitSettle, Nodes: []string{"compute4"}, Count: 1, Until: now.Add(2 * time.Minute)}, "web2",
			"waiting for batch 2 of 2 of web; the rollout is at batch 2 of 4 of compute; it waits for compute4 to stay healthy until " + at},
		{rollout.Wait{Code: rollout.WaitNodes, Nodes: []string{"compute3", "compute4"}, Count: 2, Until: now.Add(2 * time.Minute)}, "compute5",
			"waiting for batch 3 of 4 of compute, which opens when compute3, compute4 ended; it waits for compute3, compute4, until " + at},
		{rollout.Wait{Code: rollout.WaitApproval}, "compute7", "waiting for batch 4 of 4 of compute; the rollout is at batch 2 of 4 of compute; it waits for an approval of the next batch"},
		{rollout.Wait{Code: rollout.WaitApproval}, "compute2", "it took the target"},
	} {
		r := describeRollout(p, state, c.Gate)
		r.Wait = &one.wait
		if got := place(r, c, one.node, now); got != one.want {
			t.Errorf("%s, %s:\ngot  %s\nwant %s", one.wait.Code, one.node, got, one.want)
		}
	}
	c.State.Group, c.State.Batch, c.State.Next = 0, 3, 7
	r := describeRollout(p, c.State, c.Gate)
	r.Wait = &rollout.Wait{Code: rollout.WaitSettle, Nodes: []string{"compute7"}, Count: 1, Until: now.Add(5 * time.Minute)}
	if got := place(r, c, "web1", now); got != "waiting for batch 1 of 2 of web, which opens when compute7 stayed healthy for 5 more minutes" {
		t.Error(got)
	}
	c.State.Again = []string{"compute1"}
	if got := place(r, c, "web1", now); got != "waiting for batch 1 of 2 of web; nodes that failed are ordered again before; it waits for compute7 to stay healthy until 2026-03-01T12:05:00Z" {
		t.Error(got)
	}
	c.State.Next, c.State.Batch, c.State.Again = 6, 3, nil
	r.Wait = &rollout.Wait{Code: rollout.WaitPlace, Node: "compute7", Place: "rack=r1"}
	if got := place(r, c, "compute7", now); got != "in batch 4 of 4 of compute, which is in progress; it waits before compute7: too many nodes of rack=r1 are unavailable" {
		t.Error(got)
	}
	r.Wait = &rollout.Wait{Code: rollout.WaitAnswers, Answers: map[string]rollout.Answer{"smoke": {}}}
	if got := place(r, c, "compute7", now); !strings.HasPrefix(got, "waiting for batch 4 of 4 of compute; it waits for its gates") {
		t.Error(got)
	}
}

// A node that waits for its second attempt took nothing yet.
func TestRolloutShowsNodesThatAreOrderedAgain(t *testing.T) {
	t.Parallel()
	members := []rollout.Member{{Node: "web1"}, {Node: "web2"}, {Node: "web3"}}
	p := rollout.Plan{ID: "r2", Kind: rollout.Take, Groups: []rollout.Group{{Kind: rollout.OfRole, Role: "web", Batch: 1, Size: 3, Nodes: members}}}
	state := rollout.Start(time.Now())
	state.Next, state.Failed = 2, map[string]rollout.Failure{"web1": {Code: rollout.RunFailed}, "web2": {Code: rollout.RunFailed}}
	gate := model.Gate{Rollout: "r2", State: model.GateOpen}
	before := describeRollout(p, state, gate)
	state, _, err := state.Retry(p)
	if err != nil {
		t.Fatal(err)
	}
	r := describeRollout(p, state, gate)
	if got := strings.Join(r.Since(before), ", "); got != "web1: waits to be ordered again, web2: waits to be ordered again" {
		t.Errorf("watch prints %q", got)
	}
	if got := place(r, &journal.Campaign{Plan: p, State: state, Gate: gate}, "web2", time.Now()); got != "it failed, and waits to be ordered again" {
		t.Errorf("explain prints %q", got)
	}
}

// A rollout that waits for an operator must end `rollout watch` and name the way out: no time ends such a wait.
func TestRolloutWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		wait  rollout.Wait
		waits bool
		way   string
	}{
		{rollout.Wait{Code: rollout.WaitHeld, Nodes: []string{"web1"}}, false, ""},
		{rollout.Wait{Code: rollout.WaitHeld, Nodes: []string{"web1"}, Overdue: []string{"web1"}}, true, "rollout skip NODE"},
		{rollout.Wait{Code: rollout.WaitPlace, Node: "web2"}, false, ""},
		{rollout.Wait{Code: rollout.WaitPlace, Node: "web2", Overdue: []string{"web2"}}, true, "rollout skip web2"},
		{rollout.Wait{Code: rollout.WaitGate, Stop: &rollout.Stop{Code: rollout.StopPlace, Node: "web2"}}, true, "rollout skip web2 -e dev`), then `pulley rollout resume"},
		{rollout.Wait{Code: rollout.WaitNodes, Nodes: []string{"web3"}, Overdue: []string{"web1"}}, false, "explain NODE -e dev` shows what the node waits for, and `pulley rollout skip NODE"},
	} {
		r := Rollout{Kind: rollout.Take, State: RolloutAdvancing, Wait: &c.wait}
		if c.wait.Stop != nil {
			r.State = RolloutPaused
		}
		ways := strings.Join(r.WaysOut(model.Ref{Environment: "dev"}), ", ")
		if r.Waits() != c.waits || !strings.Contains(ways, c.way) || c.way == "" && ways != "" {
			t.Errorf("%+v needs an operator: %t; ways out: %s", c.wait, r.Waits(), ways)
		}
	}
}
