package etcdtest

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
)

// CancelAfter runs do with a store that calls cancel before its call to etcd of this number.
func CancelAfter(s *etcd.DB, calls int32, cancel context.CancelFunc, do func(*etcd.DB)) {
	BeforeCalls(s, func(call int32) {
		if call == calls {
			cancel()
		}
	})
	do(s)
}

// BeforeCalls runs hit before each call of a store to etcd, with its number.
func BeforeCalls(s *etcd.DB, hit func(call int32)) {
	var made atomic.Int32
	next := func() { hit(made.Add(1)) }
	s.Client.KV, s.Client.Auth = cutKV{s.Client.KV, next}, cutAuth{s.Client.Auth, next}
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
