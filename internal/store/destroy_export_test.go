package store

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// CancelAfter runs do with a store that calls cancel before its call to etcd of this number.
func CancelAfter(s *Store, calls int32, cancel context.CancelFunc, do func(*Store)) {
	var made atomic.Int32
	hit := func() {
		if made.Add(1) == calls {
			cancel()
		}
	}
	s.db.Client.KV, s.db.Client.Auth = cutKV{s.db.Client.KV, hit}, cutAuth{s.db.Client.Auth, hit}
	do(s)
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
