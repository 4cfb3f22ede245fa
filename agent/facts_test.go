package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/model"
)

// Each node of a fleet would write its facts every few minutes, or operators would see facts of last month.
func TestFactsArePublishedWhenTheyChange(t *testing.T) {
	w := newWorld(t)
	facts := []byte("one")
	w.agent.Facts = func() ([]byte, error) { return facts, nil }
	w.promote(t, version("1.0.0"))
	w.good(t)
	if got := string(w.etcd.load().Facts); got != "one" || w.etcd.count("facts") != 1 {
		t.Fatalf("facts %q after %q", got, w.etcd.calls)
	}
	rests := func(why string) {
		t.Helper()
		for range 3 {
			w.now = w.now.Add(w.agent.Settings.Heartbeat)
			w.tick(t)
			if w.etcd.count("facts") != 0 {
				t.Fatalf("%s: the same facts are published again: %q", why, w.etcd.calls)
			}
		}
	}
	rests("nothing changed")

	// Etcd refuses the write: the tick is good, and the next report repeats it.
	facts = []byte("two")
	w.etcd.onFacts = func() error { return errors.New("permission denied") }
	for range 2 {
		w.now = w.now.Add(w.agent.Settings.Heartbeat)
		if r := w.tick(t); r.Err != nil || w.etcd.count("report") != 1 || w.etcd.count("facts") != 1 {
			t.Fatalf("%v after %q", r.Err, w.etcd.calls)
		}
	}
	w.now = w.now.Add(time.Second)
	if w.idle(t); w.etcd.count("facts") != 0 {
		t.Errorf("a tick without a report makes %q", w.etcd.calls)
	}
	w.etcd.onFacts = nil
	w.now = w.now.Add(w.agent.Settings.Heartbeat)
	if w.tick(t); string(w.etcd.load().Facts) != "two" {
		t.Errorf("facts %q", w.etcd.load().Facts)
	}
	rests("they arrived")

	// Etcd is away, and comes back.
	facts = []byte("three")
	w.etcd.disconnect()
	w.now = w.now.Add(w.agent.Settings.Heartbeat)
	w.tick(t)
	w.etcd.reconnect()
	w.now = w.now.Add(time.Second)
	if w.tick(t); string(w.etcd.load().Facts) != "three" {
		t.Errorf("facts %q after %q", w.etcd.load().Facts, w.etcd.calls)
	}

	// A node that registers again has lost its facts in etcd.
	w.etcd.operator(t, func(d *model.Desired) { d.Host.At = w.now })
	w.now = w.now.Add(w.agent.Settings.Heartbeat)
	if w.tick(t); w.etcd.count("facts") != 1 {
		t.Errorf("after a new registration: %q", w.etcd.calls)
	}
	rests("it registered again")

	// Etcd was restored from a backup: the facts in it are those of the time before.
	w.etcd.operator(t, func(d *model.Desired) { d.Revision -= 2 })
	if err := w.etcd.save(func() etcdContent { c := w.etcd.load(); c.Facts = []byte("before"); return c }()); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Second)
	if w.idle(t); string(w.etcd.load().Facts) != "three" || w.etcd.count("report") != 1 {
		t.Errorf("after a restore: facts %q after %q", w.etcd.load().Facts, w.etcd.calls)
	}
	rests("etcd was restored")
	w.agent.Facts = func() ([]byte, error) { return nil, errors.New("the file is gone") }
	w.now = w.now.Add(w.agent.Settings.Heartbeat)
	if r := w.tick(t); r.Err != nil {
		t.Errorf("without facts the tick fails: %v", r.Err)
	}
}

// A changed export must reach those who see the node, and each tick of a fleet must not write one.
func TestExportsArePublishedWhenTheyChange(t *testing.T) {
	w := newWorld(t)
	w.agent.Facts = func() ([]byte, error) { return []byte("one"), nil }
	w.promote(t, version("1.0.0"))
	w.good(t)
	shows := func(why, want string, requests int) {
		t.Helper()
		for i := range 3 {
			w.now = w.now.Add(w.agent.Settings.Heartbeat)
			w.tick(t)
			if got := string(w.etcd.load().Export.Facts["shown"]); got != want || w.etcd.count("export") != requests*max(0, 1-i) {
				t.Fatalf("%s: etcd has %q after %q", why, got, w.etcd.calls)
			}
		}
	}
	shows("the release exports nothing", "", 0)
	shown := filepath.Join(w.hosts.dir, "shown")
	for i, value := range []string{`"a"`, `"b"`} {
		if err := os.WriteFile(shown, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		shows(fmt.Sprint("value ", i), value, 1)
	}
	w.etcd.operator(t, func(d *model.Desired) { d.Host.At = w.now })
	shows("it registered again", `"b"`, 1)
	if err := os.Remove(shown); err != nil {
		t.Fatal(err)
	}
	shows("the release exports nothing any more", "", 1)
}

// A node that is held for a month must not show the facts of last month, and an idle tick must start nothing.
func TestFactsAreInquiredWhereNothingRuns(t *testing.T) {
	w := newWorld(t)
	facts, due := []byte("one"), true
	asked := 0
	w.agent.Facts = func() ([]byte, error) { return facts, nil }
	w.agent.Inquire = func(context.Context, model.Identity) (bool, error) {
		asked++
		facts = []byte("inquired")
		return due, nil
	}
	w.promote(t, version("1.0.0"))
	if w.good(t); asked != 0 {
		t.Fatal("a run gathers facts, and the agent inquires as well")
	}
	w.now = w.now.Add(time.Second)
	w.idle(t)
	if asked != 1 || string(w.etcd.load().Facts) != "inquired" {
		t.Errorf("%d inquiries, facts %q", asked, w.etcd.load().Facts)
	}
	due = false
	w.now = w.now.Add(time.Second)
	if w.idle(t); len(w.etcd.calls) != 1 {
		t.Errorf("an idle tick makes %q", w.etcd.calls)
	}
	asked = 0
	for what, spoil := range map[string]func(){
		"disabled": func() { _ = w.disk.Disable("no") }, "etcd is away": w.etcd.disconnect,
	} {
		spoil()
		w.now = w.now.Add(time.Second)
		if w.tick(t); asked != 0 {
			t.Errorf("%s: the agent inquires", what)
		}
		_ = w.disk.Enable()
		w.etcd.reconnect()
	}
}
