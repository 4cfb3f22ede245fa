package machines_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

// A node must not be switched off with work on it while its hooks run, or after they failed.
func TestRetireWaitsForTheHooks(t *testing.T) {
	for _, c := range []struct {
		say   string
		fault fault
		says  string
	}{
		{"they fail", hookFail, "cannot retire web2: its retire hooks failed: the hook 10-leave failed"},
		{"they hang", hookHang, "cannot retire web2: its retire hooks did not finish within 10m0s"},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.well(fleetOf(role("web", 2)))
				o.site.Trouble = nth("ask", 1, 1, c.fault)
				_, err := o.apply(fleetOf(role("web", 1)))
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "--no-drain") {
					t.Fatal(err)
				}
				o.has("web1", "web2")
				if c.fault == hookFail { // repaired, and requested again
					o.well(fleetOf(role("web", 1)))
				} else {
					o.set = func(a *apply.Applier) { a.NoDrain = true }
					o.well(fleetOf(role("web", 1)))
				}
				o.has("web1")
			})
		})
	}
}

// The order of a retirement keeps a node from running Puppet, or from joining again, meanwhile.
func TestRetireGoesStepByStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 2)))
		var calls []string
		o.site.Trouble = func(call string) fault {
			if call != "world" && call != "list" {
				calls = append(calls, call)
			}
			return none
		}
		o.well(fleetOf(role("web", 1)))
		if got := strings.Join(calls, ", "); got != "put spec, put, hold, put, ask, put, remove, note, delete, drop" {
			t.Error(got)
		}
	})
}

// An apply that resumes must not run finished hooks again.
func TestRetireSendsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 2)))
		asks := 0
		o.site.Trouble = func(call string) fault {
			if call == "ask" {
				asks++
				return crashAfter
			}
			return none
		}
		_, _ = o.apply(fleetOf(role("web", 1)))
		o.site.Trouble = func(call string) fault {
			if call == "ask" {
				asks++
			}
			return none
		}
		o.well(fleetOf(role("web", 1)))
		if asks != 1 {
			t.Errorf("it was asked %d times", asks)
		}
	})
}

// A machine that joined just before its deletion must not stay in the host list.
func TestRetireOfNodeThatJoinsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// one of these times is between the removal and the deletion
		for wait := time.Duration(0); wait < time.Minute; wait += time.Second {
			o := newOperator(t)
			o.site.Latency = 3 * time.Second
			o.set = func(a *apply.Applier) { a.Wait = apply.WaitNone }
			if _, err := o.apply(fleetOf(role("web", 1))); err != nil {
				t.Fatal(err)
			}
			pass(wait)
			if _, err := o.apply(fleetOf(role("web", 0))); err != nil {
				t.Fatal(err)
			}
			o.has()
		}
	})
}

// A foreign machine that is a member must be able to leave its role, and must never be deleted.
func TestRetireOfAMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		const old = "old1.example.com"
		o.site.Join(old, "web")
		member := func(r *environments.Role) { r.Members = []string{old} }
		speaks := func() {
			o.site.Report(model.Status{Node: old, Role: "web", Phase: model.Idle, SeenAt: time.Now(), Settings: model.DefaultSettings(), Answer: &model.Answer{ID: o.asked(old)}})
		}
		speaks()
		if _, err := o.apply(fleetOf(role("web", 1, member))); err != nil {
			t.Fatal(err)
		}
		speaks()
		stop := time.AfterFunc(time.Minute, speaks)
		defer stop.Stop()
		o.well(fleetOf(role("web", 1)))
		o.has("web1")
		if o.asked(old) != "" {
			t.Error("it is still on the list")
		}
	})
}

// asked returns the id of a node's last request.
func (o *operator) asked(node string) string {
	if q := o.site.Hosts()[node].Request; q != nil {
		return q.ID
	}
	return ""
}

// An approval of yesterday must not delete a machine that is healthy today, or that appeared since.
func TestRetireRechecksMachines(t *testing.T) {
	for _, c := range []struct {
		say    string
		happen func(*operator)
		says   string
	}{
		{"it is well again", func(o *operator) { o.kill(machines.Running, "web1") }, "it is not broken any more"},
		{"another one came", func(o *operator) { o.site.plant("web1", o.site.mark()) }, "another machine has its name"},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.well(fleetOf(role("web", 2)))
				o.kill(machines.Stopped, "web1")
				x := o.start()
				defer x.end()
				p, err := x.applier.Look(x.ctx, fleetOf(role("web", 2)), plan.Options{})
				if err != nil || len(p.Deleted()) != 1 {
					t.Fatal(err, text(p.Plan))
				}
				x.session.approve(p.Deleted())
				c.happen(o)
				pass(2 * time.Minute)
				before := len(o.site.machines())
				if _, err := x.applier.Apply(x.ctx, p, p.Deleted()); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Error(err)
				}
				if _, listed := o.site.Hosts()["web1"]; len(o.site.machines()) != before || !listed {
					t.Error("something was done to it")
				}
			})
		})
	}
}

// With a provider that identifies machines only by name, a new machine must not be mistaken for the old one.
func TestRetireWithoutIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.site.NoIDs = true
		apply := func(n int, f string, machines ...string) {
			t.Helper()
			want := fleetOf(role("web", n, flavor(f)))
			if _, err := o.apply(want); err != nil {
				t.Fatal(err)
			}
			if p := o.plan(want); !p.Empty() || !p.Healthy {
				t.Fatal(text(p.Plan))
			}
			o.has(machines...)
			o.noViolations()
		}
		apply(2, "small", "web1", "web2")
		made := o.site.made()
		apply(2, "large", "web1", "web2")
		if o.site.made() != made+2 {
			t.Error("they were not replaced")
		}
		apply(1, "large", "web1")
	})
}

// Old machines must not be retired if the new ones failed.
func TestRetireWaitsForNewMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("old", 2)))
		o.site.Trouble = nth("create", 1, 1, refuses)
		_, err := o.apply(fleetOf(role("new", 1)))
		if err == nil || !strings.Contains(err.Error(), "(retire old2, retire old1): nothing is retired before the new machines are healthy, and new1 failed") {
			t.Fatal(err)
		}
		o.hasMachines("old1", "old2")
		o.well(fleetOf(role("new", 1)))
		o.has("new1")
	})
}

// A fleet at its quota must be able to replace machines of one role by those of another.
func TestRetireFreesQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.site.Quota = 3
		o.well(fleetOf(role("old", 3)))
		if _, err := o.apply(fleetOf(role("old", 1), role("new", 2))); err == nil || !strings.Contains(err.Error(), "quota") {
			t.Fatal(err)
		}
		o.well(fleetOf(role("old", 1), role("new", 2)))
		o.has("old1", "new1", "new2")
	})
}

// racked puts nodes in racks of which at most one node each may be unavailable.
func racked(e *environments.Environment, racks map[string]string) *environments.Environment {
	e.DataLayers = []string{"node", "rack", "role", "environment", "common"}
	e.Rollout.MaxUnavailable = map[string]int{"rack": 1}
	e.ByNode = map[string]environments.NodeSettings{}
	for node, rack := range racks {
		if n, err := model.ParseNode(node); err != nil || !e.Has(n) {
			continue // its values are those of the stored environment
		}
		e.ByNode[node] = environments.NodeSettings{Attributes: map[string]string{"rack": rack}}
	}
	return e
}

// A service that tolerates one missing node of a rack must survive an apply that retires or replaces several.
func TestRetireKeepsPlacesAvailable(t *testing.T) {
	racks := map[string]string{"web1": "r1", "web2": "r1", "web3": "r2", "web4": "r1"}
	for _, c := range []struct {
		name  string
		after *environments.Environment
	}{
		{"retire", racked(fleetOf(role("web", 1)), racks)},
		{"replace", racked(fleetOf(role("web", 4, flavor("large"), batch("4"))), racks)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.well(racked(fleetOf(role("web", 4)), racks))
				o.set = func(a *apply.Applier) { a.Wait = apply.WaitNone }
				o.events = nil
				if _, err := o.apply(c.after); err != nil {
					t.Fatal(err)
				}
				o.noViolations()
				away, most, other, waited := map[string]bool{}, 0, false, false
				for _, e := range o.events {
					switch {
					case e.Task == "retire" && e.State == apply.Ends:
						away[e.Node] = true
					case e.State == apply.Done:
						delete(away, e.Node)
					case e.State == apply.Waits && machines.Has(e.Reasons, machines.WaitsForPlace):
						waited = true
					}
					n := 0
					for node := range away {
						if racks[node] == "r1" {
							n++
						}
					}
					most, other = max(most, n), other || n > 0 && away["web3"]
				}
				if most != 1 || !other || !waited {
					t.Errorf("at most %d nodes of r1 left at a time; beside one of r2: %v; a wait was shown: %v", most, other, waited)
				}
			})
		})
	}
}

// A node that is unavailable for another cause counts as well. The apply waits for it, and fails before it begins anything.
func TestRetireWaitsForUnavailableNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		racks := map[string]string{"web1": "r1", "web2": "r1"}
		quick := func(r *environments.Role) { r.Replace.Timeout = model.Duration(5 * time.Minute) } // simulated nodes are silent after 20
		o := newOperator(t)
		o.well(racked(fleetOf(role("web", 2, quick)), racks))
		held := model.Hold{Scope: "nodes/web1", Mode: model.Stop, Who: "ann", Since: time.Now()}
		o.site.holds["web1"] = held
		want := racked(fleetOf(role("web", 1, quick)), racks)
		if p := strings.Join(render.Plan(o.plan(want).Plan), "\n"); !strings.Contains(p, "; it waits for web1 of rack=r1: ") {
			t.Errorf("the plan does not show the wait:\n%s", p)
		}
		_, err := o.apply(want)
		if err == nil || !strings.Contains(err.Error(), "could not begin within 5m0s: it waits for web1 of rack=r1") || !strings.Contains(err.Error(), "pulley explain web1 -e dev") {
			t.Fatal(err)
		}
		if _, is := o.site.holds["web2"]; is || o.site.records["web2"].Phase == machines.Retiring {
			t.Error("the retirement has begun")
		}
	})
}

// After an interruption, the next apply must know which nodes the interrupted one took away, and where those that it was to retire are: a
// replacement that boots is as unavailable as a node that is drained.
func TestInterruptedApplyKeepsPlacesAvailable(t *testing.T) {
	racks := map[string]string{"web1": "r1", "web2": "r1", "web3": "r1", "web4": "r2"}
	for _, c := range []struct {
		name  string
		after *environments.Environment
	}{
		{"retire", racked(fleetOf(role("web", 1)), racks)},
		{"replace", racked(fleetOf(role("web", 3, flavor("large"), batch("4"))), racks)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := func(crash *apply.Event) []apply.Event {
					o := newOperator(t)
					o.well(racked(fleetOf(role("web", 4)), racks))
					o.set = func(a *apply.Applier) { a.Wait = apply.WaitNone }
					o.events = nil
					o.dies = func(s *session, now apply.Event) {
						if now.Task == "retire" && now.State == apply.Ends && racks[now.Node] == "r1" {
							for node, rack := range racks {
								if rack == "r1" && node != now.Node && !o.site.serves(node) {
									t.Errorf("%s begins to leave while %s is away", now.Node, node)
								}
							}
						}
						if crash != nil && now.Node == crash.Node && now.Task == crash.Task && now.State == crash.State {
							crash = nil
							s.Crash()
						}
					}
					_, err := o.apply(c.after)
					if err != nil {
						if _, err = o.apply(c.after); err != nil {
							t.Error(err)
						}
					}
					o.noViolations()
					return o.events
				}
				for _, e := range run(nil) {
					if e.State != apply.Ends || racks[e.Node] != "r1" {
						continue
					}
					if run(&e); t.Failed() {
						t.Fatalf("the crash was when %s %s %s", e.Node, e.State, e.Task)
					}
				}
			})
		})
	}
}

// serves reports whether a node does its work, or left for good.
func (s *sim) serves(node string) (ok bool) {
	s.locked(func() {
		_, recorded := s.records[node]
		_, listed := s.hosts[node]
		_, held := s.holds[node]
		ok = !recorded && !listed || listed && !held && s.view(node).State == model.Converged
	})
	return ok
}

// One node that nobody repairs must not stop the work in other places: the nodes that wait for it occupy no slot of --parallel.
func TestWaitingForAPlaceOccupiesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		racks := map[string]string{"web1": "r1", "web2": "r2", "web3": "r1"}
		quick := func(r *environments.Role) { r.Replace.Timeout = model.Duration(5 * time.Minute) }
		o := newOperator(t)
		o.well(racked(fleetOf(role("web", 3, quick)), racks))
		o.site.holds["web1"] = model.Hold{Scope: "nodes/web1", Mode: model.Stop, Who: "ann", Since: time.Now()}
		o.set = func(a *apply.Applier) { a.Parallel = 1 }
		o.events = nil
		begun := time.Now()
		if _, err := o.apply(racked(fleetOf(role("web", 1, quick)), racks)); err == nil || !strings.Contains(err.Error(), "cannot retire web3") {
			t.Fatal(err)
		}
		var waits []machines.Reason
		done := false
		for _, e := range o.events {
			switch {
			case e.Node == "web3" && e.State == apply.Waits:
				waits = append(waits, e.Reasons...)
			case e.Node == "web3" && e.State == apply.Fails && !done:
				t.Error("web2, in the other rack, was retired only after the wait")
			case e.Node == "web2" && e.State == apply.Done:
				done = true
			}
		}
		if len(waits) != 1 || waits[0].Place != "rack=r1" || waits[0].Until.Sub(begun).Round(time.Minute) != 5*time.Minute {
			t.Errorf("shown are %+v", waits)
		}
		if text := render.Reasons(waits); !strings.HasPrefix(text, "it waits for web1 of rack=r1, at most until 20") {
			t.Error(text)
		}
	})
}

// A role whose replacements fail must lose no further node: those that wait for a place are left.
func TestWaitingReplacementsAreLeftAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		racks := map[string]string{"web1": "r1", "web2": "r1", "web3": "r1"}
		o := newOperator(t)
		o.well(racked(fleetOf(role("web", 3)), racks))
		o.site.Trouble = func(call string) fault {
			if call == "ask" {
				return hookFail
			}
			return none
		}
		begun := time.Now()
		r, err := o.apply(racked(fleetOf(role("web", 3, flavor("large"), batch("3"))), racks))
		if err == nil || len(r.Failed) != 1 || len(r.Left) != 2 || r.Left[0].Left == nil || r.Left[0].Left.Code != machines.TooManyFailed {
			t.Errorf("failed %v, left %v: %v", r.Failed, r.Left, err)
		}
		if took := time.Since(begun); took > 5*time.Minute {
			t.Errorf("it took %s", took)
		}
		if n := len(o.site.Acts()) - 3; n != 0 {
			t.Errorf("%d more acts", n)
		}
	})
}

// A replacement that is still on its way counts as unavailable, and one that an operator removed or that is new does not.
func TestReplacedNodesCountUntilTheyConverge(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	e := racked(fleetOf(role("web", 2)), map[string]string{"web1": "r1", "web2": "r1"})
	kept := machines.Record{Node: "web1", Phase: machines.Made, Tries: 1, Places: []string{"rack=r1"}, At: at}
	for _, c := range []struct {
		name   string
		edit   func(*machines.Record)
		status *model.Status // also: it is registered
		waits  bool
	}{
		{"it is drained", func(r *machines.Record) { r.Phase = machines.Retiring }, nil, true},
		{"its machine is ordered", func(r *machines.Record) { r.Phase = machines.Making }, nil, true},
		{"its machine boots", func(*machines.Record) {}, nil, true},
		{"it did not report", func(r *machines.Record) { r.Joined = true }, &model.Status{SeenAt: at.Add(-time.Hour)}, true},
		{"it has not converged", func(r *machines.Record) { r.Joined = true }, &model.Status{SeenAt: at.Add(time.Minute)}, true},
		{"it has converged", func(r *machines.Record) { r.Joined = true }, &model.Status{SeenAt: at.Add(time.Minute), LastGood: model.Target{Release: "1", Tree: "aa"}}, false},
		{"an operator removed it", func(r *machines.Record) { r.Joined = true }, nil, false},
		{"it is a new node", func(r *machines.Record) { r.Places = nil }, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := kept
			c.edit(&rec)
			w := machines.World{
				Records: map[string]machines.Record{"web1": rec}, Hosts: map[string]model.Host{"web2": {Node: "web2"}}, Released: true,
				Places: map[string][]string{"web2": {"rack=r1"}}, Statuses: map[string]model.Status{}, Views: map[string]model.View{},
			}
			if c.status != nil {
				w.Hosts["web1"], w.Places["web1"], w.Statuses["web1"] = model.Host{Node: "web1", At: at}, []string{"rack=r1"}, *c.status
			}
			plan.Recall(e, w)
			if why := plan.MayRetire(e, w, "web2", nil); (why != nil) != c.waits {
				t.Errorf("web2 waits for %+v", why)
			}
		})
	}
}

// A node on which an apply failed is missing from its place. The next one of its place must not leave as well, and nobody should wait half
// an hour for a machine that this apply does not make any more.
func TestFailedNodeEndsTheWaitOfItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		racks := map[string]string{"web1": "r1", "web2": "r1"}
		o := newOperator(t)
		o.well(racked(fleetOf(role("web", 2)), racks))
		o.site.Trouble = nth("create", 1, 1, refuses)
		begun := time.Now()
		_, err := o.apply(racked(fleetOf(role("web", 2, flavor("large"), batch("2"), failures("2"))), racks))
		if err == nil || !strings.Contains(err.Error(), "cannot begin its retirement: it waits for web") || !strings.Contains(err.Error(), "and this apply failed on them") {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 10*time.Minute {
			t.Errorf("the apply took %s", took)
		}
		serving := 0
		for node := range racks {
			if o.site.serves(node) && o.site.records[node].Phase == machines.Made {
				serving++
			}
		}
		if serving != 1 {
			t.Errorf("%d nodes of r1 work", serving)
		}
		o.noViolations()
		o.well(racked(fleetOf(role("web", 2, flavor("large"), batch("2"))), racks)) // the next apply completes it
	})
}
