package machinestest

import (
	"reflect"
	"testing"
	"time"

	"pulley/agent"
	"pulley/internal/machines"
)

// The contract of nodes: the host list, holds, requests and statuses.

func asks(t *testing.T, s *subject) {
	one, two := s.node("web", 1), s.node("web", 10)
	q := agent.Request{ID: "00000000000000aa", Do: agent.RequestRun, Why: "web2 came", By: "ann", At: time.Now().UTC().Truncate(time.Second)}
	s.is(s.Fleet.Ask(t.Context(), one, q), machines.ErrNotListed)
	s.Join(one, "web")
	s.Join(two, "web")
	before := s.world().Hosts
	s.must(s.Fleet.Ask(t.Context(), one, q))
	q.ID, q.Do = "00000000000000bb", agent.RequestRetire
	s.must(s.Fleet.Ask(t.Context(), one, q))
	s.must(s.Fleet.Ask(t.Context(), one, q))
	after := s.world().Hosts
	h := before[one]
	h.Request = &q
	if !reflect.DeepEqual(after[one], h) || !reflect.DeepEqual(after[two], before[two]) {
		t.Fatalf("asked for %+v, the list has %+v and %+v", q, after[one], after[two])
	}
}

func holds(t *testing.T, s *subject) {
	one, two := s.node("web", 1), s.node("web", 10)
	s.Join(one, "web")
	s.Join(two, "web")
	h := agent.Hold{Scope: "nodes/" + one, Mode: agent.Stop, Kind: agent.RetirementHold, Who: "ann", Why: "the file calls for 1", Since: time.Now().UTC().Truncate(time.Second)}
	s.must(s.Fleet.Hold(t.Context(), one, h))
	s.must(s.Fleet.Hold(t.Context(), one, h))
	held := s.world().Held
	if _, other := held[two]; held[one].Why != h.Why || other {
		t.Fatalf("held: %+v", held)
	}
}

func statuses(t *testing.T, s *subject) {
	one := s.node("web", 1)
	s.Join(one, "web")
	if v := s.world().Views[one]; v.State != agent.Pending {
		t.Fatalf("who joined and said nothing is %+v", v)
	}
	said := agent.Status{Node: one, Role: "web", Phase: agent.Idle, SeenAt: time.Now().UTC().Truncate(time.Second), Settings: agent.DefaultSettings(), Answer: &agent.Answer{ID: "00000000000000aa", Problem: agent.Problem{Code: agent.HookFailed, Text: "no"}}}
	s.Say(said)
	w := s.world()
	if got := w.Statuses[one]; got.Answer == nil || *got.Answer != *said.Answer || !got.SeenAt.Equal(said.SeenAt) {
		t.Fatalf("it said %+v, not %+v", got, said)
	}
	if v := w.Views[one]; v.State == "" || v.Sentence() == "" {
		t.Fatalf("it is not judged: %+v", v)
	}
}

func releases(t *testing.T, s *subject) {
	ctx := t.Context()
	one, two := s.node("web", 1), s.node("web", 10)
	s.Join(one, "web")
	s.Join(two, "web")
	s.must(s.Fleet.Release(ctx, one))
	s.must(s.Fleet.Hold(ctx, one, agent.Hold{Scope: "nodes/" + one, Mode: agent.Stop, Kind: agent.RetirementHold, Who: "ann", Why: "the file calls for 1"}))
	s.must(s.Fleet.Hold(ctx, two, agent.Hold{Scope: "nodes/" + two, Mode: agent.Stop, Kind: agent.OperatorHold, Who: "ann", Why: "ann looks at it"}))
	for range 2 {
		s.must(s.Fleet.Release(ctx, one))
		s.must(s.Fleet.Release(ctx, two))
	}
	held := s.world().Held
	if _, is := held[one]; is || held[two].Why == "" {
		t.Errorf("held: %+v", held)
	}
}

func removes(t *testing.T, s *subject) {
	one, two := s.node("web", 1), s.node("web", 10)
	s.must(s.Fleet.Remove(t.Context(), one, "never there"))
	s.Join(one, "web")
	s.Join(two, "web")
	r := s.record(one)
	s.must(s.Fleet.Put(t.Context(), r, nil))
	s.must(s.Fleet.Hold(t.Context(), one, agent.Hold{Scope: "nodes/" + one, Mode: agent.Stop}))
	s.must(s.Fleet.Remove(t.Context(), one, "it is retired"))
	s.must(s.Fleet.Remove(t.Context(), one, "it is retired"))
	w := s.world()
	_, listed := w.Hosts[one]
	_, held := w.Held[one]
	if _, other := w.Hosts[two]; listed || !other || held {
		t.Fatalf("listed: %v, held: %v", w.Hosts, w.Held)
	}
	s.has(one, &r)
}

func remembersJoining(t *testing.T, s *subject) {
	joined, never := s.record(s.node("web", 1)), s.record(s.node("web", 2))
	for _, r := range []*machines.Record{&joined, &never} {
		r.Phase, r.ID, r.Tries = machines.Made, "id-"+r.Node, 1
		s.must(s.Fleet.Put(t.Context(), *r, nil))
	}
	s.Join(joined.Node, "web")
	for _, node := range []string{joined.Node, joined.Node, never.Node} {
		s.must(s.Fleet.Remove(t.Context(), node, "it is looked at"))
	}
	has := joined
	has.Joined = true
	s.has(joined.Node, &has)
	s.has(never.Node, &never)

	same := joined
	same.Problem = "none"
	s.must(s.Fleet.Put(t.Context(), same, &joined))
	has.Problem = same.Problem
	s.has(joined.Node, &has)
	next := joined
	next.Phase, next.ID = machines.Making, ""
	s.must(s.Fleet.Put(t.Context(), next, &same))
	s.has(joined.Node, &next)
	s.must(s.Fleet.Drop(t.Context(), next))
}
