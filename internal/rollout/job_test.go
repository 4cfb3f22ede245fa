package rollout

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

// job begins a job over layers of nodes: "db*1 | web*4".
func job(t testing.TB, layers string, batch Share, concurrency int) *bench {
	t.Helper()
	b := begin(t, strings.ReplaceAll(layers, " |", ""), Policy{})
	var all [][]Member
	for _, layer := range strings.Split(layers, "|") {
		var nodes []Member
		for _, c := range fleetOf(strings.TrimSpace(layer)) {
			nodes = append(nodes, Member{Node: c.Node, Machine: c.Machine})
		}
		all = append(all, nodes)
	}
	p, err := MakeJob(Order{Policy: Policy{Batch: batch, Concurrency: concurrency}, At: t0}, all)
	if err != nil {
		t.Fatal(err)
	}
	p.ID, p.Epoch = "r1", 5
	b.plan = p
	for name := range b.o.Nodes {
		b.edit(name, func(n *Node) { n.Wanted = oldT })
	}
	return b
}

func silence(n *Node) { n.View.State = model.Silent }

// busy lets an operator run Puppet on a machine.
func busy(n *Node) {
	n.View = model.View{State: model.Held, Cause: model.Cause{Reason: model.ReasonPuppetBlocked, Params: model.Params{Blocked: &model.Blocked{Code: model.PuppetBusy}}}}
}

func stopped(n *Node) { n.View.State, n.View.Reason = model.Held, model.ReasonStopped }

// ran lets nodes answer their turn: ok, failed or running.
func (b *bench) ran(what string, nodes ...string) *bench {
	b.t.Helper()
	for _, node := range nodes {
		b.edit(node, func(n *Node) {
			if n.Assigned == nil || n.Assigned.Kind == model.AssignWait {
				b.t.Fatalf("%s has no turn: %+v", node, n.Assigned)
			}
			st := n.Status
			st.Assignment, st.Phase, st.LastRun = n.Assigned.ID, model.Idle, "run"
			switch what {
			case "ok":
				st.Ran = &model.Answer{ID: n.Assigned.ID}
			case "failed":
				st.Ran = &model.Answer{ID: n.Assigned.ID, Problem: model.Problem{Code: model.ResourcesFailed, Number: 1}}
			case "running":
				st.Phase = model.Running
			}
		})
	}
	return b
}

// waits checks which nodes were ordered to wait.
func (b *bench) waitsFor(t *testing.T, want string) {
	t.Helper()
	var all []string
	for _, name := range keys(b.o.Nodes) {
		if a := b.o.Nodes[name].Assigned; a != nil && a.Kind == model.AssignWait {
			all = append(all, name)
		}
	}
	if got := strings.Join(all, " "); got != want {
		t.Errorf("%q wait, not %q", got, want)
	}
}

// TestJobToTheEnd: all wait; then each layer runs after the one before it, batch by batch.
func TestJobToTheEnd(t *testing.T) {
	t.Parallel()
	b := job(t, "db*1 | web*3", "2", 0)
	b.is("advancing; ordered db1; 0 done; waits for nodes")
	b.waitsFor(t, "web1 web2 web3")
	b.ran("running", "db1").is("advancing; ordered db1; 0 done; waits for nodes")
	b.ran("ok", "db1").is("advancing; ordered web1 web2; 1 done; waits for nodes")
	b.ran("ok", "web2").is("advancing; ordered web1; 2 done; waits for nodes")
	b.after(time.Minute).ran("ok", "web1").is("advancing; ordered web3; 3 done; waits for nodes")
	b.ran("ok", "web3").is("completed; 4 done")
	if spans := b.state.Times; len(spans) != 2 || spans[1].To.Sub(spans[1].From) != time.Minute || spans[0].To.IsZero() {
		t.Errorf("times %+v", spans)
	}
}

func TestJobStops(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		story func(*bench)
		want  string
	}{
		{"nobody runs before a run has ended that began before the job", func(b *bench) {
			b.edit("web2", func(n *Node) { n.Status.Phase = model.Running })
		}, "advancing; 0 done; waits for idle"},
		{"then it begins", func(b *bench) {
			b.edit("web2", func(n *Node) { n.Status.Phase = model.Running }).settle().edit("web2", func(n *Node) { n.Status.Phase = model.Idle })
		}, "advancing; ordered db1; 0 done; waits for nodes"},
		{"or it ends: the run takes too long", func(b *bench) {
			b.edit("web2", func(n *Node) { n.Status.Phase = model.Running }).settle().after(2 * time.Hour)
		}, "failed; 0 done; stopped: busy"},
		{"nor does a silent node count as idle", func(b *bench) {
			b.edit("web2", func(n *Node) { n.Status.Phase, n.View.State = model.Running, model.Silent })
		}, "advancing; 0 done; waits for idle"},
		{"after a failure the rest does not run", func(b *bench) { b.settle().ran("failed", "db1") },
			"failed; 0 done; db1 run_failed; stopped: failures"},
		{"what runs meanwhile ends first", func(b *bench) {
			b.settle().ran("ok", "db1").settle().ran("failed", "web1").ran("running", "web2")
		}, "advancing; ordered web2; 1 done; web1 run_failed; web3 skipped: stopped; stopped: failures; waits for nodes"},
		{"then the job ends", func(b *bench) {
			b.settle().ran("ok", "db1").settle().ran("failed", "web1").ran("running", "web2").settle().ran("ok", "web2")
		}, "failed; 2 done; web1 run_failed; web3 skipped: stopped; stopped: failures"},
		{"a silent node that was ordered does not keep the others waiting", func(b *bench) {
			b.settle().ran("ok", "db1").settle().edit("web2", silence).ran("failed", "web1")
		}, "failed; 1 done; web1 run_failed; web2 skipped: stopped; web3 skipped: stopped; stopped: failures"},
		{"a node that begins before its order is withdrawn ends its run", func(b *bench) {
			b.settle().ran("ok", "db1").settle().ran("failed", "web1")
			for b.state.Slots["web2"].State != Withdrawing {
				b.state = *Advance(b.plan, b.state, b.o, b.now).State
			}
			b.ran("running", "web2").settle().ran("failed", "web2")
		}, "failed; 1 done; web1 run_failed; web2 run_failed; web3 skipped: stopped; stopped: failures"},
		{"and one that ran meanwhile counts", func(b *bench) {
			b.settle().ran("ok", "db1").settle().ran("failed", "web1")
			for b.state.Slots["web2"].State != Withdrawing {
				b.state = *Advance(b.plan, b.state, b.o, b.now).State
			}
			b.ran("ok", "web2")
		}, "failed; 2 done; web1 run_failed; web3 skipped: stopped; stopped: failures"},
		{"a run of the old target is a failure: the node refuses its target", func(b *bench) {
			b.settle().ran("ok", "db1").edit("db1", func(n *Node) { n.Wanted, n.Status.Refusal = newT, &model.Refusal{Target: newT} })
		}, "failed; 0 done; db1 target_refused; stopped: failures"},
		{"or a hold keeps it on the old one", func(b *bench) {
			b.settle().ran("ok", "db1").edit("db1", func(n *Node) { n.Wanted, n.View.State, n.View.Reason = newT, model.Held, model.ReasonFrozen })
		}, "failed; 0 done; db1 not_ready; stopped: failures"},
		{"a noop run enforces nothing", func(b *bench) {
			b.plan.Noop = true
			b.settle().ran("ok", "db1").edit("db1", func(n *Node) { n.Wanted = newT })
		}, "advancing; ordered web1 web2 web3; 1 done; waits for nodes"},
		{"an old answer is none", func(b *bench) {
			b.settle().edit("db1", func(n *Node) { n.Status.Assignment, n.Status.Ran = "r0.1", &model.Answer{ID: "r0.1"} })
		}, "advancing; ordered db1; 0 done; waits for nodes"},
		{"silence past the deadline is a failure, and the node waits again", func(b *bench) { b.settle().after(90 * time.Minute) },
			"failed; 0 done; db1 deadline; stopped: failures"},
		{"a run past the deadline is a failure", func(b *bench) { b.settle().ran("running", "db1").settle().after(90 * time.Minute) },
			"failed; lost db1; 0 done; db1 lost; stopped: failures"},
		{"a hold that comes meanwhile is respected, until the deadline", func(b *bench) {
			b.settle().edit("db1", stopped)
		}, "advancing; ordered db1; 0 done; waits for held"},
		{"then the job ends, and the hold stays", func(b *bench) {
			b.settle().edit("db1", stopped).after(90 * time.Minute)
		}, "failed; 0 done; db1 not_ready; stopped: failures"},
		{"another Puppet that runs has no hold", func(b *bench) { b.settle().edit("db1", busy) },
			"advancing; ordered db1; 0 done; waits for nodes"},
		{"and past the deadline it is a failure", func(b *bench) { b.settle().edit("db1", busy).after(90 * time.Minute) },
			"failed; 0 done; db1 deadline; stopped: failures"},
		{"a removed node is left out", func(b *bench) { b.settle().edit("db1", func(n *Node) { n.Host = nil }) },
			"advancing; ordered web1 web2 web3; 0 done; db1 skipped: removed; waits for nodes"},
		{"no serve advanced it: its nodes are free, and it ends", func(b *bench) { b.settle(); b.o.Gone = true },
			"lost; ordered db1; 0 done"},
		{"a restored backup revived it", func(b *bench) { b.settle(); b.o.Reached = 9 },
			"lost; ordered db1; 0 done"},
		{"a change of the targets replaces it", func(b *bench) { b.settle(); b.o.Gate = model.Gate{Epoch: 6, State: model.GateOpen} },
			"replaced; 0 done"},
		{"a clock that is set back", func(b *bench) { b.settle().after(-24 * time.Hour) },
			"advancing; ordered db1; 0 done; waits for nodes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := job(t, "db*1 | web*3", "", 0)
			c.story(b)
			b.is(c.want)
		})
	}
}

// TestJobWaitsForItsDeadline: a deadline of more than two hours is that of each node, and no job stops before it.
func TestJobWaitsForItsDeadline(t *testing.T) {
	t.Parallel()
	b := job(t, "db*1", "", 0)
	p, err := MakeJob(Order{Policy: Policy{Deadline: model.Duration(5 * time.Hour)}, At: t0}, [][]Member{b.plan.Groups[0].Nodes})
	if err != nil {
		t.Fatal(err)
	}
	p.ID, p.Epoch = "r1", 5
	b.plan = p
	b.settle().ran("running", "db1").settle().after(4 * time.Hour).is("advancing; ordered db1; 0 done; waits for nodes")
	b.after(90 * time.Minute).is("failed; lost db1; 0 done; db1 lost; stopped: failures")
}

// TestBusyNodesHaveTheirDeadline: it is counted by the clock of serve. An operator's clock that is behind ended the job at its first look.
func TestBusyNodesHaveTheirDeadline(t *testing.T) {
	t.Parallel()
	b := job(t, "web*2", "", 0)
	b.edit("web2", func(n *Node) { n.Status.Phase = model.Running })
	b.after(24 * time.Hour).is("advancing; 0 done; waits for idle")
	b.after(59 * time.Minute).is("advancing; 0 done; waits for idle")
	b.after(-3 * time.Hour).is("advancing; 0 done; waits for idle")
	b.after(time.Hour).is("failed; 0 done; stopped: busy")
}

// TestStateOfALargeJobFits: all nodes in progress are in one value of etcd, which may have 1.5 MiB.
func TestStateOfALargeJobFits(t *testing.T) {
	t.Parallel()
	for concurrency, most := range map[int]int{0: JobConcurrency, MaxJobConcurrency: MaxJobConcurrency} {
		var nodes []Member
		for i := range 10000 {
			nodes = append(nodes, Member{Node: fmt.Sprintf("compute%d.region1.example.com", i), Machine: strings.Repeat("0123456789abcdef", 2)})
		}
		p, err := MakeJob(Order{Policy: Policy{Concurrency: concurrency}, At: t0}, [][]Member{nodes})
		if err != nil {
			t.Fatal(err)
		}
		p.ID, p.Epoch = "j123456", 5
		s, o := Start(t0), Observed{Gate: model.Gate{Epoch: 5, State: model.GateOpen, Rollout: p.ID}, Nodes: map[string]Node{}}
		s.Gathered, s.Tries = true, map[string]int{}
		for _, m := range nodes {
			o.Nodes[m.Node] = Node{Host: &model.Host{Node: m.Node, MachineID: m.Machine}}
			s.Tries[m.Node] = 1 // as at the end of the job
		}
		step := Advance(p, s, o, t0)
		if step.State == nil || len(step.State.Slots) != most {
			t.Fatalf("concurrency %d: %+v", concurrency, step.Wait)
		}
		b, err := json.Marshal(step.State)
		if err != nil || len(b) > 1<<20 {
			t.Errorf("with %d nodes in progress, the state has %d bytes: %v", most, len(b), err)
		}
		t.Logf("%d nodes in progress: %d bytes", most, len(b))
	}
}

// TestLargeJobsReadPages: reading each of 10,000 nodes alone, every two seconds, loads etcd until the last one of them waits.
func TestLargeJobsReadPages(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]bool{pagesFrom - 1: false, pagesFrom: true} {
		b := job(t, fmt.Sprint("web*", n), "", 0)
		if got := NeedsOf(b.plan, b.state).All; got != want {
			t.Errorf("%d nodes: all keys are read: %t", n, got)
		}
		b.state.Gathered = true
		if NeedsOf(b.plan, b.state).All {
			t.Errorf("%d nodes: all keys are read when the job runs", n)
		}
	}
}

// TestNoopJobOrdersNoopRuns: else a job that should only look would change its nodes.
func TestNoopJobOrdersNoopRuns(t *testing.T) {
	t.Parallel()
	b := job(t, "db*1 | web*1", "", 0)
	b.plan.Noop = true
	b.is("advancing; ordered db1; 0 done; waits for nodes")
	b.waitsFor(t, "web1")
	if a := b.o.Nodes["db1"].Assigned; a == nil || a.Kind != model.AssignNoop {
		t.Errorf("db1 is ordered %+v", a)
	}
}

// TestJobLimitsConcurrency: within a batch, a node begins when another one ended.
func TestJobLimitsConcurrency(t *testing.T) {
	t.Parallel()
	b := job(t, "web*5", "", 2)
	b.is("advancing; ordered web1 web2; 0 done; waits for nodes")
	b.ran("ok", "web1").is("advancing; ordered web2 web3; 1 done; waits for nodes")
	b.ran("ok", "web3").is("advancing; ordered web2 web4; 2 done; waits for nodes")
}

// TestJobOrdersWaitsOnce: the order to wait is written for each node, before any of them may run.
func TestJobOrdersWaitsOnce(t *testing.T) {
	t.Parallel()
	b := job(t, "db*1 | web*2", "", 0)
	step := Advance(b.plan, b.state, b.o, b.now)
	if step.State != nil || len(step.Assign) != 3 {
		t.Fatalf("the first step is %+v", step)
	}
	for _, a := range step.Assign {
		if a.Assignment.Kind != model.AssignWait || a.Assignment.Machine == "" {
			t.Errorf("%s: %+v", a.Node, a.Assignment)
		}
	}
}
