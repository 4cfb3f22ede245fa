package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
)

// Hold sets a hold on a scope; a second one on the same scope replaces the first. With lasts > 0 etcd itself ends it, by a
// lease, so that nobody's clock decides. It needs no guard: the operator's newest word counts.
func (s *Fleet) Hold(ctx context.Context, ref environments.Ref, scope etcd.Scope, h agent.Hold, lasts time.Duration) error {
	key := s.db.Keys.Env(ref.String()).Hold(scope)
	h.Scope = scope.Segment("all")
	value, err := etcd.Encode(h)
	if err != nil {
		return err
	}
	var opts []clientv3.OpOption
	if lasts > 0 {
		lease, err := s.db.Lease(ctx, lasts)
		if err != nil {
			return fmt.Errorf("cannot set a hold that ends: %w", err)
		}
		opts = append(opts, lease)
	}
	if _, err := s.db.Txn(ctx, nil, []clientv3.Op{clientv3.OpPut(key, value, opts...)}, nil); err != nil {
		return fmt.Errorf("cannot hold %s: %w", scope, err)
	}
	return nil
}

// Unhold removes a scope's hold; ErrNotFound when there is none.
func (s *Fleet) Unhold(ctx context.Context, ref environments.Ref, scope etcd.Scope) error {
	resp, err := s.db.Txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(s.db.Keys.Env(ref.String()).Hold(scope))}, nil)
	if err != nil {
		return fmt.Errorf("cannot end the hold on %s: %w", scope, err)
	}
	if resp.Responses[0].GetResponseDeleteRange().Deleted == 0 {
		return fmt.Errorf("cannot end the hold on %s: %w", scope, etcd.ErrNotFound)
	}
	return nil
}

// EndHolds makes the holds of all environments end when they say, after etcd was restarted: a member that starts gives
// every lease its whole time again. Holds whose end has passed are removed, and the others get a lease of what is left.
// It returns how many it removed.
func (s *Fleet) EndHolds(ctx context.Context, now time.Time) (ended int, err error) {
	environments, err := s.specs.List(ctx)
	if err != nil {
		return 0, err
	}
	for _, env := range environments {
		resp, err := s.db.Get(ctx, s.db.Keys.Env(env).Holds(), clientv3.WithPrefix())
		if err != nil {
			return ended, fmt.Errorf("cannot read the holds of %s: %w", env, err)
		}
		for _, kv := range resp.Kvs {
			var h agent.Hold
			if etcd.Decode(string(kv.Key), kv.Value, &h) != nil || h.Until.IsZero() {
				continue // one that can't be read is shown where holds are
			}
			op := clientv3.OpDelete(string(kv.Key))
			left := h.Until.Sub(now)
			if left > 0 {
				lease, err := s.db.Lease(ctx, left)
				if err != nil {
					return ended, fmt.Errorf("cannot renew the hold on %s: %w", h.Scope, err)
				}
				op = clientv3.OpPut(string(kv.Key), string(kv.Value), lease)
			}
			// Where the guard fails an operator has set or ended it at this moment, and that counts.
			done, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(string(kv.Key), kv.ModRevision)}, []clientv3.Op{op}, nil)
			if err != nil {
				return ended, fmt.Errorf("cannot end the hold on %s: %w", h.Scope, err)
			}
			if done.Succeeded && left <= 0 {
				ended++
			}
		}
	}
	return ended, nil
}
