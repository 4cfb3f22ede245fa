package machines_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
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
				o.well(fleet(role("web", 2)))
				o.site.Trouble = nth("ask", 1, 1, c.fault)
				_, err := o.apply(fleet(role("web", 1)))
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "--no-drain") {
					t.Fatal(err)
				}
				o.has("web1", "web2")
				if c.fault == hookFail { // repaired, and requested again
					o.well(fleet(role("web", 1)))
				} else {
					o.set = func(a *apply.Applier) { a.NoDrain = true }
					o.well(fleet(role("web", 1)))
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
		o.well(fleet(role("web", 2)))
		var calls []string
		o.site.Trouble = func(call string) fault {
			if call != "world" && call != "list" {
				calls = append(calls, call)
			}
			return none
		}
		o.well(fleet(role("web", 1)))
		if got := strings.Join(calls, ", "); got != "put spec, put, hold, put, ask, put, remove, note, delete, drop" {
			t.Error(got)
		}
	})
}

// An apply that resumes must not run finished hooks again.
func TestRetireSendsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleet(role("web", 2)))
		asks := 0
		o.site.Trouble = func(call string) fault {
			if call == "ask" {
				asks++
				return crashAfter
			}
			return none
		}
		_, _ = o.apply(fleet(role("web", 1)))
		o.site.Trouble = func(call string) fault {
			if call == "ask" {
				asks++
			}
			return none
		}
		o.well(fleet(role("web", 1)))
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
			if _, err := o.apply(fleet(role("web", 1))); err != nil {
				t.Fatal(err)
			}
			pass(wait)
			if _, err := o.apply(fleet(role("web", 0))); err != nil {
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
			o.site.Report(agent.Status{Node: old, Role: "web", Phase: agent.Idle, SeenAt: time.Now(), Settings: agent.DefaultSettings(), Answer: &agent.Answer{ID: o.asked(old)}})
		}
		speaks()
		if _, err := o.apply(fleet(role("web", 1, member))); err != nil {
			t.Fatal(err)
		}
		speaks()
		stop := time.AfterFunc(time.Minute, speaks)
		defer stop.Stop()
		o.well(fleet(role("web", 1)))
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
				o.well(fleet(role("web", 2)))
				o.kill(machines.Stopped, "web1")
				x := o.start()
				defer x.end()
				p, err := x.applier.Look(x.ctx, fleet(role("web", 2)), plan.Options{})
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
			want := fleet(role("web", n, flavor(f)))
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
		o.well(fleet(role("old", 2)))
		o.site.Trouble = nth("create", 1, 1, refuses)
		_, err := o.apply(fleet(role("new", 1)))
		if err == nil || !strings.Contains(err.Error(), "(retire old2, retire old1): nothing is retired before the new machines are healthy, and new1 failed") {
			t.Fatal(err)
		}
		o.hasMachines("old1", "old2")
		o.well(fleet(role("new", 1)))
		o.has("new1")
	})
}

// A fleet at its quota must be able to replace machines of one role by those of another.
func TestRetireFreesQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.site.Quota = 3
		o.well(fleet(role("old", 3)))
		if _, err := o.apply(fleet(role("old", 1), role("new", 2))); err == nil || !strings.Contains(err.Error(), "quota") {
			t.Fatal(err)
		}
		o.well(fleet(role("old", 1), role("new", 2)))
		o.has("old1", "new1", "new2")
	})
}

// racked puts nodes in racks of which at most one node each may be unavailable.
func racked(e *environments.Environment, racks map[string]string) *environments.Environment {
	e.DataLayers = []string{"node", "rack", "role", "environment", "common"}
	e.Rollout.MaxUnavailable = map[string]int{"rack": 1}
	e.ByNode = map[string]environments.NodeSettings{}
	for node, rack := range racks {
		if n, err := environments.ParseNode(node); err != nil || !e.Has(n) {
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
		{"retire", racked(fleet(role("web", 1)), racks)},
		{"replace", racked(fleet(role("web", 4, flavor("large"), batch("4"))), racks)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.well(racked(fleet(role("web", 4)), racks))
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
		quick := func(r *environments.Role) { r.Replace.Timeout = environments.Duration(5 * time.Minute) } // simulated nodes are silent after 20
		o := newOperator(t)
		o.well(racked(fleet(role("web", 2, quick)), racks))
		held := agent.Hold{Scope: "nodes/web1", Mode: agent.Stop, Who: "ann", Since: time.Now()}
		o.site.holds["web1"] = held
		want := racked(fleet(role("web", 1, quick)), racks)
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
