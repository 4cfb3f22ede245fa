package machines_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/machines/watch"
)

// fallsSilent is the time after which a dead node counts as silent.
const fallsSilent = 25 * time.Minute

// says is a provider that reports a machine as failed.
type says struct {
	machines.Provider
	name string
}

func (l says) List(ctx context.Context) ([]machines.Machine, error) {
	all, err := l.Provider.List(ctx)
	for i := range all {
		if all[i].Name == l.name {
			all[i].State, all[i].Problem = machines.Failed, "resize failed"
		}
	}
	return all, err
}

// without is a provider that omits some machines.
type without struct {
	machines.Provider
	names []string
}

func (l without) List(ctx context.Context) ([]machines.Machine, error) {
	all, err := l.Provider.List(ctx)
	return slices.DeleteFunc(all, func(m machines.Machine) bool { return slices.Contains(l.names, m.Name) }), err
}

// looked is the result of one look and of the act that followed.
type looked struct {
	Dead, Acted []plan.Step
	Notes       []string
}

// lookOnce makes a watcher look, and act with the lock.
func lookOnce(ctx context.Context, w *watch.Watcher, a *apply.Applier) (l looked, err error) {
	f, err := w.Look(ctx, a.Source)
	for _, n := range f.Notes {
		l.Notes = append(l.Notes, render.Reason(n))
	}
	if l.Dead = f.Dead; err != nil || !f.Ready() {
		return l, err
	}
	l.Acted = slices.Concat(f.Resume, f.Again)
	_, err = w.Act(ctx, a, f)
	return l, err
}

// look makes a watcher look once, as `pulley env watch` does each minute.
func (o *operator) look(w *watch.Watcher) looked {
	o.t.Helper()
	x := o.start()
	defer x.end()
	x.applier.By = "pulley env watch"
	d, err := lookOnce(x.ctx, w, x.applier)
	if err != nil {
		o.t.Fatal(err)
	}
	return d
}

// kill kills machines, by name.
func (o *operator) kill(state machines.State, names ...string) {
	for _, m := range o.site.machines() {
		if slices.Contains(names, m.Name) {
			o.site.kill(m.ID, state)
		}
	}
}

func nodesOf(steps []plan.Step) (nodes []string) {
	for _, s := range steps {
		nodes = append(nodes, s.Node)
	}
	return nodes
}

// A machine that died at night must not stay dead until the morning. One that only restarted must not be destroyed.
func TestWatchReplacesDeadMachinesAfterPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 8)))
		o.kill(machines.Stopped, "web1", "web2")
		o.kill("", "web3")
		var w watch.Watcher
		if d := o.look(&w); len(d.Dead) != 0 {
			t.Fatalf("as long as they have just spoken: %+v", d)
		}
		pass(fallsSilent)
		if d := o.look(&w); len(d.Dead) != 3 || len(d.Acted) != 0 {
			t.Fatalf("at the first look: %+v", d)
		}
		o.kill(machines.Running, "web2") // it only restarted
		pass(time.Minute)
		if d := o.look(&w); len(d.Dead) != 2 || len(d.Acted) != 0 {
			t.Fatalf("a minute later: %+v", d)
		}
		o.kill(machines.Stopped, "web2")
		pass(4 * time.Minute)
		d := o.look(&w)
		if got := nodesOf(d.Acted); !slices.Equal(got, []string{"web1", "web3"}) {
			t.Fatalf("five minutes later: %v", got)
		}
		var noted []string
		for _, a := range o.site.Acts() {
			if a.Watch && len(a.Reasons) > 0 && a.By == "pulley env watch" {
				noted = append(noted, a.Node)
			}
		}
		if !slices.Equal(noted, []string{"web1", "web3"}) {
			t.Errorf("noted as done by itself: %v", noted)
		}
		pass(fallsSilent)
		o.look(&w)
		pass(5 * time.Minute)
		if got := nodesOf(o.look(&w).Acted); !slices.Equal(got, []string{"web2"}) {
			t.Errorf("the one that died again: %v", got)
		}
		if p := o.plan(fleetOf(role("web", 8))); !p.Empty() || !p.Healthy {
			t.Error(text(p.Plan))
		}
		o.noViolations()
	})
}

// If machines die as fast as they are made, the budget must limit the replacements, also across restarts of the
// watcher.
func TestWatchKeepsItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 12)))
		o.kill(machines.Failed, "web1", "web2", "web3", "web4", "web5")
		pass(fallsSilent)
		w := watch.Watcher{Budget: 2}
		o.look(&w)
		pass(6 * time.Minute)
		d := o.look(&w)
		if got := nodesOf(d.Acted); !slices.Equal(got, []string{"web1", "web2"}) || len(d.Notes) != 1 || !strings.Contains(d.Notes[0], "web3, web4, web5 wait: the budget is 2 machines an hour") {
			t.Fatalf("%v, %q", got, d.Notes)
		}
		w = watch.Watcher{Budget: 2} // it is restarted
		for range 4 {
			pass(6 * time.Minute)
			if d := o.look(&w); len(d.Acted) > 0 {
				t.Fatalf("within the hour: %v", nodesOf(d.Acted))
			}
		}
		pass(time.Hour)
		if got := nodesOf(o.look(&w).Acted); !slices.Equal(got, []string{"web3", "web4"}) {
			t.Fatalf("in the next hour: %v", got)
		}
		o.noViolations()
	})
}

// A watcher that crashes between its decision and the end must still count the replacement.
func TestWatchBudgetCountsInterruptedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, at := range []string{"note", "put", "remove", "delete", "order", "create"} {
			o := newOperator(t)
			o.well(fleetOf(role("web", 5)))
			o.kill(machines.Failed, "web1", "web2")
			pass(fallsSilent)
			w := watch.Watcher{Budget: 1}
			o.look(&w)
			pass(6 * time.Minute)
			o.site.Trouble = func(call string) fault {
				if call == at {
					return crashAfter
				}
				return none
			}
			x := o.start()
			if d, err := lookOnce(x.ctx, &w, x.applier); err == nil {
				t.Fatalf("it did not die: %+v", d)
			}
			x.end()
			o.site.Trouble = nil
			w = watch.Watcher{Budget: 1}
			for range 5 {
				pass(6 * time.Minute)
				if d := o.look(&w); slices.Contains(nodesOf(d.Acted), "web2") {
					t.Fatalf("it died at %s and made another one again within the hour", at)
				}
			}
		}
	})
}

// A watch must not replace a protected database with an empty one. It must not delete a machine under a hold, nor
// destroy a fleet during an outage of the cloud.
func TestWatchKeepsMachines(t *testing.T) {
	for _, c := range []struct {
		say, says string
		happen    func(*operator)
	}{
		{"protected roles", "db1 is skipped: db is protected", func(o *operator) { o.kill(machines.Failed, "db1") }},
		{"held nodes", "web1 is skipped: freeze on nodes/web1: ann looks at it", func(o *operator) {
			o.kill("", "web1")
			o.site.holdNode("web1", "ann looks at it")
		}},
		{"an outage", "4 of 7 machines look dead: that looks like an outage", func(o *operator) { o.kill(machines.Stopped, "web1", "web2", "web3", "web4") }},
		{"a list that is empty all at once", "the provider lists none of 7 machines: that looks like an outage", func(o *operator) {
			o.kill("", "web1", "web2", "web3", "web4", "db1", "db2", "db3")
		}},
		{"what speaks, whatever the provider says", "web1 is skipped: it reported at ", func(o *operator) {
			o.set = func(a *apply.Applier) { a.Provider = says{a.Provider, "web1"} }
		}},
		{"what the provider does not list and speaks", "", func(o *operator) {
			o.set = func(a *apply.Applier) { a.Provider = without{a.Provider, []string{"web1", "web2"}} }
		}},
		{"who was taken off the list", "", func(o *operator) { o.site.Unlist("web2") }},
		{"what an operator has yet to do", "left to an apply: web4; `pulley env plan` shows why", func(o *operator) { o.kill("", "web4"); o.site.Unlist("web4"); o.site.forget("web4") }},
		{"who was never wanted", "", func(o *operator) { o.site.plant("web9", o.site.mark()); o.site.plant("web1", o.site.mark()) }},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.well(fleetOf(role("db", 3, protected), role("web", 4)))
				c.happen(o)
				pass(fallsSilent)
				before := fmt.Sprint(o.site.machines())
				var w watch.Watcher
				for range 5 {
					d := o.look(&w)
					if len(d.Acted) > 0 {
						t.Fatalf("%v was made again", nodesOf(d.Acted))
					}
					if notes := strings.Join(d.Notes, "\n"); !strings.Contains(notes, c.says) && len(d.Dead) == 0 || c.says == "" && notes != "" {
						t.Errorf("it says %q, not %q", notes, c.says)
					}
					pass(7 * time.Minute)
				}
				if d := o.look(&w); c.says != "" && !strings.Contains(strings.Join(d.Notes, "\n"), c.says) {
					t.Errorf("it says %q, not %q", d.Notes, c.says)
				}
				if now := fmt.Sprint(o.site.machines()); now != before {
					t.Errorf("there were\n%s\nand are\n%s", before, now)
				}
			})
		})
	}
}

// An operator must learn when a dead machine will be replaced.
func TestWatchReportsTimeOfSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 8)))
		o.kill(machines.Stopped, "web1")
		var w watch.Watcher
		_, rest, _ := strings.Cut(strings.Join(o.look(&w).Notes, "\n"), "web1 is skipped: it reported at ")
		_, rest, _ = strings.Cut(rest, "; it counts as silent from ")
		const layout = "2006-01-02 15:04:05Z"
		at, err := time.Parse(layout, rest[:min(len(rest), len(layout))])
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Until(at.Add(-2 * time.Second)))
		if d := o.look(&w); len(d.Dead) > 0 {
			t.Errorf("it is taken for dead before: %+v", d.Dead)
		}
		pass(4 * time.Second)
		if d := o.look(&w); len(d.Dead) != 1 {
			t.Errorf("it is not taken for dead from then on: %+v", d)
		}
	})
}

// Without a stored environment, a watcher has no wanted state and must do nothing.
func TestWatchNeedsAStoredEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		x := o.start()
		defer x.end()
		if _, err := lookOnce(x.ctx, new(watch.Watcher), x.applier); err == nil || !strings.Contains(err.Error(), "it is not stored") {
			t.Fatal(err)
		}
	})
}

// In a fleet of one or two machines, a lost machine cannot be distinguished from an incomplete list. A watch must not
// make such a fleet twice.
func TestWatchOfSmallFleetNeedsMoreThanList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("web", 2)))
		o.kill("", "web1")
		o.site.Unlist("web1")
		pass(fallsSilent)
		before := o.site.made()
		var w watch.Watcher
		for range 4 {
			if d := o.look(&w); len(d.Acted) > 0 || !strings.Contains(strings.Join(d.Notes, "\n"), "does not list 1 of 2 machines") {
				t.Fatalf("%v, %q", nodesOf(d.Acted), d.Notes)
			}
			pass(6 * time.Minute)
		}
		o.kill("", "web2") // it was in the host list until it fell silent
		o.well(fleetOf(role("web", 1)))
		if o.site.made() == before {
			t.Error("an operator could not make it again either")
		}
	})
}
