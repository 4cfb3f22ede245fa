package store

import (
	"context"
	"fmt"

	"pulley/internal/store/etcd"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Publishing is a publish in progress. While it is held, no prune runs and the content that it found in etcd stays.
type Publishing struct{ lock *etcd.Lock }

// Close ends the publish.
func (p *Publishing) Close() error { return p.lock.Close() }

// lockHint is the remedy if another lock conflicts.
const lockHint = "try again after that; the lock of a killed program ends within a minute"

// BeginPublish begins a publish; Close ends it. During a prune it fails with an error that names the prune's author.
func (s *Releases) BeginPublish(ctx context.Context, by string) (*Publishing, error) {
	pruning := s.db.Keys.Pruning()
	l, holder, err := s.db.Lock(ctx, etcd.LockSpec{
		Key: s.db.Keys.Publishing, Kind: etcd.LockPublish, By: by, Lasts: etcd.LockLasts, Free: etcd.Same(pruning, 0), Rival: clientv3.OpGet(pruning),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot begin to publish: %w", err)
	}
	if l == nil {
		return nil, fmt.Errorf("cannot publish while %s\n%s", holder, lockHint)
	}
	return &Publishing{l}, nil
}

// beginPrune blocks publishers until the lock is closed. It fails during a publish.
func (s *Releases) beginPrune(ctx context.Context, by string) (*etcd.Lock, error) {
	l, holder, err := s.db.Lock(ctx, etcd.LockSpec{
		Key: func(string) string { return s.db.Keys.Pruning() }, Kind: etcd.LockPrune, By: by, Lasts: etcd.LockLasts,
		Free:  etcd.NothingBelow(s.db.Keys.Publishings()),
		Rival: clientv3.OpGet(s.db.Keys.Publishings(), clientv3.WithPrefix(), clientv3.WithLimit(1)),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot begin to prune: %w", err)
	}
	if l == nil {
		return nil, fmt.Errorf("cannot prune while %s\n%s", holder, lockHint)
	}
	return l, nil
}
