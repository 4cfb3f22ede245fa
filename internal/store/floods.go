package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
)

// Flood means that a node writes far more than normal. The note exists while the flood lasts, and one day longer.
type Flood struct {
	Node   string    `json:"node"`
	Bytes  int64     `json:"bytes"`  // written within the worst minute
	Writes int64     `json:"writes"` // within the worst minute
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

// Floods lists the nodes of an environment with a recent flood. damaged names the unreadable ones.
func (s *Fleet) Floods(ctx context.Context, ref environments.Ref) (all map[string]Flood, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[Flood](ctx, s.db, s.db.Keys.Env(ref.String()).Flood(""))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the nodes of %s that flood: %w", ref, err)
	}
	return all, damaged, nil
}

// NoteFlood stores that a node flooded within the last minute, and adds to an earlier note. first is true if there was
// none: of several serves that see the same flood, one gets true. There is no lease, because a full etcd grants none.
// ForgetFlood deletes the note.
func (s *Fleet) NoteFlood(ctx context.Context, ref environments.Ref, now Flood) (first bool, err error) {
	key := s.db.Keys.Env(ref.String()).Flood(now.Node)
	for {
		old, revision, err := etcd.Single[Flood](ctx, s.db, key)
		if err != nil {
			return false, err
		}
		sum := now
		if old != nil {
			sum.First = old.First
			sum.Bytes, sum.Writes = max(sum.Bytes, old.Bytes), max(sum.Writes, old.Writes)
		}
		if _, err := s.db.Replace(ctx, key, sum, revision); !errors.Is(err, etcd.ErrConflict) {
			if err != nil {
				err = fmt.Errorf("cannot note that node %s floods: %w", now.Node, err)
			}
			return old == nil, err
		}
	}
}

// ForgetFlood deletes the note unless the node flooded after it. It needs no other guard: a flood that continues is
// noted again.
func (s *Fleet) ForgetFlood(ctx context.Context, ref environments.Ref, node string, last time.Time) error {
	key := s.db.Keys.Env(ref.String()).Flood(node)
	old, revision, err := etcd.Single[Flood](ctx, s.db, key)
	if err != nil || old == nil || old.Last.After(last) {
		return err
	}
	_, err = s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	return err
}

// HoldUnlessHeld sets a hold on a scope without a hold of its own, and reports whether it did. An operator's hold
// stays.
func (s *Fleet) HoldUnlessHeld(ctx context.Context, ref environments.Ref, scope etcd.Scope, h agent.Hold) (bool, error) {
	key := s.db.Keys.Env(ref.String()).Hold(scope)
	h.Scope = scope.Segment("all")
	value, err := etcd.Encode(h)
	if err != nil {
		return false, err
	}
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, 0)}, []clientv3.Op{clientv3.OpPut(key, value)}, nil)
	if err != nil {
		return false, fmt.Errorf("cannot hold %s: %w", scope, err)
	}
	return resp.Succeeded, nil
}

// NoteDuplicateBoot stores that two machines run under a node's name with one machine's identity, as their boot IDs
// show. It reports whether this is new: of several serves that see the same, one gets true.
func (s *Identities) NoteDuplicateBoot(ctx context.Context, ref environments.Ref, node string, c Clone) (bool, error) {
	for {
		i, revision, err := s.Get(ctx, ref, node)
		if err != nil || !i.Live() {
			return false, err
		}
		old := i.Clone
		c.First, c.Times = c.At, 1
		if old != nil && old.Boot == c.Boot {
			c.First, c.Times = old.First, old.Times+1
		}
		i.Clone = &c
		err = s.Put(ctx, ref, *i, revision)
		if err == nil {
			return old == nil, nil
		}
		if !errors.Is(err, etcd.ErrConflict) {
			return false, fmt.Errorf("cannot note that two machines run as node %s: %w", node, err)
		}
	}
}
