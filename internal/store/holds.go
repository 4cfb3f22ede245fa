package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
)

// Hold sets a hold on a scope; a second one on the same scope replaces the first. With lasts > 0 etcd itself ends it, by a
// lease, so that nobody's clock decides. It needs no guard: the operator's newest word counts.
func (s *Store) Hold(ctx context.Context, ref environments.Ref, scope Scope, h agent.Hold, lasts time.Duration) error {
	key := s.keys.hold(ref.String(), scope)
	h.Scope = scope.segment("all")
	value, err := encode(h)
	if err != nil {
		return err
	}
	var opts []clientv3.OpOption
	if lasts > 0 {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		lease, err := s.client.Grant(ctx, int64(lasts/time.Second))
		if err != nil {
			return fmt.Errorf("cannot set a hold that ends: %w", s.explain(err))
		}
		opts = append(opts, clientv3.WithLease(lease.ID))
	}
	if _, err := s.txn(ctx, nil, []clientv3.Op{clientv3.OpPut(key, value, opts...)}, nil); err != nil {
		return fmt.Errorf("cannot hold %s: %w", scope, err)
	}
	return nil
}

// Unhold removes a scope's hold; ErrNotFound when there is none.
func (s *Store) Unhold(ctx context.Context, ref environments.Ref, scope Scope) error {
	resp, err := s.txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(s.keys.hold(ref.String(), scope))}, nil)
	if err != nil {
		return fmt.Errorf("cannot end the hold on %s: %w", scope, err)
	}
	if resp.Responses[0].GetResponseDeleteRange().Deleted == 0 {
		return fmt.Errorf("cannot end the hold on %s: %w", scope, ErrNotFound)
	}
	return nil
}
