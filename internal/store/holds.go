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

// Hold sets a hold on a scope; a second one on the same scope replaces the first. With lasts > 0 a lease of etcd ends
// it, which depends on no client's clock. It needs no guard: the operator's newest decision counts.
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

// Unhold removes a scope's hold. It returns ErrNotFound if there is none.
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

// EndHolds corrects the holds of all environments after a restart of etcd: a starting member gives every lease its
// full time again. EndHolds removes holds whose end has passed, and gives the others a lease of the remaining time. It
// returns the number of removed holds.
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
				continue // lists of holds show an unreadable one
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
			// A failed guard means that an operator set or ended the hold at this moment, which counts.
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
