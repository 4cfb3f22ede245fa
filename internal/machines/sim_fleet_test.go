package machines_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/userdata"
)

var _ machines.Fleet = (*session)(nil)

// World implements machines.Fleet.
func (x *session) World(ctx context.Context) (w machines.World, err error) {
	s := x.site
	err = x.call(ctx, "world", false, func(fault) error {
		w = machines.World{
			Old: s.spec, OldRevision: s.revision, Records: maps.Clone(s.records), Hosts: maps.Clone(s.hosts), Statuses: maps.Clone(s.statuses),
			Views: map[string]model.View{}, Boots: map[string]machines.Reason{}, Held: map[string]model.Hold{}, Released: !s.target.IsZero(), Now: s.Now(),
		}
		for node, h := range s.holds {
			w.Held[node] = h
		}
		for node := range s.hosts {
			w.Views[node] = s.view(node)
			if _, reported := s.statuses[node]; !reported {
				boot := machines.Reason{Code: machines.WaitsForFirstBoot, Was: "server", Problem: "no release\npromote one"}
				w.Boots[node] = boot
			}
		}
		for node := range s.statuses {
			w.Views[node] = s.view(node)
		}
		return nil
	})
	return w, err
}

// Places implements machines.Fleet, for attributes.
func (x *session) Places(_ context.Context, e *environments.Environment) (map[string][]string, error) {
	x.site.mu.Lock()
	defer x.site.mu.Unlock()
	limits, places := rollout.PolicyOf(e).Limits(), map[string][]string{}
	for node, h := range x.site.hosts {
		from := e
		if _, wanted := e.RoleOf(node); !wanted && x.site.spec != nil {
			from = x.site.spec
		}
		for _, name := range limits {
			places[node] = append(places[node], name+"="+from.AttributeOf(h.Role, node, name))
		}
	}
	return places, nil
}

// Unchanged implements machines.Fleet.
func (x *session) Unchanged(ctx context.Context, w machines.World) (same bool, err error) {
	s := x.site
	err = x.call(ctx, "unchanged", false, func(fault) error {
		same = s.revision == w.OldRevision && reflect.DeepEqual(s.records, w.Records) && reflect.DeepEqual(s.hosts, w.Hosts) && reflect.DeepEqual(s.holds, w.Held)
		return nil
	})
	return same, err
}

func (s *modelled) view(node string) model.View {
	d := model.Desired{Default: s.target}
	if h, ok := s.hosts[node]; ok {
		d.Host = &h
	}
	if h, ok := s.holds[node]; ok {
		d.Holds = []model.Hold{h}
	}
	if st, ok := s.statuses[node]; ok {
		return model.Look(&st, d, s.Now())
	}
	return model.Look(nil, d, s.Now())
}

// Acts implements machines.Fleet.
func (x *session) Acts(ctx context.Context, since time.Time) (all []machines.Act, err error) {
	err = x.call(ctx, "acts", false, func(fault) error {
		for _, a := range x.site.acts {
			if !a.At.Before(since) {
				all = append(all, a)
			}
		}
		slices.SortStableFunc(all, func(a, b machines.Act) int { return a.At.Compare(b.At) })
		return nil
	})
	return all, err
}

// PutSpec implements machines.Fleet.
func (x *session) PutSpec(ctx context.Context, e *environments.Environment, revision int64) (at int64, err error) {
	s := x.site
	err = x.call(ctx, "put spec", true, func(fault) error {
		if s.revision != revision {
			return machines.ErrChanged
		}
		text, err := environments.Encode(e)
		if err != nil {
			return err
		}
		if s.spec, err = environments.Decode(text); err != nil {
			return err
		}
		for _, r := range s.spec.Roles {
			for _, node := range r.Members {
				s.members[node] = true
			}
		}
		s.revision++
		at = s.revision
		return nil
	})
	return at, err
}

// Put implements machines.Fleet.
func (x *session) Put(ctx context.Context, r machines.Record, was *machines.Record) error {
	return x.call(ctx, "put", true, func(fault) error { return x.put(r, was, machines.Token{}) })
}

// Order implements machines.Fleet.
func (x *session) Order(ctx context.Context, r machines.Record, was *machines.Record, t machines.Token) error {
	return x.call(ctx, "order", true, func(fault) error { return x.put(r, was, t) })
}

func (x *session) put(r machines.Record, was *machines.Record, t machines.Token) error {
	s := x.site
	have, ok := s.records[r.Node]
	switch {
	case ok && reflect.DeepEqual(have, r):
		return nil
	case ok != (was != nil), ok && !same(have, *was):
		return fmt.Errorf("cannot put %+v over %+v, the record is %+v: %w", r, was, have, machines.ErrChanged)
	}
	if _, taken := s.tokens[t.ID]; t.ID != "" && taken {
		return machines.ErrTokenTaken
	}
	if t.ID != "" {
		s.tokens[t.ID] = token{node: r.Node}
	}
	if have.Token != r.Token {
		s.revoke(have.Token)
	}
	x.begins(have, r)
	s.note("put %+v", r)
	switch {
	case have.Phase == machines.Retiring && r.Phase == machines.Making:
		s.forgets(r.Node)
		delete(s.off, r.Node)
	case r.Phase != machines.Retiring:
		delete(s.off, r.Node)
	}
	// by a correct clock
	if _, known := s.booked[r.ID]; r.Phase == machines.Made && !known && s.Now().Sub(r.At) < time.Minute {
		s.booked[r.ID] = s.Now()
	}
	if have.Phase == machines.Made && r.Phase == machines.Made && have.ID == r.ID {
		r.Joined = r.Joined || have.Joined
	}
	s.records[r.Node] = r
	return nil
}

// revoke revokes a token, if id is one.
func (s *modelled) revoke(id string) {
	if t, ok := s.tokens[id]; ok {
		s.tokens[id] = token{node: t.node, dead: true}
	}
}

// same compares records without Joined, which others write, too.
func same(have, was machines.Record) bool {
	have.Joined = was.Joined
	return reflect.DeepEqual(have, was)
}

// Drop implements machines.Fleet.
func (x *session) Drop(ctx context.Context, was machines.Record) error {
	s := x.site
	return x.call(ctx, "drop", true, func(fault) error {
		have, ok := s.records[was.Node]
		if ok && !same(have, was) {
			return machines.ErrChanged
		}
		s.revoke(have.Token)
		delete(s.records, was.Node)
		if ok && was.Phase == machines.Retiring {
			s.forgets(was.Node)
		}
		delete(s.off, was.Node)
		return nil
	})
}

// forgets deletes the status of a retired node, unless the node is still in the host list.
func (s *modelled) forgets(node string) {
	_, listed := s.hosts[node]
	if off := s.off[node]; listed || off != 0 && s.said[node] > off {
		return
	}
	delete(s.statuses, node)
}

// Note implements machines.Fleet.
func (x *session) Note(ctx context.Context, a machines.Act) error {
	s := x.site
	return x.call(ctx, "note", true, func(fault) error {
		s.acts = append(s.acts, a)
		return nil
	})
}

// Userdata implements machines.Fleet: the text is a token's id only.
func (x *session) Userdata(o machines.Order, _ environments.Role, _ userdata.Form) ([]byte, machines.Token, error) {
	s := x.site
	s.mu.Lock()
	defer s.mu.Unlock()
	s.payloads++
	id := fmt.Sprintf("token-%d", s.payloads)
	now := s.Now().UTC().Truncate(time.Second)
	return []byte(id), machines.Token{ID: id, Hash: id, Created: now, Expires: now.Add(time.Hour)}, nil
}

// Hold implements machines.Fleet.
func (x *session) Hold(ctx context.Context, node string, h model.Hold) error {
	return x.call(ctx, "hold", false, func(fault) error {
		x.site.holds[node] = h
		return nil
	})
}

// Release implements machines.Fleet.
func (x *session) Release(ctx context.Context, node string) error {
	return x.call(ctx, "release", false, func(fault) error {
		if x.site.holds[node].Kind == model.RetirementHold {
			delete(x.site.holds, node)
		}
		return nil
	})
}

// Ask implements machines.Fleet.
func (x *session) Ask(ctx context.Context, node string, q model.Request) error {
	s := x.site
	return x.call(ctx, "ask", false, func(f fault) error {
		h, ok := s.hosts[node]
		if !ok {
			return fleet.ErrNotListed
		}
		if f == hookFail {
			s.answers[q.ID] = "the hook 10-leave failed"
		}
		if f == hookHang {
			s.answers[q.ID] = string(hookHang)
		}
		h.Request = &q
		s.hosts[node] = h
		return nil
	})
}

// unlist removes a node from the host list; its record keeps that the node had joined.
func (s *modelled) unlist(node string) {
	if r, ok := s.records[node]; ok && r.Phase == machines.Made && s.hosts[node].Node != "" {
		r.Joined = true
		s.records[node] = r
	}
	delete(s.hosts, node)
	delete(s.holds, node)
}

// Remove implements machines.Fleet.
func (x *session) Remove(ctx context.Context, node, _ string) error {
	s := x.site
	return x.call(ctx, "remove", false, func(fault) error {
		x.mayRemove(node)
		_, fresh := s.hosts[node]
		s.unlist(node)
		if s.records[node].Phase == machines.Retiring && (fresh || s.off[node] == 0) {
			s.off[node] = s.moment()
		}
		return nil
	})
}
