package machines_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
)

// nth returns a fault for the nth call of a kind, repeated for the given number of times.
func nth(call string, n, times int, f fault) func(string) fault {
	count := 0
	return func(c string) fault {
		if c != call {
			return none
		}
		if count++; count >= n && count < n+times {
			return f
		}
		return none
	}
}

// One temporary fault of a cloud must not fail an apply, or make a machine twice.
func TestApplySurvivesProviderFaults(t *testing.T) {
	for _, c := range []struct {
		say   string
		call  string
		times int
		fault fault
		made  int // machines, including failed ones
	}{
		{"a create is not answered", "create", 4, failBefore, 3},
		{"the answer of a create is lost", "create", 1, failAfter, 3},
		{"the cloud asks to wait, nineteen times", "create", 19, throttle, 3},
		{"a machine ends in error, twice", "create", 2, errorEnd, 5},
		{"a machine is lost", "create", 1, loseIt, 4},
		{"a list is not answered", "list", 3, failBefore, 3},
		{"a list asks to wait", "list", 4, throttle, 3},
		{"etcd is away for some seconds", "world", 4, failBefore, 3},
		{"the answer of a write is lost", "put", 2, failAfter, 3},
		{"the answer to the order in the inventory is lost", "order", 1, failAfter, 3},
		{"an environment is stored without an answer", "put spec", 1, failAfter, 3},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				first := 1
				if c.call == "list" || c.call == "world" { // reads of the plan are not retried
					first = 2
				}
				o.site.Trouble = nth(c.call, first, c.times, c.fault)
				o.set = func(a *apply.Applier) { a.Parallel = 1 }
				o.well(fleetOf(role("web", 3)))
				o.has("web1", "web2", "web3")
				if got := o.site.made(); got != c.made {
					t.Errorf("%d machines were made, not %d", got, c.made)
				}
			})
		})
	}
}

// Two tokens with one id are both invalid: neither machine could join.
func TestOrderRetriesTakenToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.site.Grant("token-1", "db1")
		o.well(fleetOf(role("web", 1)))
		o.has("web1")
		if left := o.site.Tokens(); len(left) != 1 || left["token-1"] != "db1" || o.site.Records()["web1"].Token != "token-2" {
			t.Errorf("tokens: %v, records: %+v", left, o.site.Records())
		}
	})
}

// A machine that the cloud can never make must not be ordered forever; the apply must report the cause.
func TestApplyFailsOnPermanentErrors(t *testing.T) {
	for _, c := range []struct {
		say   string
		fault fault
		tries int // number of creates
		says  string
	}{
		{"no answer ever", failBefore, 5, "cannot create web1: tried 5 times: no answer"},
		{"it is refused", refuses, 1, "cannot create web1: the provider refuses the request: not accepted"},
		{"it fails each time", errorEnd, 3, "cannot create web1: the provider reports of its machine: No valid host was found, after 3 tries"},
		{"it never stops to ask to wait", throttle, 25, "too many requests"},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				tries := 0
				o.site.Trouble = func(call string) fault {
					if call != "create" {
						return none
					}
					tries++
					return c.fault
				}
				_, err := o.apply(fleetOf(role("web", 1)))
				if err == nil || !strings.Contains(err.Error(), c.says) || tries != c.tries {
					t.Fatalf("after %d tries: %v", tries, err)
				}
				if r := o.site.Records()["web1"]; c.fault != errorEnd && r.Problem == "" {
					t.Errorf("the record has no cause: %+v", r)
				}
				o.noViolations()
				o.site.Trouble = nil
				o.well(fleetOf(role("web", 1)))
			})
		})
	}
}

// A foreign machine must not be treated as Pulley's because of its name.
func TestApplyRefusesTakenName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		theirs := o.site.plant("web1", machines.Mark{Owner: o.site.mark().Owner, Fleet: "production"})
		_, err := o.apply(fleetOf(role("web", 1), role("db", 1)))
		var taken *machines.TakenError
		if !errors.As(err, &taken) || !strings.Contains(err.Error(), "the name web1 belongs to") {
			t.Fatal(err)
		}
		if _, ok := o.site.Hosts()["db1"]; !ok {
			t.Error("another role had to wait for it")
		}
		if all := o.site.machines(); all[0].ID != theirs.ID || all[0].State != machines.Running {
			t.Errorf("%+v", all)
		}
	})
}

// Ctrl-C must not lose a machine that is being made, nor wait too long.
func TestApplyCanBeInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.site.Latency = 5 * time.Second // calls are in flight at the interrupt
		x := o.start()
		defer x.end()
		p, err := x.applier.Look(x.ctx, fleetOf(role("web", 40)), plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(x.ctx)
		time.AfterFunc(42*time.Second, cancel)
		began := time.Now()
		r, err := x.applier.Apply(ctx, p, nil)
		if took := time.Since(began); took > 75*time.Second {
			t.Errorf("it took %s", took)
		}
		if err == nil || !r.Interrupted || !strings.Contains(err.Error(), "it was interrupted\nwhat was begun is recorded: apply again to resume") {
			t.Errorf("%v, %+v", err, r)
		}
		if len(r.Failed) > 0 || len(r.Cut) == 0 || len(o.order(apply.Fails, "order")) > 0 {
			t.Errorf("an interrupted step counts as failed: %+v", r)
		}
		for _, c := range r.Cut {
			if !slices.ContainsFunc(o.events, func(e apply.Event) bool {
				return e.Node == c.Node && e.Task == c.Task && e.State == apply.Notes && machines.Has(e.Reasons, machines.ApplyInterrupted)
			}) {
				t.Errorf("no event reports that %s was interrupted", c.Node)
			}
		}
		for _, m := range o.site.machines() {
			if _, ok := o.site.Records()[m.Name]; !ok {
				t.Errorf("%s has no record", m.Name)
			}
		}
		made := o.site.made()
		if made == 0 || made == 40 {
			t.Fatalf("%d machines were made before", made)
		}
		o.site.Latency = time.Millisecond
		o.well(fleetOf(role("web", 40)))
		if got := o.site.made(); got != 40 {
			t.Errorf("%d machines were made", got)
		}
	})
}

// If an interrupted destroy advised an apply, the apply would cancel it and keep machines that cost money.
func TestDestroyErrorsNameDestroy(t *testing.T) {
	for _, c := range []struct {
		say   string
		fault fault
		says  string
		cut   time.Duration
	}{
		{"it was interrupted", hookHang, "what was begun is recorded: destroy again to resume", time.Minute},
		{"hooks fail", hookFail, "fix that and destroy again, with --no-drain", time.Hour},
		{"hooks hang", hookHang, "check it and destroy again, with --no-drain", time.Hour},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				o.well(fleetOf(role("web", 1)))
				o.site.Trouble = nth("ask", 1, 1, c.fault)
				x := o.start()
				defer x.end()
				p, err := x.applier.Look(x.ctx, fleetOf(role("web", 1)), plan.Options{Destroy: true})
				if err != nil {
					t.Fatal(err)
				}
				x.session.approve(p.Deleted())
				ctx, cancel := context.WithTimeout(x.ctx, c.cut)
				defer cancel()
				_, err = x.applier.Apply(ctx, p, p.Deleted())
				if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "apply") {
					t.Error(err)
				}
				if p, _ := x.applier.Look(x.ctx, fleetOf(role("web", 1)), plan.Options{Destroy: true}); !strings.Contains(text(p.Plan), "and did not finish; the environment is destroyed") {
					t.Errorf("why it goes is lost: %s", text(p.Plan))
				}
			})
		})
	}
}

// Two concurrent applies would make and delete each other's machines.
func TestApplyStopsWithoutLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		x := o.start()
		defer x.end()
		p, err := x.applier.Look(x.ctx, fleetOf(role("web", 20)), plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		made := 0
		time.AfterFunc(time.Minute, func() { made = o.site.made(); o.site.Open("bob", nil) })
		r, err := x.applier.Apply(x.ctx, p, nil)
		if !errors.Is(err, machines.ErrLost) || r.Interrupted || !strings.Contains(err.Error(), "another apply has the lock") {
			t.Errorf("%v, %+v", err, r)
		}
		if now := o.site.made(); now != made || made == 0 {
			t.Errorf("%d machines were made before, and %d are now", made, now)
		}
		o.well(fleetOf(role("web", 20)))
		if got := o.site.made(); got != 20 {
			t.Errorf("%d machines were made", got)
		}
	})
}

// A CI job must get its answer within its time, and the next apply must resume.
func TestApplyStopsAtItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.set = func(a *apply.Applier) { a.Limit = time.Minute }
		began := time.Now()
		r, err := o.apply(fleetOf(role("web", 20)))
		if took := time.Since(began); !errors.Is(err, apply.ErrLate) || !strings.Contains(err.Error(), "cannot finish: its time passed\nwhat was begun is recorded") || r.Unreached() || took > 2*time.Minute {
			t.Errorf("%v after %s, %+v", err, took, r)
		}
		o.set = nil
		o.well(fleetOf(role("web", 20)))
		if got := o.site.made(); got != 20 {
			t.Errorf("%d machines were made", got)
		}
	})
}

// Without a promoted release, an apply must not wait for nodes to converge.
func TestApplyWaitsAsFarAsPossible(t *testing.T) {
	for _, c := range []struct {
		say         string
		set         func(*operator)
		least, most time.Duration
		note        string
	}{
		{"converged", func(*operator) {}, 2 * time.Minute, 4 * time.Minute, ""},
		{"nothing is promoted", func(o *operator) { o.site.Demote() }, time.Minute, 2 * time.Minute, "no release is promoted in dev"},
		{"registered", func(o *operator) { o.set = func(a *apply.Applier) { a.Wait = apply.WaitRegistered } }, time.Minute, 2 * time.Minute, ""},
		{"ordered", func(o *operator) { o.set = func(a *apply.Applier) { a.Wait = apply.WaitNone } }, 0, 20 * time.Second, ""},
	} {
		t.Run(c.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOperator(t)
				c.set(o)
				began := time.Now()
				r, err := o.apply(fleetOf(role("web", 3)))
				took := time.Since(began)
				if err != nil || took < c.least || took > c.most || !strings.Contains(notes(r), c.note) {
					t.Errorf("%v after %s: %q", err, took, notes(r))
				}
			})
		})
	}
}

// An environment that protects a role with a dead machine must be able to remove the protection: protection must not
// block its own removal.
func TestApplyRemovesProtectionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("db", 2, protected)))
		o.kill(machines.Failed, "db1")
		if _, err := o.apply(fleetOf(role("db", 2, flavor("large")))); err == nil {
			t.Fatal("more was done than to take it away")
		}
		before := o.site.made()
		r, err := o.apply(fleetOf(role("db", 2)))
		if err != nil || len(r.Notes) != 1 || o.site.made() != before {
			t.Fatalf("%v, %+v", err, r)
		}
		o.well(fleetOf(role("db", 2)))
		o.has("db1", "db2")
	})
}

// Nodes that list other nodes, such as a load balancer, would learn of a new one half an hour late.
func TestApplyRequestsRunsOfReactingNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		lb := role("lb", 2, reactsTo("web"))
		o.well(fleetOf(lb, role("web", 1)))
		asked := func() (n int) {
			for _, h := range o.site.Hosts() {
				if h.Role == "lb" && h.Request != nil {
					n++
				}
			}
			return n
		}
		if n := asked(); n != 0 {
			t.Fatalf("%d were asked who were new themselves", n)
		}
		if r := o.well(fleetOf(lb, role("web", 2))); asked() != 2 || len(r.Notes) > 0 {
			t.Errorf("%d were asked, %q", asked(), notes(r))
		}
		o.site.Trouble = nth("ask", 1, 1, hookHang)
		if r, err := o.apply(fleetOf(lb, role("web", 3))); err != nil || len(r.Notes) != 1 || !strings.Contains(notes(r), "not answered within 10m: lb") {
			t.Errorf("%v, %q", err, notes(r))
		}
	})
}
