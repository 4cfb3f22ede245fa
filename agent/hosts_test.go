package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pulley/internal/model"
)

// A node joins, and the nodes that see it run once, with it. Nodes that see nobody read nothing.
func TestNodesThatAreSeenCauseOneRun(t *testing.T) {
	w := newWorld(t)
	w.hosts.set(t, "controller1")
	w.promote(t, verA)
	w.good(t)
	w.now = w.now.Add(time.Minute)
	w.hosts.set(t, "controller1 controller2")
	w.idle(t)
	same(t, "requests of a node that sees nobody", w.etcd.count("hosts"), 0)

	w.hosts.see(t)
	w.promote(t, verB)
	w.good(t)
	same(t, "the first nodes", w.sees(t), "controller1 controller2")
	w.hosts.settle = time.Minute
	w.now = w.now.Add(time.Minute)
	w.idle(t)
	same(t, "requests of a tick with nothing new", w.etcd.count("hosts"), 0)

	w.good(t, Options{Force: true}) // learns the time to settle
	w.hosts.set(t, "controller1 controller2 controller3")
	w.idle(t)
	for range 20 {
		w.now = w.now.Add(2 * time.Second)
		w.hosts.set(t, "controller1 controller2 controller3 and more")
		w.idle(t)
		same(t, "requests before the changes settled", w.etcd.count("hosts"), 0)
	}
	w.now = w.now.Add(time.Minute)
	r := w.good(t)
	same(t, "the reason", r.Reason, model.ReasonHosts)
	same(t, "the nodes", w.sees(t), "controller1 controller2 controller3 and more")
	w.idle(t)

	w.hosts.set(t, "controller1 controller2 controller3 and more") // a node of another role joins
	w.idle(t)
	w.now = w.now.Add(time.Minute)
	w.idle(t)
	same(t, "requests", w.etcd.count("hosts"), 1)
	w.idle(t)
	same(t, "requests", w.etcd.count("hosts"), 0)
}

// A run without the list would remove all other nodes from the machine's files.
func TestRunsWithoutEtcdSeeTheLastNodes(t *testing.T) {
	w := newWorld(t)
	w.hosts.see(t)
	w.hosts.set(t, "controller1")
	w.promote(t, verA)
	w.good(t)
	w.etcd.disconnect()
	w.now = w.now.Add(time.Hour)
	w.good(t)
	same(t, "the nodes without etcd", w.sees(t), "controller1")

	w.etcd.reconnect()
	w.hosts.set(t, "controller1 controller2")
	w.hosts.onFetch = func() error { return fmt.Errorf("cut off: %w", model.ErrUnreachable) }
	w.now = w.now.Add(time.Hour)
	w.good(t)
	same(t, "the nodes after a failed read", w.sees(t), "controller1")
	w.hosts.onFetch = nil
	w.good(t)
	same(t, "the nodes after a good read", w.sees(t), "controller1 controller2")
	w.idle(t)
}

// A node whose list was never read starts no run, and keeps trying.
func TestNoRunWithoutTheFirstList(t *testing.T) {
	w := newWorld(t)
	w.hosts.see(t)
	w.hosts.set(t, "controller1")
	w.hosts.onFetch = func() error { return fmt.Errorf("cut off: %w", model.ErrUnreachable) }
	w.promote(t, verA)
	if r := w.idle(t); !errors.Is(r.Err, model.ErrUnreachable) && r.Run != nil {
		t.Errorf("want no run, got %+v", r)
	}
	w.hosts.onFetch = nil
	w.good(t)
	same(t, "the nodes", w.sees(t), "controller1")
}

// A failed run keeps the change: its retry has the new nodes.
func TestFailedRunKeepsTheChangedNodes(t *testing.T) {
	w := newWorld(t)
	w.hosts.see(t)
	w.hosts.set(t, "controller1")
	w.promote(t, verA)
	w.good(t)
	w.hosts.set(t, "controller1 controller2")
	w.puppet.result = func(model.Job) (model.Result, error) {
		return model.Result{Kind: model.Between, Outcome: model.Failed, Problem: model.Problem{Code: model.ExitCode, Number: 4}}, nil
	}
	if r := w.tick(t); r.Run == nil || r.Run.Outcome != model.Failed {
		t.Fatalf("want a failed run, got %+v", r.Run)
	}
	w.puppet.result = nil
	w.now = w.now.Add(2 * time.Minute)
	w.good(t)
	same(t, "the nodes", w.sees(t), "controller1 controller2")
	w.now = w.now.Add(time.Minute)
	w.idle(t)
}

// Each hook receives each difference once, in order, also if one fails and the nodes change meanwhile.
func TestHooksReceiveEachDifferenceOnce(t *testing.T) {
	w := newWorld(t)
	w.hosts.see(t)
	w.hosts.set(t, "one")
	w.machine.fails = "20-second"
	w.promote(t, verA)
	if r := w.tick(t); r.Err == nil || r.Run == nil || r.Run.Outcome == model.Failed {
		t.Fatalf("want a good run and a failed hook: %+v", r)
	}
	w.hosts.set(t, "one two")
	w.tick(t)
	w.tick(t)
	same(t, "before the hook works", w.machine.told(), "10-first:  → one\n")
	same(t, "the problem in the status", w.etcd.status(t).Hook, model.Prose("20-second: exit status 1"))
	w.machine.fails = ""
	w.idle(t)
	w.idle(t)
	w.idle(t)
	same(t, "afterwards", w.machine.told(), "10-first:  → one\n20-second:  → one\n10-first: one → one two\n20-second: one → one two\n")
	same(t, "the problem in the status", w.etcd.status(t).Hook, model.Prose(""))
}

// The newest values of a node that changed too often would never arrive if it stops changing: nothing else announces them. One node that
// changes must not make all others read the list again and again.
func TestKeptNodesAreReadAgain(t *testing.T) {
	for name, run := range map[string]Options{"no run in between": {}, "runs in between": {Force: true}} {
		w := newWorld(t)
		w.hosts.see(t)
		w.hosts.settle = time.Minute
		w.hosts.set(t, "controller1")
		w.promote(t, verA)
		w.good(t)
		w.good(t, Options{Force: true})
		w.hosts.again = w.now.Add(time.Hour)
		w.hosts.set(t, "controller1")
		w.idle(t)
		reads := 0
		for range 64 {
			if w.now = w.now.Add(time.Minute); w.now.Equal(w.hosts.again) {
				same(t, name+": requests within the hour", reads, 1)
				w.hosts.again, reads = time.Time{}, 0
			}
			w.tick(t, run)
			reads += w.etcd.count("hosts")
		}
		same(t, name+": requests after it", reads, 1)
	}
}

// A clock that was set back must not keep values back for longer.
func TestKeptNodesAreReadAgainByAnEarlierClock(t *testing.T) {
	w := newWorld(t)
	w.hosts.see(t)
	w.hosts.again = w.now.Add(24 * time.Hour)
	w.promote(t, verA)
	w.good(t)
	w.hosts.again = time.Time{}
	w.idle(t)
	same(t, "requests", w.etcd.count("hosts"), 1)
	w.idle(t)
	same(t, "requests", w.etcd.count("hosts"), 0)
}
