package store

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// lettingIn returns the guards and operations that store the token of a machine's userdata. If this token exists
// already, an earlier write succeeded and only its answer was lost. Then the guards fail, and the record is read
// again.
func (a *Applying) lettingIn(ctx context.Context, node string, t machines.Token) ([]clientv3.Cmp, []clientv3.Op, error) {
	found, err := a.machines.tokens.Find(ctx, t.ID)
	switch {
	case errors.As(err, new(*etcd.UnreadableError)), found != nil && found.Hash != t.Hash:
		return nil, nil, machines.ErrTokenTaken
	case err != nil:
		return nil, nil, err
	}
	free, put, err := a.machines.tokens.puttingToken(Token{
		ID: t.ID, Hash: t.Hash, Environment: a.ref.String(), Node: node, Uses: 1, Created: t.Created, Expires: t.Expires, By: a.by, Why: "pulley env apply",
	})
	return free, []clientv3.Op{put}, err
}

// unused returns the token of a node's record if it could still admit a machine, with its key and revision. It returns
// nil if the token was used, revoked, deleted, or belongs to another record.
func (a *Applying) unused(ctx context.Context, r machines.Record) (t *Token, key string, revision int64, err error) {
	if r.Token == "" {
		return nil, "", 0, nil
	}
	key = a.machines.db.Keys.NodeToken(r.Token)
	resp, err := a.machines.db.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, key, 0, err
	}
	read, err := a.machines.tokens.decodeToken(key, resp.Kvs[0].Value)
	if err != nil || read.Revoked != nil || read.UsedUp() || read.Environment != a.ref.String() || read.Node != r.Node {
		return nil, key, 0, nil //nolint:nilerr // what can't be read lets nobody in
	}
	return &read, key, resp.Kvs[0].ModRevision, nil
}

// revoking returns the operations that revoke the token of a replaced machine.
func (a *Applying) revoking(ctx context.Context, r machines.Record) ([]clientv3.Cmp, []clientv3.Op, error) {
	t, key, revision, err := a.unused(ctx, r)
	if t == nil {
		return nil, nil, err
	}
	t.Revoked = &Revoked{At: a.now(), By: a.by, Why: "the machine that it was for is made anew"}
	value, err := etcd.Encode(*t)
	return []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, value)}, err
}

// dropping returns the operations that delete the token of a removed machine. They contain no put: a full etcd accepts
// them.
func (a *Applying) dropping(ctx context.Context, r machines.Record) ([]clientv3.Cmp, []clientv3.Op, error) {
	t, key, revision, err := a.unused(ctx, r)
	if t == nil {
		return nil, nil, err
	}
	return []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpDelete(key)}, nil
}
