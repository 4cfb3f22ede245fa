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

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
)

// Books is the part of a fleet that the contract covers: all but userdata.
type Books interface {
	machines.Reader
	machines.Inventory
	machines.Nodes
}

// Subject is an empty fleet with the lock of an apply, and functions for the changes that others make.
type Subject struct {
	Fleet Books
	Ref   environments.Ref
	Join  func(node, role string) // adds a node to the host list, as its own join does
	Say   func(agent.Status)      // writes a node's status
	Oust  func()                  // ends the lock, and another apply takes it
	Lets  func(token string) bool // reports whether a machine with the token of this id may join
}

// contract lists the rules that applying relies on, one sentence each.
var contract = []struct {
	name string
	test func(*testing.T, *subject)
}{
	{"a fleet that nobody stored is empty", empty},
	{"an environment is stored only by who knows the one before", spec},
	{"a record is written only by who knows the one before, and may be written again", records},
	{"a record and its token are written together, and the token goes with the record or with the next order", orders},
	{"a record is dropped only by who knows it, and may be dropped again", drops},
	{"acts are kept, oldest first, and found by their time", acts},
	{"a node that is on the list is asked, and the newest request counts", asks},
	{"a held node is told with its reason", holds},
	{"what a node says is seen, and judged", statuses},
	{"what a retired node said goes with its record, and nobody else's", forgets},
	{"what was said after a node was taken off the list stays, and what a listed one says", forgetsNobodyElse},
	{"the claim of the next machine takes the place of a retired one, and what that said goes", claims},
	{"the hold of a retirement ends, and no other", releases},
	{"a removed node is off the list, its hold is gone, its record stays", removes},
	{"the books remember of a removed node that its machine had joined, and who did not know it writes on", remembersJoining},
	{"who has lost the lock writes nothing any more", fence},
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
	return environments.Node{Role: role, Num: num, Stack: s.Ref.Stack}.String()
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
		s.t.Fatalf("the books have %+v", got)
	case want != nil && (!ok || !reflect.DeepEqual(got, *want)):
		s.t.Fatalf("the books have %+v, not %+v", got, *want)
	}
}

func empty(t *testing.T, s *subject) {
	w := s.world()
	if w.Old != nil || w.OldRevision != 0 || len(w.Records)+len(w.Hosts)+len(w.Statuses)+len(w.Views)+len(w.Machines) > 0 || w.Released {
		t.Fatalf("it is not empty: %+v", w)
	}
	all, err := s.Fleet.Acts(t.Context(), time.Time{})
	s.must(err)
	if len(all) > 0 {
		t.Fatalf("something was done to it: %v", all)
	}
}

func spec(t *testing.T, s *subject) {
	e := &environments.Environment{Name: s.Ref.Environment, Stack: s.Ref.Stack, Roles: []environments.Role{{Name: "web", Cardinality: 2}}}
	first, err := s.Fleet.PutSpec(t.Context(), e, 0)
	s.must(err)
	w := s.world()
	if w.OldRevision != first || w.Old == nil || !slices.Equal(w.Old.RoleNames(), []string{"web"}) || w.Old.Ref() != s.Ref {
		t.Fatalf("at revision %d it is %+v, and it was stored at %d", w.OldRevision, w.Old, first)
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
		t.Fatalf("there are %d", got)
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
	lets := func(want ...machines.Token) {
		t.Helper()
		for _, digit := range []string{"a", "b", "c"} {
			if k := token(digit); s.Lets(k.ID) != slices.ContainsFunc(want, func(w machines.Token) bool { return w.ID == k.ID }) {
				t.Errorf("token %s lets in: %t, want those of %+v", k.ID, s.Lets(k.ID), want)
			}
		}
	}
	a, b, c := token("a"), token("b"), token("c")
	first := s.record(s.node("web", 1))
	first.Phase, first.Token = machines.Making, a.ID
	s.must(s.Fleet.Order(ctx, first, nil, a))
	s.must(s.Fleet.Order(ctx, first, nil, a))
	lets(a)

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
	lets(a)

	s.must(s.Fleet.Order(ctx, next, &first, b))
	s.has(next.Node, &next)
	lets(b)
	made := next
	made.Phase, made.ID = machines.Made, "id-1"
	s.must(s.Fleet.Put(ctx, made, &next))
	lets(b)
	last := made
	last.Phase, last.ID, last.Token = machines.Making, "", c.ID
	s.must(s.Fleet.Order(ctx, last, &made, c))
	lets(c)
	s.must(s.Fleet.Drop(ctx, last))
	lets()

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

func forgets(t *testing.T, s *subject) {
	gone, stays := s.record(s.node("web", 1)), s.record(s.node("web", 10))
	gone.Phase = machines.Retiring
	for _, r := range []machines.Record{gone, stays} {
		s.must(s.Fleet.Put(t.Context(), r, nil))
		s.Say(agent.Status{Node: r.Node, Role: "web", Phase: agent.Idle, SeenAt: time.Now().UTC().Truncate(time.Second), Settings: agent.DefaultSettings()})
		s.must(s.Fleet.Drop(t.Context(), r))
	}
	w := s.world()
	if _, says := w.Statuses[gone.Node]; says {
		t.Errorf("%s has retired, and what it said is there still", gone.Node)
	}
	if _, says := w.Statuses[stays.Node]; !says {
		t.Errorf("%s did not retire, and what it said is lost", stays.Node)
	}
}

func (s *subject) said(node string) bool {
	s.t.Helper()
	_, says := s.world().Statuses[node]
	return says
}

func (s *subject) says(node string) {
	s.Say(agent.Status{Node: node, Role: "web", Phase: agent.Idle, SeenAt: time.Now().UTC().Truncate(time.Second), Settings: agent.DefaultSettings()})
}

// retires writes the record of a node that reported and is being retired.
func (s *subject) retires(node string) machines.Record {
	s.t.Helper()
	r := s.record(node)
	r.Phase = machines.Retiring
	s.Join(node, "web")
	s.says(node)
	s.must(s.Fleet.Put(s.t.Context(), r, nil))
	return r
}

func forgetsNobodyElse(t *testing.T, s *subject) {
	ctx := t.Context()
	listed := s.retires(s.node("web", 1))
	s.must(s.Fleet.Drop(ctx, listed))
	if !s.said(listed.Node) {
		t.Error("a node that is on the list said something, and that is lost")
	}
	lives := s.retires(s.node("web", 2))
	s.must(s.Fleet.Remove(ctx, lives.Node, "it is retired"))
	s.says(lives.Node)
	s.must(s.Fleet.Remove(ctx, lives.Node, "it is retired"))
	s.must(s.Fleet.Drop(ctx, lives))
	if !s.said(lives.Node) {
		t.Error("a machine that runs still said something, and that is lost")
	}
	gone := s.retires(s.node("web", 3))
	s.must(s.Fleet.Remove(ctx, gone.Node, "it is retired"))
	s.must(s.Fleet.Drop(ctx, gone))
	if s.said(gone.Node) {
		t.Error("what a retired node said before is there still")
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
	if s.said(was.Node) {
		t.Error("what the machine before said is taken for the next one's word")
	}
	back := s.retires(s.node("web", 2))
	made := back
	made.Phase = machines.Made
	s.must(s.Fleet.Put(ctx, made, &back))
	if !s.said(back.Node) {
		t.Error("its retiring was taken back, and what it said is lost")
	}
}

func fence(t *testing.T, s *subject) {
	ctx := t.Context()
	e := &environments.Environment{Name: s.Ref.Environment, Stack: s.Ref.Stack, Roles: []environments.Role{{Name: "web", Cardinality: 1}}}
	one, two := s.record(s.node("web", 1)), s.record(s.node("web", 2))
	s.must(s.Fleet.Put(ctx, one, nil))
	s.Join(one.Node, "web")
	before := s.world()
	s.Oust()
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
