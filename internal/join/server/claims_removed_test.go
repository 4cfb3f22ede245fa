package server

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/testbed/etcdtest"
)

// serveLater returns a serve, and a function that invalidates its caches.
func (w *world) serveLater() (*serve, func()) {
	var ahead atomic.Int64
	s := w.serve(func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	return s, func() { ahead.Add(int64(namesLast)) }
}

// A removed stolen machine still has its userdata, with the token of its role. It must not join again: not at once,
// not by another name, and not after another machine took its number.
func TestRemovedMachineCannotJoin(t *testing.T) {
	w := newWorld(t, role("compute", 4))
	s, later := w.serveLater()
	ctx, token := t.Context(), w.token(access.Token{Role: "compute"})
	stolen, honest := w.machine("stolen", s), w.machine("honest", s)
	remove := func(node string) {
		t.Helper()
		if err := access.JoinsIn(w.st).RemoveNode(ctx, dev, node, access.Removal{At: time.Now(), By: "ann", Why: "stolen"}, records.Left); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(token string) {
		t.Helper()
		for _, node := range []string{"", "compute1", "compute3"} {
			_, err := machine{stolen.Client, w.key(), stolen.is}.join(ctx, token, node)
			if node == "compute1" && err != nil {
				continue // for any reason
			}
			want(t, err, join.MachineRemoved)
		}
	}
	if a, err := stolen.join(ctx, token, ""); err != nil || a.Node != "compute1" {
		t.Fatalf("got %+v, %v", a, err)
	}
	remove("compute1")
	refused(token) // serve's cache of the names is older than a second
	if a, err := honest.join(ctx, token, "compute1"); err == nil {
		t.Fatalf("by name it is %s", a.Node) // its name needs an operator's new token
	}
	later()
	if a, err := honest.join(ctx, token, ""); err != nil || a.Node != "compute1" {
		t.Fatalf("got %+v, %v", a, err)
	}
	refused(token)

	// With an operator's new token it joins again. After another removal that token is invalid, too.
	second := w.token(access.Token{Role: "compute"})
	if a, err := stolen.join(ctx, second, ""); err != nil || a.Node != "compute2" {
		t.Fatalf("got %+v, %v", a, err)
	}
	remove("compute1")
	later()
	if _, err := w.machine("third", s).join(ctx, second, ""); err != nil {
		t.Fatal(err)
	}
	_, err := honest.join(ctx, token, "")
	want(t, err, join.MachineRemoved)
	remove("compute2")
	refused(token)
	refused(second)
	later()
	if _, err := w.machine("fourth", s).join(ctx, second, ""); err != nil {
		t.Fatal(err)
	}
	refused(token)
	refused(second)
	kept, err := w.etcd.ClientOf(etcdtest.Serve).Get(ctx, "/pulley/v1/machines/dev/stolen")
	if err != nil || len(kept.Kvs) != 1 || kept.Kvs[0].Lease == 0 {
		t.Errorf("its removal is kept as %v (%v), and for ever", kept, err)
	}
}

// Machines that leave by themselves come and go all the time: they leave nothing behind, and they may return.
func TestLeaveDeletesEverything(t *testing.T) {
	w := newWorld(t, role("compute", 2))
	s, later := w.serveLater()
	ctx, token := t.Context(), w.token(access.Token{Role: "compute"})
	first := w.machine("first", s)
	a, err := first.join(ctx, token, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.joined(first, a, s).Leave(ctx); err != nil {
		t.Fatal(err)
	}
	later()
	if _, err := w.machine("second", s).join(ctx, token, ""); err != nil {
		t.Fatal(err)
	}
	kept, err := w.etcd.ClientOf(etcdtest.Serve).Get(ctx, "/pulley/v1/machines/dev/first")
	if i, _, _ := access.IdentitiesIn(w.st).Get(ctx, dev, a.Node); err != nil || i.Machine != "second" || len(kept.Kvs) != 0 {
		t.Errorf("%s is %+v, and of the one that left is kept %v (%v)", a.Node, i, kept, err)
	}
	again := machine{first.Client, w.key(), first.is}
	if _, err := again.join(ctx, token, ""); err != nil {
		t.Errorf("it can't come back: %v", err)
	}
}

// A join that panics must not block its number until serve restarts.
func TestPanicReleasesNumber(t *testing.T) {
	w := newWorld(t, role("compute", 1))
	var panicked atomic.Bool
	var s *serve
	s = w.serve(func(c *Config) {
		c.Now = func() time.Time {
			if s != nil && s.Server != nil && s.claims.role(dev, "compute").handedOut() > 0 && !panicked.Swap(true) {
				panic("as a defect would")
			}
			return time.Now()
		}
	})
	ctx, token := t.Context(), w.token(access.Token{Role: "compute"})
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, _ = w.machine("m1", s).join(short, token, "")
	if !panicked.Load() {
		t.Fatal("nothing panicked: this tests nothing")
	}
	if a, err := w.machine("m2", s).join(ctx, token, ""); err != nil || a.Node != "compute1" {
		t.Errorf("got %s, %v; want compute1", a.Node, err)
	}
}
