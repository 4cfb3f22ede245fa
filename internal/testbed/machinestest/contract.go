// Package machinestest owns the contract of a fleet: the rules of its records, locks and nodes that applies rely on. The
// fleet in etcd and the simulation in the tests of package machines must both keep it. It must never make anything that
// outlives a test.
package machinestest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// Fleet is the part of a fleet that the contract covers: all but userdata.
type Fleet interface {
	machines.Reader
	machines.Inventory
	machines.Nodes
}

// Subject is an empty fleet with the lock of an apply, and functions for the changes of others.
type Subject struct {
	Fleet    Fleet
	Ref      model.Ref
	Join     func(node, role string) // adds a node to the host list, as its own join does
	Report   func(model.Status)      // writes a node's status
	LoseLock func()                  // ends the lock, and another apply takes it
	Admits   func(token string) bool // reports whether a machine with the token of this id may join
}

// contract lists the rules that applying relies on.
var contract = []struct {
	name string
	test func(*testing.T, *subject)
}{
	{"a new fleet is empty", empty},
	{"an environment is stored only over its known revision", spec},
	{"a record is written only over its known value, and may be written again", records},
	{"a record and its token are written together; the next order or the drop revokes the token", orders},
	{"a record is dropped only with its known value, and may be dropped again", drops},
	{"acts are listed by time, oldest first", acts},
	{"a listed node has its newest request", asks},
	{"a held node has its hold with the reason", holds},
	{"a status is listed and judged", statuses},
	{"the status of a retired node is deleted with its record, and no other", forgets},
	{"the claim of the next machine replaces a retired record and deletes its status", claims},
	{"only the hold of a retirement is released", releases},
	{"a removed node is neither listed nor held, and its record stays", removes},
	{"the record of a removed node keeps that its machine had joined", keepsJoined},
	{"without the lock nothing is written", fence},
}

// FleetContract tests a fleet. open returns a new one for each test.
func FleetContract(t *testing.T, open func(*testing.T) Subject) {
	for _, c := range contract {
		t.Run(c.name, func(t *testing.T) { c.test(t, &subject{Subject: open(t), t: t}) })
	}
}

// subject is a Subject with helpers for the tests.
type subject struct {
	Subject
	t *testing.T
}

func (s *subject) world() machines.World {
	s.t.Helper()
	w, err := s.Fleet.World(s.t.Context())
	s.must(err)
	return w
}

func (s *subject) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *subject) is(err, want error) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Fatalf("the error is %v, not %v", err, want)
	}
}

// node returns the name of a node of the fleet, with its stack.
func (s *subject) node(role string, num int) string {
	return model.Node{Role: role, Num: num, Stack: s.Ref.Stack}.String()
}

func (s *subject) record(node string) machines.Record {
	return machines.Record{Node: node, Name: "at-the-provider", Phase: machines.Making, Driver: "model", By: "ann", At: time.Now().UTC().Truncate(time.Second)}
}

// has fails unless the stored record of a node is exactly want; nil means none.
func (s *subject) has(node string, want *machines.Record) {
	s.t.Helper()
	got, ok := s.world().Records[node]
	switch {
	case want == nil && ok:
		s.t.Fatalf("the record is %+v", got)
	case want != nil && (!ok || !reflect.DeepEqual(got, *want)):
		s.t.Fatalf("the record is %+v, not %+v", got, *want)
	}
}

func empty(t *testing.T, s *subject) {
	w := s.world()
	if w.Old != nil || w.OldRevision != 0 || len(w.Records)+len(w.Hosts)+len(w.Statuses)+len(w.Views)+len(w.Machines) > 0 || w.Released {
		t.Fatalf("not empty: %+v", w)
	}
	all, err := s.Fleet.Acts(t.Context(), time.Time{})
	s.must(err)
	if len(all) > 0 {
		t.Fatalf("acts: %v", all)
	}
}

func spec(t *testing.T, s *subject) {
	e := &environments.Environment{Name: s.Ref.Environment, Stack: s.Ref.Stack, Roles: []environments.Role{{Name: "web", Cardinality: 2}}}
	first, err := s.Fleet.PutSpec(t.Context(), e, 0)
	s.must(err)
	w := s.world()
	if w.OldRevision != first || w.Old == nil || !slices.Equal(w.Old.RoleNames(), []string{"web"}) || w.Old.Ref() != s.Ref {
		t.Fatalf("at revision %d: %+v, stored at %d", w.OldRevision, w.Old, first)
	}
	_, err = s.Fleet.PutSpec(t.Context(), e, 0)
	s.is(err, machines.ErrChanged)
	e.Roles[0].Cardinality = 3
	second, err := s.Fleet.PutSpec(t.Context(), e, first)
	s.must(err)
	if _, err = s.Fleet.PutSpec(t.Context(), e, first); !errors.Is(err, machines.ErrChanged) || second <= first {
		t.Fatalf("stored at %d, then at %d, and over the first: %v", first, second, err)
	}
	if got := s.world().Old.Roles[0].Cardinality; got != 3 {
		t.Fatalf("cardinality %d", got)
	}
}

func records(t *testing.T, s *subject) {
	one, two := s.record(s.node("web", 1)), s.record(s.node("web", 10))
	s.must(s.Fleet.Put(t.Context(), one, nil))
	s.must(s.Fleet.Put(t.Context(), one, nil)) // its answer may have been lost
	s.must(s.Fleet.Put(t.Context(), two, nil))
	s.has(one.Node, &one)
	s.has(two.Node, &two)
	other := one
	other.ID = "other"
	s.is(s.Fleet.Put(t.Context(), other, nil), machines.ErrChanged)
	s.has(one.Node, &one)
	made := one
	made.Phase, made.ID, made.Tries, made.Drained = machines.Made, "77f0", 2, true
	s.must(s.Fleet.Put(t.Context(), made, &one))
	s.must(s.Fleet.Put(t.Context(), made, &one))
	s.has(one.Node, &made)
	s.is(s.Fleet.Put(t.Context(), other, &one), machines.ErrChanged)
	s.has(one.Node, &made)
	s.has(two.Node, &two)
}

func orders(t *testing.T, s *subject) {
	ctx := t.Context()
	token := func(digit string) machines.Token {
		now := time.Now().UTC().Truncate(time.Second)
		return machines.Token{ID: strings.Repeat(digit, 8), Hash: strings.Repeat(digit, 64), Created: now, Expires: now.Add(time.Hour)}
	}
	valid := func(want ...machines.Token) {
		t.Helper()
		for _, digit := range []string{"a", "b", "c"} {
			if k := token(digit); s.Admits(k.ID) != slices.ContainsFunc(want, func(w machines.Token) bool { return w.ID == k.ID }) {
				t.Errorf("token %s is valid: %t, want those of %+v", k.ID, s.Admits(k.ID), want)
			}
		}
	}
	a, b, c := token("a"), token("b"), token("c")
	first := s.record(s.node("web", 1))
	first.Phase, first.Token = machines.Making, a.ID
	s.must(s.Fleet.Order(ctx, first, nil, a))
	s.must(s.Fleet.Order(ctx, first, nil, a))
	valid(a)

	next := first
	next.Tries, next.Token = first.Tries+1, b.ID
	s.is(s.Fleet.Order(ctx, next, nil, b), machines.ErrChanged)
	other := s.record(s.node("web", 2))
	other.Phase, other.Token = machines.Making, a.ID
	same := a // its id alone
	same.Hash = c.Hash
	s.is(s.Fleet.Order(ctx, other, nil, same), machines.ErrTokenTaken)
	s.has(first.Node, &first)
	s.has(other.Node, nil)
	valid(a)

	s.must(s.Fleet.Order(ctx, next, &first, b))
	s.has(next.Node, &next)
	valid(b)
	made := next
	made.Phase, made.ID = machines.Made, "id-1"
	s.must(s.Fleet.Put(ctx, made, &next))
	valid(b)
	last := made
	last.Phase, last.ID, last.Token = machines.Making, "", c.ID
	s.must(s.Fleet.Order(ctx, last, &made, c))
	valid(c)
	s.must(s.Fleet.Drop(ctx, last))
	valid()

	// A write whose answer is late is repeated, as if at the same time.
	for n := range 30 {
		r := s.record(s.node("db", n+1))
		k := machines.Token{ID: fmt.Sprintf("%08x", n), Hash: a.Hash, Created: a.Created, Expires: a.Expires}
		r.Phase, r.Token = machines.Making, k.ID
		both := make(chan error, 2)
		for range 2 {
			go func() { both <- s.Fleet.Order(ctx, r, nil, k) }()
		}
		s.must(errors.Join(<-both, <-both))
		s.has(r.Node, &r)
	}
}

func drops(t *testing.T, s *subject) {
	one, two := s.record(s.node("web", 1)), s.record(s.node("web", 10))
	s.must(s.Fleet.Put(t.Context(), one, nil))
	s.must(s.Fleet.Put(t.Context(), two, nil))
	other := one
	other.ID = "other"
	s.is(s.Fleet.Drop(t.Context(), other), machines.ErrChanged)
	s.has(one.Node, &one)
	s.must(s.Fleet.Drop(t.Context(), one))
	s.must(s.Fleet.Drop(t.Context(), one))
	s.has(one.Node, nil)
	s.has(two.Node, &two)
}

func acts(t *testing.T, s *subject) {
	now := time.Now().UTC().Truncate(time.Second)
	var want []machines.Act
	for i, did := range []machines.Did{machines.Created, machines.Replaced, machines.Deleted} {
		a := machines.Act{At: now.Add(time.Duration(i-2) * time.Hour), Node: s.node("web", 1), Did: did, Reasons: []machines.Reason{{Code: machines.Surplus, Role: "web", Count: 1}}, By: "ann", Watch: i == 1}
		s.must(s.Fleet.Note(t.Context(), a))
		want = append(want, a)
	}
	for since, count := range map[time.Time]int{{}: 3, now.Add(-90 * time.Minute): 2, now: 1, now.Add(time.Second): 0} {
		got, err := s.Fleet.Acts(t.Context(), since)
		s.must(err)
		if len(got) != count || count > 0 && !reflect.DeepEqual(got, want[3-count:]) {
			t.Errorf("since %s: %+v, not the last %d of %+v", since, got, count, want)
		}
	}
}

func (s *subject) reported(node string) bool {
	s.t.Helper()
	_, reported := s.world().Statuses[node]
	return reported
}

func (s *subject) report(node string) {
	s.Report(model.Status{Node: node, Role: "web", Phase: model.Idle, SeenAt: time.Now().UTC().Truncate(time.Second), Settings: model.DefaultSettings()})
}

// retires writes the record of a node that reported and is being retired.
func (s *subject) retires(node string) machines.Record {
	s.t.Helper()
	r := s.record(node)
	r.Phase = machines.Retiring
	s.Join(node, "web")
	s.report(node)
	s.must(s.Fleet.Put(s.t.Context(), r, nil))
	return r
}

func forgets(t *testing.T, s *subject) {
	ctx := t.Context()
	made := s.record(s.node("web", 1))
	s.must(s.Fleet.Put(ctx, made, nil))
	s.report(made.Node)
	s.must(s.Fleet.Drop(ctx, made))
	if !s.reported(made.Node) {
		t.Error("the status of a node that did not retire is deleted")
	}
	listed := s.retires(s.node("web", 2))
	s.must(s.Fleet.Drop(ctx, listed))
	if !s.reported(listed.Node) {
		t.Error("the status of a listed node is deleted")
	}
	lives := s.retires(s.node("web", 3))
	s.must(s.Fleet.Remove(ctx, lives.Node, "it is retired"))
	s.report(lives.Node)
	s.must(s.Fleet.Remove(ctx, lives.Node, "it is retired"))
	s.must(s.Fleet.Drop(ctx, lives))
	if !s.reported(lives.Node) {
		t.Error("the status of a machine that still reports is deleted")
	}
	gone := s.retires(s.node("web", 4))
	s.must(s.Fleet.Remove(ctx, gone.Node, "it is retired"))
	s.must(s.Fleet.Drop(ctx, gone))
	if s.reported(gone.Node) {
		t.Error("the status of a retired node remains")
	}
}

func claims(t *testing.T, s *subject) {
	ctx := t.Context()
	was := s.retires(s.node("web", 1))
	s.must(s.Fleet.Remove(ctx, was.Node, "its machine is broken"))
	next := s.record(was.Node)
	next.Token = "0011"
	s.must(s.Fleet.Put(ctx, next, &was))
	s.must(s.Fleet.Put(ctx, next, &was))
	s.has(was.Node, &next)
	if s.reported(was.Node) {
		t.Error("the status of the previous machine remains")
	}
	back := s.retires(s.node("web", 2))
	made := back
	made.Phase = machines.Made
	s.must(s.Fleet.Put(ctx, made, &back))
	if !s.reported(back.Node) {
		t.Error("its retirement was cancelled, and its status is deleted")
	}
}

func fence(t *testing.T, s *subject) {
	ctx := t.Context()
	e := &environments.Environment{Name: s.Ref.Environment, Stack: s.Ref.Stack, Roles: []environments.Role{{Name: "web", Cardinality: 1}}}
	one, two := s.record(s.node("web", 1)), s.record(s.node("web", 2))
	s.must(s.Fleet.Put(ctx, one, nil))
	s.Join(one.Node, "web")
	before := s.world()
	s.LoseLock()
	next := one
	next.Phase = machines.Made
	for what, write := range map[string]func(context.Context) error{
		"an environment": func(ctx context.Context) error { _, err := s.Fleet.PutSpec(ctx, e, 0); return err },
		"a new record":   func(ctx context.Context) error { return s.Fleet.Put(ctx, two, nil) },
		"a record":       func(ctx context.Context) error { return s.Fleet.Put(ctx, next, &one) },
		"no record":      func(ctx context.Context) error { return s.Fleet.Drop(ctx, one) },
		"an act":         func(ctx context.Context) error { return s.Fleet.Note(ctx, machines.Act{Node: one.Node}) },
	} {
		if err := write(ctx); !errors.Is(err, machines.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	after := s.world()
	if !reflect.DeepEqual(before.Records, after.Records) || after.Old != nil {
		t.Errorf("before: %+v\nafter: %+v", before, after)
	}
}

// The contract of nodes: the host list, holds, requests and statuses.

func asks(t *testing.T, s *subject) {
	one, two := s.node("web", 1), s.node("web", 10)
	q := model.Request{ID: "00000000000000aa", Do: model.RequestRun, Why: "web2 came", By: "ann", At: time.Now().UTC().Truncate(time.Second)}
	s.is(s.Fleet.Ask(t.Context(), one, q), fleet.ErrNotListed)
	s.Join(one, "web")
	s.Join(two, "web")
	before := s.world().Hosts
	s.must(s.Fleet.Ask(t.Context(), one, q))
	q.ID, q.Do = "00000000000000bb", model.RequestRetire
	s.must(s.Fleet.Ask(t.Context(), one, q))
	s.must(s.Fleet.Ask(t.Context(), one, q))
	after := s.world().Hosts
	h := before[one]
	h.Request = &q
	if !reflect.DeepEqual(after[one], h) || !reflect.DeepEqual(after[two], before[two]) {
		t.Fatalf("requested %+v; hosts: %+v and %+v", q, after[one], after[two])
	}
}

func holds(t *testing.T, s *subject) {
	one, two := s.node("web", 1), s.node("web", 10)
	s.Join(one, "web")
	s.Join(two, "web")
	h := model.Hold{Scope: "nodes/" + one, Mode: model.Stop, Kind: model.RetirementHold, Who: "ann", Why: "the file calls for 1", Since: time.Now().UTC().Truncate(time.Second)}
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
	if v := s.world().Views[one]; v.State != model.Pending {
		t.Fatalf("a node without a report is %+v", v)
	}
	status := model.Status{Node: one, Role: "web", Phase: model.Idle, SeenAt: time.Now().UTC().Truncate(time.Second), Settings: model.DefaultSettings(), Answer: &model.Answer{ID: "00000000000000aa", Problem: model.Problem{Code: model.HookFailed, Text: "no"}}}
	s.Report(status)
	w := s.world()
	if got := w.Statuses[one]; got.Answer == nil || *got.Answer != *status.Answer || !got.SeenAt.Equal(status.SeenAt) {
		t.Fatalf("status %+v, want %+v", got, status)
	}
	if v := w.Views[one]; v.State == "" || v.Sentence() == "" {
		t.Fatalf("not judged: %+v", v)
	}
}

func releases(t *testing.T, s *subject) {
	ctx := t.Context()
	one, two := s.node("web", 1), s.node("web", 10)
	s.Join(one, "web")
	s.Join(two, "web")
	s.must(s.Fleet.Release(ctx, one))
	s.must(s.Fleet.Hold(ctx, one, model.Hold{Scope: "nodes/" + one, Mode: model.Stop, Kind: model.RetirementHold, Who: "ann", Why: "the file calls for 1"}))
	s.must(s.Fleet.Hold(ctx, two, model.Hold{Scope: "nodes/" + two, Mode: model.Stop, Kind: model.OperatorHold, Who: "ann", Why: "ann looks at it"}))
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
	s.must(s.Fleet.Hold(t.Context(), one, model.Hold{Scope: "nodes/" + one, Mode: model.Stop}))
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

func keepsJoined(t *testing.T, s *subject) {
	joined, never := s.record(s.node("web", 1)), s.record(s.node("web", 2))
	for _, r := range []*machines.Record{&joined, &never} {
		r.Phase, r.ID, r.Tries = machines.Made, "id-"+r.Node, 1
		s.must(s.Fleet.Put(t.Context(), *r, nil))
	}
	s.Join(joined.Node, "web")
	for _, node := range []string{joined.Node, joined.Node, never.Node} {
		s.must(s.Fleet.Remove(t.Context(), node, "maintenance"))
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
