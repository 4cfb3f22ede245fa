package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

func names(nodes []Node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.Node)
	}
	return all
}

// An operator of a large fleet must find the few nodes that need work, and what a selection leaves out must not count.
func TestLookSelects(t *testing.T) {
	t.Parallel()
	f := state(t)
	f.Spec = spec(t, "roles:\n  compute: {cardinality: 10, members: [web.example.com], flavor: bare-metal}\n  controller: {cardinality: 1, flavor: bare-metal}\n")
	for what, c := range map[string]struct {
		sel   Selection
		nodes string
		sum   int
		roles string
	}{
		"one node":            {Selection{Nodes: []string{"compute10"}}, "compute10", 1, "compute 1 of 1"},
		"two nodes":           {Selection{Nodes: []string{"compute2", "controller1"}}, "compute2 controller1", 2, "compute 0 of 1, controller 0 of 1"},
		"a member":            {Selection{Nodes: []string{"web.example.com"}}, "web.example.com", 1, "compute 0 of 1"},
		"a role":              {Selection{Roles: []string{"controller"}}, "controller1", 1, "controller 0 of 1"},
		"a state":             {Selection{States: []model.NodeState{model.Pending, model.Converged}}, "compute1 compute2 compute10", 13, "compute 1 of 11, controller 0 of 1"},
		"a role and a state":  {Selection{Roles: []string{"compute"}, States: []model.NodeState{model.Converged}}, "compute10", 12, "compute 1 of 11"},
		"a node without role": {Selection{Nodes: []string{"old1"}}, "old1", 1, ""},
	} {
		s := Look(f, dev, c.sel, now)
		sum := 0
		for _, n := range s.Counts {
			sum += n
		}
		var roles []string
		for _, r := range s.Roles {
			roles = append(roles, fmt.Sprintf("%s %d of %d", r.Role, r.Converged, r.Wanted))
		}
		got := strings.Join(roles, ", ")
		if healthy := what == "one node"; s.Healthy != healthy {
			t.Errorf("%s: healthy %t", what, s.Healthy)
		}
		if list := strings.Join(names(s.Nodes), " "); list != c.nodes || sum != c.sum || got != c.roles {
			t.Errorf("%s: %s; counts %v; %s", what, list, s.Counts, got)
		}
	}
}

// The terminal shows the first lines: they must not be the nodes that need nobody.
func TestLimitKeepsNodesThatNeedWork(t *testing.T) {
	t.Parallel()
	s := Look(state(t), dev, Selection{}, now)
	all := len(s.Nodes)
	if left := s.Limit(0); left != 0 || len(s.Nodes) != all {
		t.Errorf("without a limit: %d left out", left)
	}
	if left := s.Limit(all - 1); left != 1 || slices.Contains(names(s.Nodes), "compute10") {
		t.Errorf("%d left out: %q", left, names(s.Nodes))
	}
}

func TestSummaryCountsByRoleAndState(t *testing.T) {
	t.Parallel()
	s := Look(state(t), dev, Selection{}, now)
	var got []string
	for _, c := range s.ByRole {
		got = append(got, c.Role+" "+string(c.State)+" "+cli.Count(c.Nodes, "node")+" "+strings.Join(c.First, ","))
	}
	want := []string{
		"compute converged 1 node compute10", "compute pending 2 nodes compute1,compute2", "compute unregistered 1 node old1",
		"compute missing 7 nodes compute3,compute4,compute5,compute6",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A CI job must not wait for nodes that cannot converge, nor give up on one that is about to.
func TestProgressSeparatesOpenFromBlocked(t *testing.T) {
	t.Parallel()
	f := state(t)
	f.Spec = spec(t, "roles:\n  compute: {cardinality: 4, flavor: bare-metal}\n")
	listed := func(node string, change func(*model.Status)) {
		f.Hosts[node] = model.Host{Node: node, Role: "compute", At: now}
		st := reported(node, one, time.Minute)
		change(&st)
		f.Statuses[node] = st
	}
	failed := model.Attempt{Target: two, Started: 1, Finished: 1}
	listed("compute3", func(st *model.Status) { st.Attempt = &failed })
	failedBefore := failed
	failedBefore.Target = one
	listed("compute4", func(st *model.Status) { st.Attempt = &failedBefore })
	listed("compute5", func(st *model.Status) { st.SeenAt = now.Add(-time.Hour) })
	all := Awaited{Ref: dev, What: "it", Has: func(FleetState, Node) bool { return true }}
	p := all.ProgressOf(f, now)
	if open, blocked := names(p.Open), names(p.Blocked); p.Converged != 1 ||
		!slices.Equal(open, []string{"compute1", "compute2", "compute4"}) || !slices.Equal(blocked, []string{"compute3", "compute5", "old1"}) {
		t.Errorf("%d converged, open %q, blocked %q", p.Converged, open, blocked)
	}
	if p.Sentence() != "1 of 7 nodes converged, 3 cannot" {
		t.Error(p.Sentence())
	}
	if p := AwaitHealth(dev, Selection{Nodes: []string{"compute5"}}).ProgressOf(f, now); !slices.Equal(names(p.Blocked), []string{"compute5"}) {
		t.Errorf("a node beyond the cardinality, by its name: %+v", p)
	}
	if p := AwaitHealth(dev, Selection{}).ProgressOf(f, now); !slices.Equal(names(p.Blocked), []string{"compute3"}) || p.Converged != 0 {
		t.Errorf("called for: %d converged, open %q, blocked %q", p.Converged, names(p.Open), names(p.Blocked))
	}
	err := error(&NotConvergedError{Awaited: all, Progress: p})
	if text := err.Error(); cli.Code(err) != cli.ExitDegraded || !strings.HasPrefix(text, "cannot complete it: 6 of 7 nodes did not converge\ncompute3 is failed: ") ||
		!strings.HasSuffix(text, "\nand 1 more node; `pulley status -e dev` lists them") {
		t.Errorf("%d: %s", cli.Code(err), text)
	}
	err = &NotConvergedError{Awaited: all, Progress: Progress{Open: p.Open[:1]}, After: 10 * time.Minute}
	if text := err.Error(); cli.Code(err) != cli.ExitTimeout || !strings.Contains(text, "1 of 1 node did not converge within 10m\ncompute1 is pending: ") || !errors.As(err, new(*NotConvergedError)) {
		t.Errorf("%d: %s", cli.Code(err), text)
	}
}

// A filter of the history must keep the changes that reached a node through its role or with all others.
func TestSelectionConcernsScopes(t *testing.T) {
	t.Parallel()
	roleOf := func(node string) string { return strings.TrimRight(node, "0123456789") }
	for _, c := range []struct {
		sel   Selection
		scope etcd.Scope
		want  bool
	}{
		{Selection{}, etcd.Scope{Node: "web1"}, true}, {Selection{Roles: []string{"web"}}, etcd.Scope{}, true},
		{Selection{Roles: []string{"web"}}, etcd.Scope{Role: "web"}, true}, {Selection{Roles: []string{"web"}}, etcd.Scope{Role: "db"}, false},
		{Selection{Roles: []string{"web"}}, etcd.Scope{Node: "web1"}, true}, {Selection{Roles: []string{"web"}}, etcd.Scope{Node: "db1"}, false},
		{Selection{Nodes: []string{"web1"}}, etcd.Scope{Role: "web"}, true}, {Selection{Nodes: []string{"web1"}}, etcd.Scope{Role: "db"}, false},
		{Selection{Nodes: []string{"web1"}}, etcd.Scope{Node: "web2"}, false}, {Selection{Nodes: []string{"web1"}}, etcd.Scope{}, true},
	} {
		if got := c.sel.Concerns(c.scope, roleOf); got != c.want {
			t.Errorf("%+v, %s: %t", c.sel, c.scope, got)
		}
	}
}
