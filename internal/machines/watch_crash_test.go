package machines_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/watch"
)

// watchScene is a situation in which a watch has work to do for web1.
type watchScene struct {
	say    string
	happen func(*operator)
}

func watchScenes() []watchScene {
	return []watchScene{
		{"it is off", func(o *operator) { o.kill(machines.Stopped, "web1") }},
		{"it is lost", func(o *operator) { o.kill("", "web1") }},
		{"an order was cut off, and its machine exists", func(o *operator) {
			o.kill("", "web1")
			w := o.watching()
			o.site.Trouble = nth("create", 1, 1, crashAfter)
			o.once(w)
			o.site.Trouble = nil
		}},
	}
}

// set returns an operator in the scene.
func (sc watchScene) set(t *testing.T) *operator {
	o := newOperator(t)
	o.well(fleetOf(role("web", 4)))
	sc.happen(o)
	return o
}

// watching returns a watch that has seen the dead machines for long enough.
func (o *operator) watching() *watch.Watcher {
	pass(fallsSilent)
	w := &watch.Watcher{}
	for range 2 {
		if ripe := o.see(w); !ripe {
			pass(6 * time.Minute)
		}
	}
	return w
}

// see looks without the lock, and reports whether there is work.
func (o *operator) see(w *watch.Watcher) bool {
	x := o.start()
	defer x.end()
	f, err := w.Look(x.ctx, x.applier.Source)
	if err != nil {
		o.t.Fatal(err)
	}
	return f.Ready()
}

// once makes a watch look once; a crash may end it.
func (o *operator) once(w *watch.Watcher) {
	x := o.start()
	defer x.end()
	x.applier.By = "pulley env watch"
	_, _ = lookOnce(x.ctx, w, x.applier)
}

// counted returns how many replacements the budget has counted.
func (o *operator) counted() (n int) {
	for _, a := range o.site.Acts() {
		if a.Watch {
			n++
		}
	}
	return n
}

// ends makes new watches look until no work remains, and compares with a watch without a crash. The first look must
// resume unfinished work, which is not counted again.
func (sc watchScene) ends(o *operator, calm string) {
	o.t.Helper()
	o.dies, o.site.Trouble = nil, nil
	r, known := o.site.Records()["web1"]
	if !known {
		o.t.Error("web1 has no record")
	}
	counted := o.counted()
	var w watch.Watcher
	d := o.look(&w)
	if begun := r.Watch && r.Phase != machines.Made; begun && (!slices.Equal(nodesOf(d.Acted), []string{"web1"}) || o.counted() != counted) {
		o.t.Errorf("work that was begun, %+v, is not resumed, or is counted again: %v, %q", r, nodesOf(d.Acted), d.Notes)
	}
	for range 2 {
		pass(6 * time.Minute)
		o.look(&w)
	}
	if got := endOf(o); got != calm {
		o.t.Errorf("after a crash and other looks:\n%s\n\nwithout the crash:\n%s", got, calm)
	}
	if p := o.plan(fleetOf(role("web", 4))); !p.Empty() || !p.Healthy {
		o.t.Errorf("the plan is not empty: %s", text(p.Plan))
	}
	o.noViolations()
}

// calmEnd returns the state some time after a watch without a crash.
func calmEnd(o *operator, w *watch.Watcher) string {
	for range 2 {
		pass(6 * time.Minute)
		o.look(w)
	}
	o.noViolations()
	return endOf(o)
}

// A watch that restarts while it replaces a machine must not leave the node without one: an unfinished replacement does not look like
// a dead machine. It crashes before and after the effect of every call to etcd and the provider.
func TestWatchResumesAfterCrash(t *testing.T) {
	crashes, tasks := 0, map[string]bool{}
	for _, sc := range watchScenes() {
		t.Run(sc.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := sc.set(t)
				w := o.watching()
				calls := 0
				o.events = nil
				o.site.Trouble = func(string) fault { calls++; return none }
				o.once(w)
				o.site.Trouble = nil
				for _, e := range o.events {
					tasks[e.Task] = true
				}
				calm := calmEnd(o, w)
				for k := 1; k <= calls; k++ {
					for _, how := range []fault{crashBefore, crashAfter} {
						crash := sc.set(t)
						w := crash.watching()
						n, reads := 0, false
						crash.site.Trouble = func(call string) fault {
							if n++; n == k {
								reads = call == "world" || call == "list" || call == "acts"
								return how
							}
							return none
						}
						crash.once(w)
						crashes++
						sc.ends(crash, calm)
						if t.Failed() {
							t.Fatalf("the crash was at call %d: %s", k, how)
						}
						if reads {
							break // without effect
						}
					}
				}
			})
		})
	}
	others := []string{"recheck", "clear", "cleared", "adopt"} // of duplicates, and of machines that are not dead
	for _, name := range apply.Tasks() {
		if !tasks[name] && !slices.Contains(others, name) {
			t.Errorf("no scene has the task %s", name)
		}
	}
	t.Logf("%d crashes", crashes)
}

// After a refused order, a watch must retry, but not in each look.
func TestWatchRetriesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := watchScenes()[1].set(t)
		w := o.watching()
		creates := 0
		o.site.Trouble = func(call string) fault {
			if call != "create" {
				return none
			}
			creates++
			return quota
		}
		o.once(w)
		for range 9 {
			pass(30 * time.Second)
			o.once(w)
		}
		if creates != 1 {
			t.Errorf("within five minutes %d machines were asked for", creates)
		}
		pass(time.Minute)
		if o.once(w); creates != 2 {
			t.Errorf("five minutes later %d were asked for", creates)
		}
		o.site.Trouble = nil
		pass(6 * time.Minute)
		if d := o.look(w); len(d.Acted) != 1 || o.counted() != 1 {
			t.Errorf("when there is room again: %v, counted %d times", nodesOf(d.Acted), o.counted())
		}
	})
}

// A machine that recovered while its watch was down must not be destroyed.
func TestWatchKeepsRevivedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// nothing is removed yet; it counts as drained; the last moment
		for _, at := range []string{"hold", "remove", "delete"} {
			o := watchScenes()[0].set(t)
			w := o.watching()
			o.dies = func(s *session, e apply.Event) {
				if e.Task == at && e.State == apply.Begins {
					s.Crash()
				}
			}
			o.once(w)
			o.dies = nil
			before := o.site.made()
			o.kill(machines.Running, "web1")
			pass(2 * time.Minute)
			notes := ""
			for range 4 {
				notes += strings.Join(o.look(&watch.Watcher{}).Notes, "\n")
				pass(6 * time.Minute)
			}
			p := o.plan(fleetOf(role("web", 4)))
			if at == "hold" && (o.site.made() != before || !p.Empty() || !p.Healthy) {
				t.Errorf("it came back before anything was taken down: %s", text(p.Plan))
			}
			if at == "remove" && (o.site.made() != before || !strings.Contains(notes, "web1 is skipped: it was to be made again, and reported at ")) {
				t.Errorf("it came back before it left the fleet: %q, %s", notes, text(p.Plan))
			}
			if at == "delete" && (o.site.made() != before+1 || !p.Empty()) {
				t.Errorf("it was removed from the fleet, and the work was not resumed: %s", text(p.Plan))
			}
			o.noViolations()
		}
	})
}
