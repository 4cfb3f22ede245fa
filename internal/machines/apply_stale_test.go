package machines_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/model"
)

// planned makes a plan, lets something happen, and applies the plan.
func (o *operator) planned(n int, happen func()) (apply.Result, error) {
	o.t.Helper()
	x := o.start()
	defer x.end()
	p, err := x.applier.Look(x.ctx, fleetOf(role("web", n)), plan.Options{})
	if err != nil {
		o.t.Fatal(err)
	}
	x.session.aims(aim{Want: p.Spec})
	x.session.approve(p.Deleted())
	happen()
	return x.applier.Apply(x.ctx, p, p.Deleted())
}

// killJoined kills the machine of a name that is the node.
func (o *operator) killJoined(name string, state machines.State) {
	for _, m := range o.site.machines() {
		if m.Name == name && m.Joined {
			o.site.kill(m.ID, state)
		}
	}
}

// A machine that another program deletes may report another state for minutes. The apply must wait for its end, and must not
// request a deletion that nobody approved.
func TestApplyWaitsForForeignDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 1)))
		set := func(state machines.State) {
			o.site.locked(func() {
				o.site.boxes[0].State, o.site.boxes[0].goneAt = state, o.site.boxes[0].Created.Add(time.Hour)
			})
		}
		set(machines.Deleting)
		go func() {
			pass(10 * time.Second)
			set(machines.Unknown)
			pass(3 * time.Minute)
			o.site.kill(o.site.machines()[0].ID, "")
		}()
		_, err := o.planned(1, func() {})
		if err == nil || !strings.Contains(err.Error(), "another program deleted its machine") {
			t.Error(err)
		}
	})
}

// Of two machines of a name, the node's own may die before the other is deleted: then none would be left.
func TestApplyRechecksDuplicates(t *testing.T) {
	for _, c := range []struct {
		say    string
		happen func(*operator)
		says   string
	}{
		{"the first is gone", func(o *operator) { o.killJoined("web1", "") }, "the machine that was to stay is gone"},
		{"the first has failed", func(o *operator) { o.killJoined("web1", machines.Failed) }, "the machine that was to stay is gone"},
		{"the second is the node by now", func(o *operator) {
			for _, m := range o.site.machines() {
				if m.Name == "web1" && !m.Joined {
					o.site.Unlist("web1")
					o.site.take("web1", m.ID)
				}
			}
		}, "has joined, and is the node now"},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.well(fleetOf(role("web", 1)))
				second := o.site.plant("web1", o.site.mark())
				_, err := o.planned(1, func() { c.happen(o) })
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Error(err)
				}
				for _, m := range o.site.machines() {
					if m.ID == second.ID && m.State == machines.Running {
						return
					}
				}
				t.Error("the last machine was deleted")
			})
		})
	}
}

// If an apply ignored the cancellation of a retirement, it would delete the node ten minutes later, or hang.
func TestRetireStopsWhenCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 2)))
		o.site.Trouble = nth("ask", 1, 1, hookHang)
		time.AfterFunc(time.Minute, func() {
			o.site.Ask("web2", model.Request{ID: "00000000000000dd", Do: model.RequestRun, At: time.Now()})
		})
		began := time.Now()
		_, err := o.apply(fleetOf(role("web", 1)))
		if err == nil || !strings.Contains(err.Error(), "its retirement was cancelled") || time.Since(began) > 2*time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		o.has("web1", "web2")
	})
}

// A node that is wanted again before anything was removed must not be destroyed.
func TestApplyCancelsRetirement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 2)))
		o.site.Trouble = nth("ask", 1, 1, hookFail)
		if _, err := o.apply(fleetOf(role("web", 1))); err == nil {
			t.Fatal("its hooks did not fail")
		}
		before := o.site.made()
		o.well(fleetOf(role("web", 2)))
		o.has("web1", "web2")
		if o.site.made() != before {
			t.Error("it was made anew")
		}
		if acts := o.site.Acts(); acts[len(acts)-1].Did != machines.Adopted || !machines.Has(acts[len(acts)-1].Reasons, machines.RetirementBegun) || !machines.Has(acts[len(acts)-1].Reasons, machines.RetirementCancelled) {
			t.Errorf("the history ends with %+v", acts[len(acts)-1])
		}
		if r := o.site.Records()["web2"]; len(r.Reasons) > 0 {
			t.Errorf("the record still has the reasons of the retirement: %+v", r.Reasons)
		}
		q := o.site.Hosts()["web2"].Request
		if why := o.site.held("web2").Why; why != "" || q == nil || q.Do != model.RequestRun {
			t.Errorf("it is held because %q, and asked for %+v", why, q)
		}
		o.site.holdNode("web2", "ann looks at it")
		o.site.retiring("web2")
		o.site.holdNode("web2", "ann looks at it") // instead of the other
		if _, err := o.apply(fleetOf(role("web", 2))); err != nil {
			t.Error(err)
		}
		if why := o.site.held("web2").Why; why != "ann looks at it" {
			t.Errorf("an operator's own hold is %q by now", why)
		}
	})
}

// While one machine of a name is being deleted, only its own step may wait.
func TestApplyDelaysOnlyBusyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		first, began := "", time.Now()
		o.dies = func(_ *session, e apply.Event) {
			if e.State == apply.Waits && first == "" {
				first = e.Node
			}
			if e.State == apply.Done && e.Node != first && time.Since(began) > 18*time.Second {
				t.Errorf("%s waited for %s, for %s", e.Node, first, time.Since(began))
			}
		}
		o.site.Trouble = nth("create", 1, 3, nameBusy)
		o.set = func(a *apply.Applier) { a.Parallel, a.Wait = 1, apply.WaitNone }
		if _, err := o.apply(fleetOf(role("web", 1))); err != nil || time.Since(began) < time.Minute {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
		busy := true
		o.site.Trouble = func(call string) fault {
			if call == "create" && busy {
				busy = false
				return nameBusy
			}
			return none
		}
		o.set = func(a *apply.Applier) { a.Parallel, a.Wait = 2, apply.WaitNone }
		first, began = "", time.Now()
		if _, err := o.apply(fleetOf(role("web", 5))); err != nil || first == "" {
			t.Error(first, err)
		}
	})
}

// Between the deletion of one machine and the claim for the next, the record must show that the node is being replaced.
// Later plans need its place, and whether it joined.
func TestApplyKeepsRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 1)))
		o.kill(machines.Failed, "web1")
		var calls []string
		o.site.Trouble = func(call string) fault {
			if call != "world" && call != "list" {
				calls = append(calls, call)
			}
			return none
		}
		o.well(fleetOf(role("web", 1)))
		if got := strings.Join(calls, ", "); got != "put, put, remove, note, delete, put, order, create, note, put, put" {
			t.Error(got)
		}
		if r := o.site.Records()["web1"]; r.Place != "home" || !r.Joined || r.Phase != machines.Made || r.Drained || r.Tries != 1 {
			t.Errorf("%+v", r)
		}
		o.site.forget("web1")
		o.well(fleetOf(role("web", 1)))
		if r := o.site.Records()["web1"]; r.Place != "home" || !r.Joined {
			t.Errorf("%+v", r)
		}
	})
}

// One failure must not stop the retirement of unrelated nodes.
func TestRetireWaitsOnlyForItsMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		roles := func(db, web, app int) []string {
			o.t.Helper()
			_, err := o.apply(fleetOf(role("db", db), role("web", web, after("db"), failures("1")), role("app", app)))
			if err == nil {
				return nil
			}
			return strings.Split(err.Error(), "\n")
		}
		if err := roles(2, 2, 2); err != nil {
			t.Fatal(err)
		}
		refuse := func(times int) { o.site.Trouble = nth("create", 1, times, refuses) }
		refuse(1)
		if said := roles(3, 1, 1); len(said) == 0 || !strings.Contains(strings.Join(said, "\n"), "not begun (retire web2): nothing is retired before the new machines are healthy, and db3 failed") {
			t.Error(said)
		}
		o.hasMachines("app1", "db1", "db2", "web1", "web2")
		refuse(1) // tolerated
		if said := roles(1, 3, 1); len(said) == 0 {
			t.Error("web3 was made")
		}
		o.hasMachines("app1", "db1", "web1", "web2")
	})
}

// An interrupted apply must not store the environment.
func TestInterruptedApplyStoresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		x := o.start()
		defer x.end()
		p, err := x.applier.Look(x.ctx, fleetOf(role("web", 2)), plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(x.ctx)
		cancel()
		if r, err := x.applier.Apply(ctx, p, nil); err == nil || !r.Interrupted || o.site.Spec() != nil {
			t.Errorf("%v, %+v, stored: %v", err, r, o.site.Spec())
		}
	})
}

// A machine that boots while the provider does not list it may join at any moment: a second one must not be ordered.
func TestApplyOrdersNoSecondMachineOfJoinedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 1)))
		host := o.site.Hosts()["web1"]
		o.site.Unlist("web1")
		o.site.hide(all, time.Hour)
		o.site.forget("web1")
		_, err := o.planned(1, func() { o.site.take("web1", host.MachineID) })
		if err == nil || !strings.Contains(err.Error(), "the node is registered, and the provider does not list its machine") || len(o.site.machines()) != 1 {
			t.Errorf("%v, and there are %d machines", err, len(o.site.machines()))
		}
	})
}

// If a node's machine is not listed and another of its name is, the reporting node must not be removed for the other.
func TestApplyKeepsNodeWithUnlistedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		want := fleetOf(role("web", 1, flavor("small")))
		o.well(want)
		before := o.site.Hosts()["web1"]
		o.site.plant("web1", o.site.mark()) // of another flavor
		o.set = func(a *apply.Applier) { a.Provider = unlisting{a.Provider, before.MachineID} }
		if p := o.plan(want); !p.Empty() || p.Steps[0].Verb != plan.Keep || !machines.Has(p.Steps[0].Notes, machines.ReportsUnlisted) {
			t.Error(text(p.Plan))
		}
	})
}

// unlisting is a provider that omits one machine.
type unlisting struct {
	machines.Provider
	id string
}

func (u unlisting) List(ctx context.Context) ([]machines.Machine, error) {
	all, err := u.Provider.List(ctx)
	return slices.DeleteFunc(all, func(m machines.Machine) bool { return m.ID == u.id }), err
}
