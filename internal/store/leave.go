package store

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/provision"
)

// lettingIn is what stores the token of a machine's userdata.
func (a *Applying) lettingIn(ctx context.Context, node string, t provision.Token) ([]clientv3.Cmp, []clientv3.Op, error) {
	if found, err := a.store.FindToken(ctx, t.ID); found != nil || errors.As(err, new(*UnreadableError)) {
		return nil, nil, provision.ErrTokenTaken
	} else if err != nil {
		return nil, nil, err
	}
	free, put, err := a.store.puttingToken(Token{
		ID: t.ID, Hash: t.Hash, Environment: a.ref.String(), Node: node, Uses: 1, Created: t.Created, Expires: t.Expires, By: a.by, Why: "pulley env apply",
	})
	return free, []clientv3.Op{put}, err
}

// lettingNobodyIn is what revokes the token of a machine that will not come, unless it was used; nothing where there is none, or
// one that counts for nobody. id may be "".
func (a *Applying) lettingNobodyIn(ctx context.Context, id, why string) ([]clientv3.Cmp, []clientv3.Op, error) {
	if id == "" {
		return nil, nil, nil
	}
	key := a.store.keys.nodeToken(id)
	resp, err := a.store.get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, nil, err
	}
	t, err := a.store.decodeToken(key, resp.Kvs[0].Value)
	if err != nil || t.Revoked != nil || t.UsedUp() {
		return nil, nil, nil //nolint:nilerr // what can't be read lets nobody in
	}
	t.Revoked = &Revoked{At: a.now(), By: a.by, Why: why}
	value, err := encode(t)
	return []clientv3.Cmp{same(key, resp.Kvs[0].ModRevision)}, []clientv3.Op{clientv3.OpPut(key, value)}, err
}

// ForgetTokens deletes tokens of nodes that ended a month ago or earlier.
func (a *Applying) ForgetTokens(ctx context.Context) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	return a.ended(a.store.forgetTokens(ctx, false, a.now()))
}
