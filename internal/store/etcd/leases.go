package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Lease returns an option that ends a key after a time. Etcd's own clock counts, and it stands still while etcd is
// down.
func (s *DB) Lease(ctx context.Context, lasts time.Duration) (clientv3.OpOption, error) {
	id, err := s.Grant(ctx, lasts)
	return clientv3.WithLease(id), err
}

// Grant creates a lease.
func (s *DB) Grant(ctx context.Context, lasts time.Duration) (clientv3.LeaseID, error) {
	id, _, err := s.grantFor(ctx, lasts)
	return id, err
}

// grantFor also returns the duration of the lease: etcd may grant more than was requested.
func (s *DB) grantFor(ctx context.Context, lasts time.Duration) (clientv3.LeaseID, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	lease, err := s.Client.Grant(ctx, int64((lasts+time.Second-1)/time.Second))
	if err != nil {
		return 0, 0, s.Explain(err)
	}
	return lease.ID, time.Duration(lease.TTL) * time.Second, nil
}

// LeaseSwap is the lease that a write uses, and the lease that it replaces.
type LeaseSwap struct{ Fresh, Old clientv3.LeaseID }

// SettleLease revokes the unused lease after a write that returned err. After a write of unknown outcome both leases
// stay: revoking one could delete the value.
func (s *DB) SettleLease(ctx context.Context, l LeaseSwap, err error) {
	idle := l.Old
	switch {
	case errors.Is(err, ErrConflict):
		idle = l.Fresh
	case err != nil:
		return
	}
	if idle == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
	defer cancel()
	_, _ = s.Client.Revoke(ctx, idle) // otherwise it ends by itself
}
