package store

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// lettingIn is what stores the token of a machine's userdata. Where that very token is there by now, a write came through whose
// answer was lost: this one changes nothing, and the record is read again.
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

// unused is the token in a node's record if it could still let in a machine, with its key and revision; nil where it was used or
// revoked, is not there, or is somebody else's.
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

// revoking is what ends the token of a machine in whose place another one comes.
func (a *Applying) revoking(ctx context.Context, r machines.Record) ([]clientv3.Cmp, []clientv3.Op, error) {
	t, key, revision, err := a.unused(ctx, r)
	if t == nil {
		return nil, nil, err
	}
	t.Revoked = &Revoked{At: a.now(), By: a.by, Why: "the machine that it was for is made anew"}
	value, err := etcd.Encode(*t)
	return []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, value)}, err
}

// dropping is what ends the token of a machine that is gone. It holds no put: a full etcd takes it.
func (a *Applying) dropping(ctx context.Context, r machines.Record) ([]clientv3.Cmp, []clientv3.Op, error) {
	t, key, revision, err := a.unused(ctx, r)
	if t == nil {
		return nil, nil, err
	}
	return []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpDelete(key)}, nil
}
