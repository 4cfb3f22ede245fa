package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

var (
	t0   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	oldT = model.Target{Release: "1.0.0", Tree: "a", Data: 3, DataDigest: "d"}
	newT = model.Target{Release: "2.0.0", Tree: "b", Data: 3, DataDigest: "d"}
)

// bench is a campaign over an imitated etcd, for tests that tell a story.
type bench struct {
	t     testing.TB
	plan  Plan
	state State
	o     Observed
	now   time.Time
	wait  Wait
	rev   int64
}

func begin(t testing.TB, fleet string, policy Policy) *bench {
	t.Helper()
	p, err := Make(Order{ID: "r1", Epoch: 5, Target: model.Target{Release: newT.Release, Tree: newT.Tree}, Origin: oldT, Policy: policy, Roles: []string{"db", "web"}, At: t0}, fleetOf(fleet))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, plan: p, state: Start(t0), now: t0, o: Observed{
		Gate: model.Gate{Epoch: 5, State: model.GateOpen, Rollout: "r1"}, Nodes: map[string]Node{}, Hosts: fleetOf(fleet),
	}}
	for _, c := range fleetOf(fleet) {
		b.rev++
		b.o.Nodes[c.Node] = Node{
			Host: &model.Host{Node: c.Node, Role: c.Role, MachineID: c.Machine}, HostAt: b.rev, StatusAt: b.rev, Wanted: newT,
			Status: &model.Status{Node: c.Node, Phase: model.Idle, Target: oldT, LastGood: oldT, Enforcing: oldT, SeenAt: t0},
			View:   model.View{State: model.Converged},
		}
	}
	return b
}

// settle advances until nothing changes, and does what the steps say.
func (b *bench) settle() *bench {
	b.t.Helper()
	for range 1000 {
		step := Advance(b.plan, b.state, b.o, b.now)
		b.wait = step.Wait
		switch {
		case step.State != nil:
			b.state = *step.State
			if step.Close != nil {
				b.o.Gate.State = model.GatePaused
			}
			if step.State.Phase == Completed || step.State.Phase == Reverted {
				b.o.Gate = model.Gate{Epoch: 6, State: model.GateOpen}
			}
		case len(step.Assign)+len(step.Withdraw) > 0:
			for _, a := range step.Assign {
				b.edit(a.Node, func(n *Node) { n.Assigned = &a.Assignment })
			}
			for _, node := range step.Withdraw {
				b.edit(node, func(n *Node) {
					if waits := b.plan.Waits(n.Assigned.Machine); b.plan.Kind == Run {
						n.Assigned = &waits
					} else {
						n.Assigned = nil
					}
				})
			}
		default:
			return b
		}
	}
	b.t.Fatal("the campaign never settles")
	return b
}

func (b *bench) edit(node string, change func(*Node)) *bench {
	n := b.o.Nodes[node]
	if n.Status != nil {
		st := *n.Status
		n.Status = &st
	}
	change(&n)
	b.rev++
	n.StatusAt = b.rev
	b.o.Nodes[node] = n
	return b
}

// reports lets nodes answer their assignments: ok, failed, running, refused or unreachable.
func (b *bench) reports(what string, nodes ...string) *bench {
	b.t.Helper()
	for _, node := range nodes {
		b.edit(node, func(n *Node) {
			if n.Assigned == nil {
				b.t.Fatalf("%s has no assignment to answer", node)
			}
			st := n.Status
			st.Assignment, st.Target, st.Phase, st.Attempt, st.Refusal, st.LastRun = n.Assigned.ID, newT, model.Idle, nil, nil, fmt.Sprint("run", b.rev)
			switch what {
			case "ok":
				st.LastGood, st.Enforcing, st.Outcome = newT, newT, model.Changed
			case "failed":
				st.Enforcing, st.Outcome = newT, model.Failed
				st.Attempt = &model.Attempt{Target: newT, Started: 1, Finished: 1, Problem: model.Problem{Code: model.ResourcesFailed, Number: 1}}
			case "unreachable":
				st.Attempt = &model.Attempt{Target: newT, Started: 1, Finished: 1, Problem: model.Problem{Code: model.EtcdLost}}
			case "lost":
				st.Attempt = &model.Attempt{Target: newT, Started: 1, Finished: 1, Problem: model.Problem{Code: model.PuppetServerLost}}
			case "away":
				st.Cause = model.Cause{Reason: model.ReasonServerAway, Params: model.Params{At: t0}}
			case "code 1", "code 2", "code ":
				st.LastGood, st.Enforcing, st.Outcome, st.Served = newT, newT, model.Changed, &model.Served{Code: strings.TrimPrefix(what, "code ")}
			case "running":
				st.Phase = model.Running
			case "refused":
				st.Refusal = &model.Refusal{Target: newT}
			}
		})
	}
	return b
}

func (b *bench) after(d time.Duration) *bench {
	b.now = b.now.Add(d)
	return b
}

func (b *bench) resume() *bench {
	b.state, b.o.Gate.State = b.state.Resume(), model.GateOpen
	return b
}

// is compares the campaign with "PHASE slots: a b done N failed: c skipped: d waits: CODE".
func (b *bench) is(want string) *bench {
	b.t.Helper()
	b.settle()
	parts := []string{string(b.state.Phase)}
	for _, state := range []SlotState{Ordered, Healthy, Lost, Withdrawing} {
		var names []string
		for _, name := range b.state.slots() {
			if b.state.Slots[name].State == state {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			parts = append(parts, string(state)+" "+strings.Join(names, " "))
		}
	}
	parts = append(parts, fmt.Sprint(b.state.Done, " done"))
	for _, name := range keys(b.state.Failed) {
		parts = append(parts, name+" "+string(b.state.Failed[name].Code))
	}
	for _, name := range keys(b.state.Skipped) {
		parts = append(parts, name+" skipped: "+string(b.state.Skipped[name]))
	}
	if b.state.Stop != nil {
		parts = append(parts, "stopped: "+string(b.state.Stop.Code))
	}
	if b.wait.Code != "" {
		parts = append(parts, "waits for "+string(b.wait.Code))
	}
	if got := strings.Join(parts, "; "); got != want {
		b.t.Errorf("\ngot  %s\nwant %s", got, want)
	}
	return b
}

func keys[V any](m map[string]V) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// TestAdvanceToTheEnd: canaries, then each role, each batch after the one before it.
func TestAdvanceToTheEnd(t *testing.T) {
	t.Parallel()
	b := begin(t, "db*1 web*3", Policy{Canaries: "1", Batch: "2"})
	b.is("advancing; ordered db1; 0 done; waits for nodes")
	b.reports("running", "db1").is("advancing; ordered db1; 0 done; waits for nodes")
	b.reports("ok", "db1").is("advancing; ordered web1 web2; 1 done; waits for nodes")
	b.reports("ok", "web2").is("advancing; ordered web1; 2 done; waits for nodes")
	b.reports("ok", "web1").is("advancing; ordered web3; 3 done; waits for nodes")
	b.reports("ok", "web3").is("completed; 4 done")
}

func TestAdvanceStops(t *testing.T) {
	t.Parallel()
	two := Policy{Canaries: "0", Batch: "2"}
	with := func(change func(*Policy)) Policy {
		p := two
		change(&p)
		return p
	}
	minute, hour := model.Duration(time.Minute), model.Duration(time.Hour)
	for _, c := range []struct {
		name   string
		policy Policy
		story  func(*bench)
		want   string
	}{
		{"at the first failure", two, func(b *bench) { b.reports("failed", "web1") },
			"advancing; ordered web2; 0 done; web1 run_failed; stopped: failures; waits for gate"},
		{"and what was ordered still ends", two, func(b *bench) { b.reports("failed", "web1").settle().reports("ok", "web2") },
			"advancing; 1 done; web1 run_failed; stopped: failures; waits for gate"},
		{"not below the allowed failures", with(func(p *Policy) { p.Failures = "1" }), func(b *bench) { b.reports("failed", "web1").reports("ok", "web2") },
			"advancing; ordered web3 web4; 1 done; web1 run_failed; waits for nodes"},
		{"at too many of one batch", with(func(p *Policy) { p.Failures, p.BatchFailures = "4", "1" }), func(b *bench) { b.reports("failed", "web1", "web2") },
			"advancing; 0 done; web1 run_failed; web2 run_failed; stopped: batch_failures; waits for gate"},
		{"until an operator accepts the failures", two, func(b *bench) { b.reports("failed", "web1").reports("ok", "web2").settle().resume() },
			"advancing; ordered web3 web4; 1 done; web1 run_failed; waits for nodes"},
		{"not for a failure that is tried again", with(func(p *Policy) { p.Retries = 1 }), func(b *bench) { b.reports("failed", "web1") },
			"advancing; ordered web1 web2; 0 done; waits for nodes"},
		{"for a run that etcd's silence failed, without a failure", two, func(b *bench) { b.reports("unreachable", "web1") },
			"advancing; ordered web1 web2; 0 done; stopped: doubtful; waits for gate"},
		{"for a run in which the Puppet server stopped answering, without a failure", two, func(b *bench) { b.reports("lost", "web1") },
			"advancing; ordered web1 web2; 0 done; stopped: puppet_server; waits for gate"},
		{"for a Puppet server that does not answer, without a failure", two, func(b *bench) { b.reports("away", "web1") },
			"advancing; ordered web1 web2; 0 done; stopped: puppet_server; waits for gate"},
		{"once for one outage, until the deadline", with(func(p *Policy) { p.Deadline = minute }), func(b *bench) {
			b.reports("away", "web1").settle().resume().settle()
			if b.state.Stop != nil {
				b.t.Fatalf("it stops again: %+v", b.state.Stop)
			}
			b.reports("ok", "web2").settle().after(2 * time.Minute)
		}, "advancing; ordered web1; 1 done; stopped: puppet_server; waits for gate"},
		{"for other code under the same name", two, func(b *bench) { b.reports("code 1", "web1").settle().reports("code 2", "web2") },
			"advancing; 2 done; stopped: code_changed; waits for gate"},
		{"which an operator accepts", two, func(b *bench) {
			b.reports("code 1", "web1").settle().reports("code 2", "web2").settle().resume().settle().reports("code 2", "web3")
		}, "advancing; ordered web4; 3 done; waits for nodes"},
		{"not for code that no one can tell", two, func(b *bench) { b.reports("code 1", "web1").settle().reports("code ", "web2") },
			"advancing; ordered web3 web4; 2 done; waits for nodes"},
		{"for a refused target, which is withdrawn", two, func(b *bench) { b.reports("refused", "web1") },
			"advancing; ordered web2; 0 done; web1 target_refused; stopped: failures; waits for gate"},
		{"when a node does not begin before its deadline", with(func(p *Policy) { p.Deadline = minute }), func(b *bench) { b.reports("ok", "web1").settle().after(2 * time.Minute) },
			"advancing; 1 done; web2 deadline; stopped: failures; waits for gate"},
		{"when a node runs beyond its deadline, and keeps its slot", with(func(p *Policy) { p.Deadline = minute }), func(b *bench) {
			b.reports("ok", "web1").reports("running", "web2").settle().after(2 * time.Minute)
		}, "advancing; lost web2; 1 done; web2 lost; stopped: failures; waits for gate"},
		{"and the next batch has less room", with(func(p *Policy) { p.Deadline, p.Failures = minute, "2" }), func(b *bench) {
			b.reports("ok", "web1").reports("running", "web2").settle().after(2 * time.Minute)
		}, "advancing; ordered web3; lost web2; 1 done; web2 lost; waits for nodes"},
		{"a lost node that ends is no failure", with(func(p *Policy) { p.Deadline, p.Failures = minute, "2" }), func(b *bench) {
			b.reports("ok", "web1").reports("running", "web2").settle().after(2*time.Minute).settle().reports("ok", "web2")
		}, "advancing; ordered web3 web4; 2 done; waits for nodes"},
		{"without progress", with(func(p *Policy) { p.Progress, p.Deadline = minute, hour }), func(b *bench) { b.settle().after(2 * time.Minute) },
			"advancing; ordered web1 web2; 0 done; stopped: progress; waits for gate"},
		{"not for a held node", with(func(p *Policy) { p.Progress, p.Deadline = minute, minute }), func(b *bench) {
			for _, node := range []string{"web1", "web2"} {
				b.edit(node, func(n *Node) { n.View.State = model.Held })
			}
			b.settle().after(time.Hour)
		}, "advancing; ordered web1 web2; 0 done; waits for held"},
		{"when another Puppet runs beyond the deadline", with(func(p *Policy) { p.Deadline = minute }), func(b *bench) { b.edit("web1", busy).reports("ok", "web2").settle().after(2 * time.Minute) },
			"advancing; 1 done; web1 deadline; stopped: failures; waits for gate"},
		{"without progress while another Puppet runs", with(func(p *Policy) { p.Progress, p.Deadline = minute, hour }), func(b *bench) {
			b.edit("web1", busy).edit("web2", busy).settle().after(2 * time.Minute)
		}, "advancing; ordered web1 web2; 0 done; stopped: progress; waits for gate"},
		{"deadlines stand still while the gate is closed", with(func(p *Policy) { p.Deadline = minute }), func(b *bench) {
			b.o.Gate.State = model.GatePaused
			b.settle().after(time.Hour).settle().resume()
		}, "advancing; ordered web1 web2; 0 done; waits for nodes"},
		{"nothing new while the gate is closed", two, func(b *bench) {
			b.o.Gate.State = model.GatePaused
			b.reports("ok", "web1", "web2")
		}, "advancing; 2 done; waits for gate"},
		{"a clock that is set back", two, func(b *bench) { b.settle().after(-24 * time.Hour) },
			"advancing; ordered web1 web2; 0 done; waits for nodes"},
		{"a node that settles", with(func(p *Policy) { p.Settle = minute }), func(b *bench) { b.reports("ok", "web1", "web2") },
			"advancing; healthy web1 web2; 0 done; waits for settle"},
		{"until its status was written again", with(func(p *Policy) { p.Settle = minute }), func(b *bench) {
			b.reports("ok", "web1", "web2").settle().after(time.Minute).reports("ok", "web1")
		}, "advancing; healthy web2; 1 done; waits for settle"},
		{"a node that fails while it settles", with(func(p *Policy) { p.Settle = minute }), func(b *bench) {
			b.reports("ok", "web1", "web2").settle().reports("failed", "web1")
		}, "advancing; healthy web2; 0 done; web1 run_failed; stopped: failures; waits for gate"},
		{"a removed node leaves its slot", two, func(b *bench) { b.edit("web1", func(n *Node) { n.Host = nil }).reports("ok", "web2") },
			"advancing; ordered web3 web4; 1 done; web1 skipped: removed; waits for nodes"},
		{"another machine of the name is another node", two, func(b *bench) {
			b.edit("web1", func(n *Node) { n.Host = &model.Host{Node: "web1", MachineID: "other"} }).reports("ok", "web2")
		}, "advancing; ordered web3 web4; 1 done; web1 skipped: removed; waits for nodes"},
		{"an old status is no answer", two, func(b *bench) {
			b.edit("web1", func(n *Node) {
				n.Status.Assignment, n.Status.LastGood, n.Status.Target, n.Status.Enforcing = "r0.1", newT, newT, newT
			})
		}, "advancing; ordered web1 web2; 0 done; waits for nodes"},
		{"when a node has seen a later epoch: etcd went back in time", two, func(b *bench) {
			b.edit("web1", func(n *Node) { n.Status.Reason, n.Status.Params.Epoch = model.ReasonEpochPassed, 9 })
		}, "advancing; ordered web1 web2; 0 done; stopped: restored; waits for gate"},
		{"also after an operator resumed it", two, func(b *bench) {
			b.edit("web1", func(n *Node) { n.Status.Reason, n.Status.Params.Epoch = model.ReasonEpochPassed, 9 }).settle().resume()
		}, "advancing; ordered web1 web2; 0 done; stopped: restored; waits for gate"},
		{"not for what a node saw in an older campaign", two, func(b *bench) {
			b.edit("web1", func(n *Node) { n.Status.Reason, n.Status.Params.Epoch = model.ReasonEpochPassed, 5 })
		}, "advancing; ordered web1 web2; 0 done; waits for nodes"},
		{"when serve has seen a later epoch", two, func(b *bench) { b.o.Reached = 6 },
			"advancing; ordered web1 web2; 0 done; stopped: restored; waits for gate"},
		{"another campaign replaces it", two, func(b *bench) { b.o.Gate = model.Gate{Epoch: 6, State: model.GateOpen} },
			"replaced; 0 done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := begin(t, "web*4", c.policy).settle()
			c.story(b)
			b.is(c.want)
		})
	}
}

// TestAdvanceKeepsPlacesApart: with max_unavailable 1, no two nodes of a rack are in progress, wherever the other one is.
func TestAdvanceKeepsPlacesApart(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*4", Policy{Canaries: "0", Batch: "4", MaxUnavailable: map[string]int{"rack": 1}})
	for i := range b.plan.Groups[0].Nodes {
		b.plan.Groups[0].Nodes[i].Places = []string{fmt.Sprintf("rack=%d", i%2)}
	}
	b.is("advancing; ordered web1 web2; 0 done; waits for place")
	b.reports("ok", "web2").is("advancing; ordered web1; 1 done; waits for place") // web3 is in web1's rack
	b.reports("ok", "web1").edit("web2", func(n *Node) { n.View.State = model.Silent })
	b.is("advancing; ordered web3; 2 done; waits for place") // web2 is silent, and web4 is in its rack
	b.edit("web2", func(n *Node) { n.View.State = model.Converged }).is("advancing; ordered web3 web4; 2 done; waits for nodes")
}

// TestAdvanceKeepsRacksApart: with max_places 1, nodes of two racks are never unavailable at the same time, also if one of them is
// not in the rollout.
func TestAdvanceKeepsRacksApart(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*4 db*2", Policy{Canaries: "0", Batch: "4", MaxPlaces: map[string]int{"rack": 1}})
	fleet := fleetOf("web*4 db*2")
	for i := range fleet {
		fleet[i].Places = []string{fmt.Sprintf("rack=%d", i%2)}
	}
	plan, err := Make(Order{Role: "web", Policy: b.plan.Policy}, fleet)
	if err != nil || len(plan.Outside) != 2 {
		t.Fatalf("%+v: %v", plan, err)
	}
	plan.ID, plan.Epoch = b.plan.ID, b.plan.Epoch
	b.plan = plan
	b.is("advancing; ordered web1 web3; 0 done; waits for place") // one rack first
	b.edit("db1", func(n *Node) { n.View.State = model.Silent })  // of the same rack
	b.reports("ok", "web1").is("advancing; ordered web3; 1 done; waits for place")
	b.reports("ok", "web3").is("advancing; 2 done; waits for place")
	b.edit("db1", func(n *Node) { n.View.State, n.View.Reason = model.Held, model.ReasonFrozen })
	b.is("advancing; ordered web2 web4; 2 done; waits for nodes")
}

// TestPlacesAreReadBeforeANodeBegins: a controller reads all nodes only when a node would begin, and it begins none without them.
func TestPlacesAreReadBeforeANodeBegins(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*4 db*2", Policy{Canaries: "0", Batch: "2", MaxUnavailable: map[string]int{"rack": 1}})
	for g := range b.plan.Groups {
		for i := range b.plan.Groups[g].Nodes {
			b.plan.Groups[g].Nodes[i].Places = []string{fmt.Sprintf("rack=%d", i%2)}
		}
	}
	reads := ""
	observe := func(needs Needs) (Observed, error) {
		o := b.o
		o.Nodes = map[string]Node{}
		for _, name := range needs.Nodes {
			o.Nodes[name] = b.o.Nodes[name]
		}
		reads += fmt.Sprintf("%d ", len(needs.Nodes))
		return o, nil
	}
	var blocking []string
	steps := func(want, wait string) {
		t.Helper()
		reads = ""
		for {
			step, _, err := Decide(b.plan, b.state, b.now, observe, blocking...)
			blocking = step.Blocking
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range step.Assign {
				b.edit(a.Node, func(n *Node) { n.Assigned = &a.Assignment })
			}
			if step.State != nil {
				b.state = *step.State
			}
			if step.Empty() {
				if reads = strings.TrimSpace(reads); reads != want || string(step.Wait.Code) != wait {
					t.Errorf("it reads %q nodes and waits for %s; want %q and %s", reads, step.Wait.Code, want, wait)
				}
				return
			}
		}
	}
	first, outside := b.plan.Groups[0].Nodes, b.plan.Groups[1].Nodes[1].Node
	b.edit(outside, func(n *Node) { n.View.State = model.Silent }) // in the second rack
	steps("2 6 2 2 6", "place")
	steps("3", "place") // the node that blocks is enough
	if len(b.state.Slots) != 1 || b.state.Slots[first[0].Node].ID == "" {
		t.Fatalf("in progress are %v", b.state.Slots)
	}
	b.edit(outside, func(n *Node) { n.View.State = model.Converged })
	steps("3 6 4 4", "nodes") // with the next batch
	steps("4", "nodes")
}

// TestAdvanceForgetsPlacesOfFormerMachines: a new machine of a name never waits for the rack of the former one, which nothing makes
// available again.
func TestAdvanceForgetsPlacesOfFormerMachines(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*2", Policy{Canaries: "0", Batch: "1", MaxPlaces: map[string]int{"rack": 1}})
	for i := range b.plan.Groups[0].Nodes {
		b.plan.Groups[0].Nodes[i].Places = []string{"rack=1"}
	}
	b.is("advancing; ordered web1; 0 done; waits for nodes")
	b.edit("web2", func(n *Node) { n.Host.MachineID, n.View.State = "another", model.Silent })
	for i, c := range b.o.Hosts {
		if c.Node == "web2" {
			b.o.Hosts[i].Machine, b.o.Hosts[i].Places = "another", []string{"rack=2"}
		}
	}
	b.reports("ok", "web1").is("advancing; ordered web2; 1 done; waits for nodes") // alone in its former rack
}

// TestAdvanceStallsForAnOperator: without it, a rollout waits for ever for one held node, or for a place, and nobody hears of it.
func TestAdvanceStallsForAnOperator(t *testing.T) {
	t.Parallel()
	hour := model.Duration(time.Hour)
	b := begin(t, "web*3", Policy{Canaries: "0", Batch: "2", Deadline: hour, Progress: 2 * hour}).settle()
	b.edit("web1", func(n *Node) { n.View.State = model.Held })
	b.reports("ok", "web2").after(time.Hour - time.Second).is("advancing; ordered web1; 1 done; waits for held")
	if len(b.wait.Overdue) > 0 {
		t.Errorf("before its deadline: %v", b.wait.Overdue)
	}
	b.after(time.Second).is("advancing; ordered web1; 1 done; waits for held")
	if !slices.Equal(b.wait.Overdue, []string{"web1"}) {
		t.Errorf("after its deadline: %v", b.wait.Overdue)
	}

	b = begin(t, "web*2", Policy{Canaries: "0", Batch: "1", Progress: 2 * hour, Deadline: hour, MaxUnavailable: map[string]int{"pair": 1}})
	for i := range b.plan.Groups[0].Nodes {
		b.plan.Groups[0].Nodes[i].Places = []string{"pair=a"}
	}
	b.edit("web2", func(n *Node) { n.View.State = model.Silent }).is("advancing; 0 done; waits for place")
	b.after(2*time.Hour - time.Second).is("advancing; 0 done; waits for place")
	b.after(time.Second).is("advancing; 0 done; stopped: place; waits for gate")
	if text := b.wait.Sentence(); text != "it paused by itself: web1 waited for too long: too many nodes of pair=a are unavailable (web2)" {
		t.Error(text)
	}
	b.resume().is("advancing; 0 done; waits for place") // for another 2 hours
	b.after(2 * time.Hour).is("advancing; 0 done; stopped: place; waits for gate")
	b.edit("web2", func(n *Node) { n.View.State = model.Converged }).resume().is("advancing; ordered web1; 0 done; waits for nodes")

	b = begin(t, "web*3", Policy{Canaries: "0", Batch: "2", Progress: 2 * hour, Deadline: hour, MaxUnavailable: map[string]int{"pair": 1}})
	for i := range b.plan.Groups[0].Nodes {
		b.plan.Groups[0].Nodes[i].Places = []string{fmt.Sprintf("pair=%d", i/2)}
	}
	b.edit("web1", func(n *Node) { n.View.State = model.Held }).is("advancing; ordered web1; 0 done; waits for place")
	b.after(2 * time.Hour).is("advancing; ordered web1; 0 done; waits for place") // the end of the hold ends it
	if !slices.Equal(b.wait.Overdue, []string{"web1", "web2"}) {
		t.Errorf("after progress: %v", b.wait.Overdue)
	}
}

// TestAdvanceRepairsFailedNodes: without it, the release that repairs nodes never reaches them: each one waits for another one of its place.
// Nodes of one place still begin one after the other: those that recover must not take the target together.
func TestAdvanceRepairsFailedNodes(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{{MaxUnavailable: map[string]int{"rack": 1}}, {MaxPlaces: map[string]int{"rack": 1}}} {
		policy.Canaries, policy.Batch = "0", "4"
		b := begin(t, "web*3", policy)
		for i := range b.plan.Groups[0].Nodes {
			b.plan.Groups[0].Nodes[i].Places = []string{"rack=1"}
			if len(policy.MaxPlaces) > 0 {
				b.plan.Groups[0].Nodes[i].Places = []string{fmt.Sprintf("rack=%d", i)}
			}
		}
		fails := func(n *Node) { n.View.State = model.FailedState }
		b.edit("web1", fails).edit("web2", fails).is("advancing; ordered web1; 0 done; waits for place")
		b.edit("web1", func(n *Node) { n.View.State = model.Converged }).reports("ok", "web1").is("advancing; ordered web2; 1 done; waits for place")
		b.edit("web2", func(n *Node) { n.View.State = model.Converged }).reports("ok", "web2").is("advancing; ordered web3; 2 done; waits for nodes")
	}
}

// TestAdvanceWantsFreshAnswers: a batch must not begin on what a gate answered before etcd hung, before a window or an approval, or before a
// node was kept back: it may refuse now.
func TestAdvanceWantsFreshAnswers(t *testing.T) {
	t.Parallel()
	passes := func(b *bench, at time.Time) { b.o.Answers = map[string]Answer{"errors": {Code: GatePassed, At: at}} }
	second := func(p Policy) *bench { // at the end of its first batch
		p.Canaries, p.Batch, p.Gates = "0", "1", []string{"errors"}
		b := begin(t, "web*2", p)
		for i := range b.plan.Groups[0].Nodes {
			b.plan.Groups[0].Nodes[i].Places = []string{"pair=a"}
		}
		return b.settle().reports("ok", "web1")
	}
	b := second(Policy{})
	b.is("advancing; 1 done; waits for answers")
	passes(b, b.now)
	b.now = b.now.Add(AnswerAge + time.Second)
	b.is("advancing; 1 done; waits for answers")
	passes(b, b.now.Add(AnswerAge+time.Second)) // the clock was set back since
	b.is("advancing; 1 done; waits for answers")
	passes(b, b.now.Add(-AnswerAge))
	b.is("advancing; ordered web2; 1 done; waits for nodes")

	b = second(Policy{Promote: Batches})
	passes(b, b.now)
	b.is("advancing; 1 done; waits for approval")
	b.after(time.Hour)
	approved, err := b.state.Approve(b.plan)
	if err != nil {
		t.Fatal(err)
	}
	b.state = approved
	b.is("advancing; 1 done; waits for answers")

	b = second(Policy{Windows: []string{"daily 12:00-12:30 UTC"}})
	b.after(time.Hour).is("advancing; 1 done; waits for window")
	passes(b, b.now)
	b.after(23 * time.Hour).is("advancing; 1 done; waits for answers")

	b = second(Policy{MaxUnavailable: map[string]int{"pair": 1}})
	passes(b, b.now)
	b.edit("web1", func(n *Node) { n.View.State = model.Silent }).is("advancing; 1 done; waits for place")
	b.edit("web1", func(n *Node) { n.View.State = model.Converged }).after(time.Hour).is("advancing; 1 done; waits for answers")

	b = second(Policy{})
	b.settle()
	passes(b, b.now)
	b.state = *Advance(b.plan, b.state, b.o, b.now).State // and etcd hangs before the assignment is written
	b.after(90 * time.Minute).is("advancing; ordered web2; 1 done; waits for answers")
	if n := b.o.Nodes["web2"]; n.Assigned != nil {
		t.Errorf("web2 may take the target: %+v", n.Assigned)
	}
	passes(b, b.now)
	b.is("advancing; ordered web2; 1 done; waits for nodes")
	if n := b.o.Nodes["web2"]; n.Assigned == nil {
		t.Error("web2 is not ordered after the gates passed again")
	}
}

// TestAdvanceCountsReplacedMachines: without it, both nodes of a pair could be unavailable: the machine of the one is being replaced.
func TestAdvanceCountsReplacedMachines(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*3", Policy{Canaries: "0", Batch: "1", MaxUnavailable: map[string]int{"pair": 1}})
	for i := range 2 {
		b.plan.Groups[0].Nodes[i].Places = []string{"pair=a"}
	}
	b.edit("web2", func(n *Node) { n.Host, n.Replaced, n.View.State = nil, true, model.Unregistered }).is("advancing; 0 done; waits for place")
	b.edit("web2", func(n *Node) {
		n.Host, n.Replaced, n.View.State = &model.Host{Node: "web2", Role: "web", MachineID: "another"}, false, model.Pending
	}).is("advancing; 0 done; waits for place")
	b.edit("web2", func(n *Node) { n.View.State = model.Converged }).is("advancing; ordered web1; 0 done; waits for nodes")

	b = begin(t, "web*3", b.plan.Policy)
	for i := range 2 {
		b.plan.Groups[0].Nodes[i].Places = []string{"pair=a"}
	}
	b.edit("web2", func(n *Node) { n.Host, n.View.State = nil, model.Unregistered }) // an operator removed it
	b.is("advancing; ordered web1; 0 done; waits for nodes")
}

// TestAdvanceWaitsForWindow: outside of the windows no node begins, also not after a pause of the clock; nodes in progress end. The
// time outside is no lack of progress.
func TestAdvanceWaitsForWindow(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*3", Policy{Canaries: "0", Batch: "1", Windows: []string{"daily 22:00-23:00 UTC"}, Settle: model.Duration(time.Minute)})
	at := func(clock string) *bench {
		h, err := time.ParseDuration(clock)
		if err != nil {
			t.Fatal(err)
		}
		b.now = t0.Truncate(24 * time.Hour).Add(h)
		return b
	}
	at("21h59m59s").is("advancing; 0 done; waits for window")
	if !b.wait.Until.Equal(t0.Truncate(24 * time.Hour).Add(22 * time.Hour)) {
		t.Errorf("until %s", b.wait.Until)
	}
	at("22h").is("advancing; ordered web1; 0 done; waits for nodes")
	at("22h58m").reports("ok", "web1").is("advancing; healthy web1; 0 done; waits for settle")
	if !b.wait.Until.Equal(b.now.Add(time.Minute)) {
		t.Errorf("it settles until %s", b.wait.Until)
	}
	at("22h59m30s").is("advancing; healthy web1; 0 done; waits for settle")
	if !b.wait.Until.IsZero() || !strings.Contains(b.wait.Sentence(), "web1 to report once more") {
		t.Errorf("after the settle time: %s", b.wait.Sentence())
	}
	at("23h").reports("ok", "web1").is("advancing; 1 done; waits for window")
	at("46h").is("advancing; ordered web2; 1 done; waits for nodes")
	at("46h1m").is("advancing; ordered web2; 1 done; waits for nodes") // 23 hours without an end of a node do not pause it
	at("46h2m").reports("ok", "web2").is("advancing; healthy web2; 1 done; waits for settle")
	b.plan.Policy.Windows = []string{"daily 22:00-23:00 Nowhere/Else"}
	at("46h4m").reports("ok", "web2").is("advancing; 2 done; waits for window")
	if !b.wait.Until.IsZero() || !strings.Contains(b.wait.Sentence(), "update its time zones") {
		t.Errorf("an unreadable window: %s", b.wait.Sentence())
	}

	b = begin(t, "web*1", Policy{Canaries: "0", Windows: []string{"daily 22:00-23:00 UTC"}})
	at("22h").is("advancing; ordered web1; 0 done; waits for nodes")
	b.reports("failed", "web1").settle()
	again, _, err := b.state.Retry(b.plan)
	if err != nil {
		t.Fatal(err)
	}
	b.state = again
	at("23h").resume().is("advancing; 0 done; waits for window")
	at("46h").is("advancing; ordered web1; 0 done; waits for nodes")
}

// TestAdvanceAsksGates: no batch begins, and the campaign does not complete, before all gates passed after the batch before it. One
// that blocks for too long pauses it.
func TestAdvanceAsksGates(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*2", Policy{Canaries: "1", Batch: "1", Gates: []string{"errors", "smoke"}, Progress: model.Duration(time.Hour)})
	answer := func(errors, smoke AnswerCode) *bench {
		b.o.Answers = map[string]Answer{"errors": {Code: errors, Text: "503", At: b.now}, "smoke": {Code: smoke, At: b.now}}
		return b
	}
	b.is("advancing; ordered web1; 0 done; waits for nodes")
	if needs := NeedsOf(b.plan, b.state); len(needs.Gates) > 0 {
		t.Errorf("it asks %v during a batch", needs.Gates)
	}
	b.reports("ok", "web1").is("advancing; 1 done; waits for answers")
	if needs := NeedsOf(b.plan, b.state); len(needs.Gates) != 2 || len(b.state.Answers) > 0 {
		t.Errorf("after the batch it asks %v, and has %v", needs.Gates, b.state.Answers)
	}
	answer(GateRefused, GatePassed).is("advancing; 1 done; waits for answers")
	b.o.Answers = nil // an operator's machine asks nobody, and sees what serve stored
	b.is("advancing; 1 done; waits for answers")
	if text := b.wait.Sentence(); !strings.Contains(text, "gate errors refuses: 503") {
		t.Error(text)
	}
	answer(GateUndefined, GatePassed).is("advancing; 1 done; waits for answers") // another serve does not know it
	if b.state.Answers["errors"].Code != GateRefused {
		t.Errorf("%+v", b.state.Answers)
	}
	answer(GateUnanswered, GatePassed).is("advancing; 1 done; waits for answers")
	b.after(time.Hour)
	answer(GateUnanswered, GatePassed).is("advancing; 1 done; stopped: gates; waits for gate")
	if b.state.Stop == nil || b.state.Stop.Code != StopGates || len(b.state.Stop.Gates) != 1 {
		t.Errorf("it paused for %+v", b.state.Stop)
	}
	b.resume()
	b.o.Answers = nil
	b.is("advancing; 1 done; waits for answers")
	answer(GatePassed, GatePassed).is("advancing; ordered web2; 1 done; waits for nodes")
	b.o.Answers = nil // those of another batch count no longer: the controller asks again
	b.reports("ok", "web2").is("advancing; 2 done; waits for answers")
	answer(GatePassed, GatePassed).is("completed; 2 done")
}

// TestStateComesFirst: a step that changes the state orders nobody: another controller may have done more.
func TestStateComesFirst(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*4", Policy{})
	step := Advance(b.plan, b.state, b.o, b.now)
	if step.State == nil || len(step.Assign) > 0 || len(step.Withdraw) > 0 {
		t.Fatalf("the first step is %+v", step)
	}
	next := Advance(b.plan, *step.State, b.o, b.now)
	if next.State != nil || len(next.Assign) != 1 || next.Assign[0].Assignment.ID != "r1.1." || next.Assign[0].Assignment.Machine != "m-web1" {
		t.Fatalf("the second step is %+v", next)
	}
}

// TestSlotOfARunningNodeIsNeverFree: a deletion must not be ordered while the last status is that of a run.
func TestSlotOfARunningNodeIsNeverFree(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*1", Policy{Deadline: model.Duration(time.Minute)}).settle()
	step := Advance(b.plan, b.state, b.o, b.now.Add(time.Hour))
	if step.State == nil || step.State.Slots["web1"].State != Withdrawing {
		t.Fatalf("the late node is %+v", step)
	}
	b.state = *step.State
	b.edit("web1", func(n *Node) { n.Status.Phase = model.Running })
	if step = Advance(b.plan, b.state, b.o, b.now.Add(time.Hour)); step.State == nil || step.State.Slots["web1"].State != Lost {
		t.Fatalf("the node that began is %+v", step)
	}
}

func fleetOfTenThousand(t testing.TB) *bench {
	b := begin(t, "db*1000 web*9000", Policy{Canaries: "10", Batch: "10%", MaxUnavailable: map[string]int{"rack": 1000}})
	for _, g := range b.plan.Groups {
		for i := range g.Nodes {
			g.Nodes[i].Places = []string{fmt.Sprintf("rack=%d", i%50)}
		}
	}
	return b
}

// BenchmarkPlan and BenchmarkAdvance: 10,000 nodes, a limit of racks, and batches of 900 nodes.
func BenchmarkPlan(b *testing.B) {
	fleet := fleetOf("db*1000 web*9000")
	for b.Loop() {
		if _, err := Make(Order{Policy: Policy{Canaries: "10"}, Roles: []string{"db", "web"}}, fleet); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAdvance(b *testing.B) {
	f := fleetOfTenThousand(b)
	f.state.Group = 2 // the role web
	b.Run("opens", func(b *testing.B) {
		for b.Loop() {
			if step := Advance(f.plan, f.state, f.o, f.now); step.State == nil || len(step.State.Slots) != 900 {
				b.Fatalf("%d slots", len(step.State.Slots))
			}
		}
	})
	b.Run("retries", func(b *testing.B) {
		failed := f.state.clone()
		failed.Next = 9000
		for _, m := range f.plan.Groups[2].Nodes {
			failed.Failed[m.Node] = Failure{Code: RunFailed}
		}
		again, _, err := failed.Retry(f.plan)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if step := Advance(f.plan, again, f.o, f.now); step.State == nil || len(step.State.Slots) != 900 {
				b.Fatalf("%+v", step.Wait)
			}
		}
	})
	f.state = *Advance(f.plan, f.state, f.o, f.now).State
	b.Run("orders", func(b *testing.B) {
		for b.Loop() {
			if step := Advance(f.plan, f.state, f.o, f.now); len(step.Assign) != 900 {
				b.Fatalf("%d assignments", len(step.Assign))
			}
		}
	})
}
