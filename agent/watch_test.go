package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/model"
)

// watching returns a node that watches others for an hour, and has watched long enough.
func watching(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.agent.Settings.EnforceInterval = 1000 * time.Hour // runs for changed nodes only
	w.agent.Facts = func() ([]byte, error) { return nil, nil }
	w.hosts.see(t)
	w.hosts.alive = time.Hour
	w.hosts.set(t, "controller1")
	w.hosts.signs(t)
	w.promote(t, verA)
	w.good(t)
	for range 2 * model.Signs {
		w.now = w.now.Add(15 * time.Minute)
		w.hosts.signs(t)
		w.idle(t)
	}
	return w
}

// until ticks each five minutes until Puppet runs, and returns the time that this took; at most a day.
func (w *world) until(t *testing.T, each func()) time.Duration {
	t.Helper()
	for begin := w.now; w.now.Sub(begin) < 24*time.Hour; w.now = w.now.Add(5 * time.Minute) {
		each()
		if r := w.tick(t); len(w.puppet.jobs) > 0 {
			same(t, "the reason", r.Run.Reason, model.ReasonHosts)
			return w.now.Sub(begin)
		}
	}
	return 24 * time.Hour
}

// A dead backend would stay in service, or a fleet would run Puppet for each sign of life.
func TestDeadNodesAreSeenOnce(t *testing.T) {
	w := watching(t)
	nothing := func() {}
	if took := w.until(t, nothing); took < time.Hour || took > 100*time.Minute {
		t.Errorf("a dead node is seen after %s", took)
	}
	same(t, "the nodes", w.sees(t), "controller1 alive=false")
	if took := w.until(t, nothing); took < 24*time.Hour {
		t.Errorf("Puppet runs again after %s", took)
	}
	if took := w.until(t, func() { w.hosts.signs(t) }); took > 15*time.Minute {
		t.Errorf("a node that returned is seen after %s", took)
	}
	same(t, "the nodes", w.sees(t), "controller1 alive=true")
	if took := w.until(t, func() { w.hosts.signs(t) }); took < 24*time.Hour {
		t.Errorf("Puppet runs again after %s, and nothing changed", took)
	}
}

// The nodes of a whole fleet would count as dead after an hour without etcd, without the node itself, or with a wrong clock.
func TestNobodyIsDeadWhileTheNodeSeesNothing(t *testing.T) {
	lives := func(t *testing.T, w *world) {
		t.Helper()
		if w.tick(t); len(w.puppet.jobs) > 0 { // a wrong clock makes enforcement due
			same(t, "the nodes", w.sees(t), "controller1 alive=true")
		}
	}
	for what, away := range map[string]func(t *testing.T, w *world){
		"etcd is away": func(t *testing.T, w *world) {
			w.etcd.disconnect()
			for range 50 {
				w.now = w.now.Add(5 * time.Minute)
				lives(t, w)
			}
			w.etcd.reconnect()
		},
		"the list is not readable": func(t *testing.T, w *world) {
			w.hosts.onFetch = func() error { return fmt.Errorf("cut off: %w", model.ErrUnreachable) }
			for range 50 {
				w.now = w.now.Add(5 * time.Minute)
				lives(t, w)
			}
			w.hosts.onFetch = nil
		},
		"the machine is off":          func(t *testing.T, w *world) { w.now = w.now.Add(100 * time.Hour) },
		"its clock was a year behind": func(t *testing.T, w *world) { w.now = w.now.Add(365 * 24 * time.Hour) },
		"its clock was a year ahead":  func(t *testing.T, w *world) { w.now = w.now.Add(-365 * 24 * time.Hour) },
		"its clock jumps": func(t *testing.T, w *world) {
			for range 10 {
				w.now = w.now.Add(-365 * 24 * time.Hour)
				lives(t, w)
			}
		},
		"etcd was restored": func(t *testing.T, w *world) {
			w.etcd.operator(t, func(d *model.Desired) { d.Revision = 2 })
			c := w.etcd.load()
			c.Signed, c.List = 1, c.List+7
			if err := w.etcd.save(c); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := watching(t)
			away(t, w)
			lives(t, w)
			w.now = w.now.Add(5 * time.Minute)
			lives(t, w)
			w.now = w.now.Add(25 * time.Minute) // the others report again
			w.hosts.signs(t)
			lives(t, w)
			if took := w.until(t, func() {}); took < time.Hour || took > 110*time.Minute {
				t.Errorf("nodes that then die are seen after %s", took)
			}
			same(t, "the nodes", w.sees(t), "controller1 alive=false")
		})
	}
}

// A new balancer, or one with a new hosts.alive, knows nothing of the past: it would start without backends.
func TestNodesAreAliveUntilTheNodeWatchedForTheTime(t *testing.T) {
	w := newWorld(t)
	w.agent.Settings.EnforceInterval = 1000 * time.Hour
	w.hosts.see(t)
	w.hosts.alive = time.Hour
	w.hosts.set(t, "controller1") // never gave a sign
	w.promote(t, verA)
	w.good(t)
	same(t, "the first run", w.sees(t), "controller1 alive=true")
	if took := w.until(t, func() {}); took < time.Hour || took > 100*time.Minute {
		t.Errorf("a node that never reported is dead after %s", took)
	}
	w.hosts.alive = 4 * time.Hour
	w.promote(t, verB)
	w.good(t)
	same(t, "with a longer time", w.sees(t), "controller1 alive=true")
	if took := w.until(t, func() {}); took < 4*time.Hour || took > 7*time.Hour {
		t.Errorf("it is dead after %s", took)
	}
	w.hosts.alive = 0
	w.promote(t, verC)
	w.good(t)
	same(t, "without hosts.alive", w.sees(t), "controller1")
	if watch := w.state(t).Hosts.Watch; watch != (model.Watch{}) {
		t.Errorf("without hosts.alive, the node remembers %+v", watch)
	}
}

// An idle tick with hosts.alive is one request. Four times within the time, a node reads the list of others and writes its own sign of life.
func TestSignsOfLifeAreFew(t *testing.T) {
	w := watching(t)
	for _, heartbeat := range []time.Duration{5 * time.Minute, 24 * time.Hour} {
		w.agent.Settings.Heartbeat = heartbeat
		w.tick(t)
		counts := map[string]int{}
		const hours = 5
		list := w.etcd.load().List
		for range hours * 60 {
			w.now = w.now.Add(time.Minute)
			w.hosts.signs(t)
			w.idle(t)
			for _, c := range w.etcd.calls {
				counts[c]++
			}
		}
		reports := hours * int(time.Hour/min(heartbeat, 15*time.Minute))
		if counts["desire"] != hours*60 || counts["hosts"] != hours*model.Signs || counts["export"] != hours*model.Signs || counts["report"] > reports+2 {
			t.Errorf("heartbeat %s: the ticks of %d hours make %v", heartbeat, hours, counts)
		}
		same(t, "changes of the host list", w.etcd.load().List, list)
	}

	// Etcd refuses the write: the next report repeats it.
	w.etcd.onFacts = func() error { return fmt.Errorf("permission denied") }
	w.now = w.now.Add(15 * time.Minute)
	w.idle(t)
	same(t, "signs of life", w.etcd.count("export"), 1)
	w.now = w.now.Add(time.Minute)
	w.idle(t)
	same(t, "signs of life", w.etcd.count("export"), 0)
	w.etcd.onFacts = nil
	w.now = w.now.Add(15 * time.Minute)
	w.idle(t)
	same(t, "signs of life", w.etcd.count("export"), 1)

	// An exported fact follows at once, and others read it.
	list := w.etcd.load().List
	w.agent.Facts = func() ([]byte, error) { return []byte("facts"), nil }
	if err := os.WriteFile(filepath.Join(w.hosts.dir, "shown"), []byte(`"a"`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(15 * time.Minute)
	w.idle(t)
	same(t, "changes of the host list", w.etcd.load().List, list+1)

	// A release without hosts.alive ends the signs.
	if err := os.Remove(filepath.Join(w.hosts.dir, "shown")); err != nil {
		t.Fatal(err)
	}
	w.hosts.alive = 0
	w.promote(t, verB)
	w.good(t)
	same(t, "the export", w.etcd.load().Export.Alive, time.Duration(0))
	for range 10 {
		w.now = w.now.Add(time.Hour)
		w.tick(t)
		same(t, "signs of life", w.etcd.count("export"), 0)
	}
}
