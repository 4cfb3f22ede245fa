package rollout

import (
	"fmt"
	"strings"
	"testing"

	"pulley/internal/model"
)

// TestAdvanceLate: nodes that were registered meanwhile are the last group.
func TestAdvanceLate(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*2", Policy{Canaries: "0", Batch: "2"}).settle()
	late := begin(t, "web*4", Policy{})
	for _, node := range []string{"web3", "web4"} {
		b.o.Nodes[node] = late.o.Nodes[node]
	}
	b.o.Hosts = append(late.o.Hosts, Candidate{Node: "web5", Role: "web"})
	b.plan.Daemons = []string{"web5"} // no campaign reaches it
	b.reports("ok", "web1", "web2").is("advancing; ordered web3 web4; 2 done; waits for nodes")
	b.o.Hosts = fleetOf("web*9") // too late
	b.reports("ok", "web3").is("advancing; ordered web4; 3 done; waits for nodes")
	b.reports("ok", "web4").is("completed; 4 done")
}

// TestAdvanceLateByRole: without it, the databases that were registered during a rollout would take its target at the same time as web
// servers, and all at once.
func TestAdvanceLateByRole(t *testing.T) {
	t.Parallel()
	policy := Policy{Canaries: "0", Batch: "50%", Failures: "3", Roles: map[string]RolePolicy{"db": {Batch: "1", BatchFailures: "0"}}}
	b := begin(t, "web*2", policy).settle()
	late := begin(t, "web*6 db*2 x*1", Policy{})
	b.o.Hosts = late.o.Hosts
	for node, n := range late.o.Nodes {
		if _, known := b.o.Nodes[node]; !known {
			b.o.Nodes[node] = n
		}
	}
	b.reports("ok", "web1").is("advancing; ordered web2; 1 done; waits for nodes") // half of the role is one node
	b.reports("ok", "web2").is("advancing; ordered db1; 2 done; waits for nodes")
	b.reports("failed", "db1").is("advancing; 2 done; db1 run_failed; stopped: batch_failures; waits for gate")
	b.resume().is("advancing; ordered db2; 2 done; db1 run_failed; waits for nodes")
	b.reports("ok", "db2").is("advancing; ordered web3 web4 web5; 3 done; db1 run_failed; waits for nodes") // half of six
	b.reports("ok", "web3", "web4", "web5").is("advancing; ordered web6; 6 done; db1 run_failed; waits for nodes")
	b.reports("ok", "web6").is("advancing; ordered x1; 7 done; db1 run_failed; waits for nodes") // a role of no order
	b.reports("ok", "x1").is("completed; 8 done; db1 run_failed")
	var groups []string
	for _, g := range b.state.Groups(b.plan) {
		groups = append(groups, fmt.Sprintf("%s %d by %d", g.Name(), g.Size, g.Batch))
	}
	if got := strings.Join(groups, ", "); got != "web 2 by 1, db (registered later) 2 by 1, web (registered later) 4 by 3, x (registered later) 1 by 1" {
		t.Error(got)
	}
}

// TestAdvanceLateMachineOfAKnownName: a reinstalled machine takes the target once more, whatever happened to the former one, and a retry
// orders the new one.
func TestAdvanceLateMachineOfAKnownName(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*2", Policy{Canaries: "0", Batch: "1", Failures: "1"}).settle()
	next, err := b.state.Skip(b.plan, "web1")
	if err != nil {
		t.Fatal(err)
	}
	b.state = next
	b.is("advancing; ordered web2; 0 done; web1 skipped: operator; waits for nodes")
	b.edit("web1", func(n *Node) { n.Host = &model.Host{Node: "web1", Role: "web", MachineID: "new"} })
	b.o.Hosts[0].Machine = "new"
	b.reports("ok", "web2").is("advancing; ordered web1; 1 done; waits for nodes")
	b.reports("failed", "web1").is("completed; 1 done; web1 run_failed")

	b = begin(t, "web*2", Policy{Canaries: "0", Batch: "1"}).settle()
	b.edit("web1", func(n *Node) { n.Host = &model.Host{Node: "web1", Role: "web", MachineID: "new"} })
	b.o.Hosts[0].Machine = "new"
	b.settle().reports("ok", "web2").is("advancing; ordered web1; 1 done; waits for nodes")
	b.reports("failed", "web1").is("advancing; 1 done; web1 run_failed; stopped: failures; waits for gate")
	again, n, err := b.state.Retry(b.plan)
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	b.state = again
	b.resume().is("advancing; ordered web1; 1 done; waits for nodes")
	b.reports("ok", "web1").is("completed; 2 done")
}
