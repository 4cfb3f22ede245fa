package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/model"
)

// BeginApplyFor is BeginApply with a lock that lasts as long as the test needs.
func BeginApplyFor(ctx context.Context, s *Store, ref model.Ref, by string, lasts time.Duration) (*Applying, error) {
	return s.Machines.beginApply(ctx, ref, by, lasts)
}

// DestroyEnvironment destroys an environment in an apply of its own.
func (s *Machines) DestroyEnvironment(ctx context.Context, ref model.Ref, by string, hosts bool) (Destroyed, error) {
	a, err := s.BeginApply(ctx, ref, by)
	if err != nil {
		return Destroyed{}, err
	}
	d, err := a.Destroy(ctx, hosts)
	return d, errors.Join(err, a.Close())
}

// ShutOut is the first part of a removal. Tests interrupt the removal after it.
var ShutOut = func(s *Store, ctx context.Context, ref model.Ref, node string) (bool, error) {
	return s.Joins.shutOut(ctx, ref, node)
}

// CancelAfter runs do with a store that calls cancel before its call to etcd of this number.
func CancelAfter(s *Store, calls int32, cancel context.CancelFunc, do func(*Store)) {
	BeforeCalls(s, func(call int32) {
		if call == calls {
			cancel()
		}
	})
	do(s)
}

// BeforeCalls runs hit before each call of a store to etcd, with its number.
func BeforeCalls(s *Store, hit func(call int32)) {
	var made atomic.Int32
	next := func() { hit(made.Add(1)) }
	s.db.Client.KV, s.db.Client.Auth = cutKV{s.db.Client.KV, next}, cutAuth{s.db.Client.Auth, next}
}

type cutKV struct {
	clientv3.KV
	hit func()
}

func (k cutKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	k.hit()
	return k.KV.Get(ctx, key, opts...)
}

func (k cutKV) Txn(ctx context.Context) clientv3.Txn {
	k.hit()
	return k.KV.Txn(ctx)
}

type cutAuth struct {
	clientv3.Auth
	hit func()
}

func (a cutAuth) UserDelete(ctx context.Context, name string) (*clientv3.AuthUserDeleteResponse, error) {
	a.hit()
	return a.Auth.UserDelete(ctx, name)
}

func (a cutAuth) RoleDelete(ctx context.Context, role string) (*clientv3.AuthRoleDeleteResponse, error) {
	a.hit()
	return a.Auth.RoleDelete(ctx, role)
}
