package machines_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/environments"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
)

// An operator must be able to make, grow, change, shrink and destroy a fleet.
func TestApplyMakesFleetMatchFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.site.FirstBoot = 30 * time.Second
		o.well(fleetOf(role("controller", 2), role("compute", 3, after("controller"))))
		o.has("controller1", "controller2", "compute1", "compute2", "compute3")
		o.well(fleetOf(role("controller", 3), role("compute", 5, after("controller"))))
		o.has("controller1", "controller2", "controller3", "compute1", "compute2", "compute3", "compute4", "compute5")
		waits := func(e apply.Event) bool {
			return e.Node == "compute1" && e.State == apply.Waits && render.Reasons(e.Reasons) == "it joined, and its first boot is at step server: no release; promote one"
		}
		if !slices.ContainsFunc(o.events, waits) {
			t.Error("the cause of the wait for a first boot is not shown")
		}
		o.site.FirstBoot = 0
		before := o.site.machines()
		r := o.well(fleetOf(role("controller", 3, flavor("large")), role("compute", 5, after("controller"))))
		if len(r.Done) != 3 {
			t.Errorf("%+v", r.Done)
		}
		for _, m := range o.site.machines() {
			same := slices.ContainsFunc(before, func(b seen) bool { return b.ID == m.ID })
			if isController := strings.HasPrefix(m.Name, "controller"); same == isController || isController && m.Flavor != "large" {
				t.Errorf("%+v was there before: %v", m, same)
			}
		}
		o.well(fleetOf(role("controller", 1, flavor("large")), role("compute", 1, after("controller"))))
		o.has("controller1", "compute1")
		o.well(fleetOf(role("controller", 0), role("compute", 0)))
		o.has()
	})
}

// A compute node must not boot before the controllers that it needs, nor lose them before it is gone.
func TestApplyKeepsOrderOfRoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		roles := []environments.Role{role("compute", 2, after("net")), role("net", 1, after("controller")), role("controller", 2)}
		o.well(fleetOf(roles...))
		is := func(got []string, want ...string) {
			t.Helper()
			for i := range got {
				got[i] = strings.TrimRight(got[i], "0123456789")
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, not %v", got, want)
			}
		}
		is(o.order(apply.Begins, "order"), "controller", "controller", "net", "compute", "compute")
		converged := slices.IndexFunc(o.events, func(e apply.Event) bool { return e.Node == "controller2" && e.State == apply.Done })
		began := slices.IndexFunc(o.events, func(e apply.Event) bool { return e.Node == "net1" && e.State == apply.Begins })
		if converged > began {
			t.Errorf("net1 began before controller2 had converged")
		}
		o.events = nil
		for i := range roles {
			roles[i].Cardinality = 0
		}
		o.well(fleetOf(roles...))
		is(o.order(apply.Begins, "retire"), "compute", "compute", "net", "controller", "controller")
	})
}

// An operator who reaches a quota at the third machine must learn the state of the first two.
func TestApplyReportsProgressAtQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.site.Quota = 2
		o.set = func(a *apply.Applier) { a.Parallel = 1 }
		_, err := o.apply(fleetOf(role("compute", 5)))
		if err == nil || !strings.Contains(err.Error(), "reached at machine 3 of 5 of compute: 2 made") || !strings.Contains(err.Error(), "compute4, create compute5") {
			t.Fatal(err)
		}
		o.site.Quota = 0
		o.well(fleetOf(role("compute", 5)))
		o.has("compute1", "compute2", "compute3", "compute4", "compute5")
	})
}

// Pulley must not delete a machine without approval.
func TestApplyRefusesUnapprovedDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		o.well(fleetOf(role("db", 2, protected), role("web", 2)))
		x := o.start()
		defer x.end()
		x.session.approve(nil)
		for want, says := range map[*environments.Environment]string{
			fleetOf(role("db", 2, protected), role("web", 1)): "cannot apply dev: retire web2: the deletion of machine web2 (id ",
			fleetOf(role("db", 1, protected), role("web", 2)): "db is protected",
			fleetOf(role("db", 1), role("web", 2)):            "db is protected",
		} {
			p, err := x.applier.Look(x.ctx, want, plan.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := x.applier.Apply(x.ctx, p, nil); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, and not: %s", err, says)
			}
			if err := apply.CheckRetire(p.Plan, 0); err == nil || !strings.Contains(err.Error(), "--max-retire 1") {
				t.Error(err)
			}
		}
		o.noViolations()
		o.has("db1", "db2", "web1", "web2")
	})
}

// After the first bad machine of a role, the other machines must not be replaced.
func TestApplyStopsFailingRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOperator(t)
		made := 0
		o.set = func(a *apply.Applier) { a.Parallel = 1 }
		o.site.Trouble = func(call string) fault {
			if call == "create" {
				if made++; made <= 2 {
					return noBoot
				}
			}
			return none
		}
		want := fleetOf(role("web", 4, failures("1")), role("lb", 1, after("web")), role("db", 1))
		r, err := o.apply(want)
		if !r.Unreached() {
			t.Errorf("machines were made, and their nodes did not join: %+v", r)
		}
		for _, says := range []string{"web1", "did not join within 30m0s: it is running, and has not joined yet: its first boot ended; it is retried", "not begun (create web3, create web4): web1, web2 failed, and replace.failures of web is 1", "(create lb1): lb comes after web"} {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("it does not say %q:\n%v", says, err)
			}
		}
		o.hasMachines("db1", "web1", "web2")
		o.noViolations()
		o.well(want)
		o.has("db1", "lb1", "web1", "web2", "web3", "web4")
	})
}
