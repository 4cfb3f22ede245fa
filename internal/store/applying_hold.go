package store

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/internal/clip"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// holdTries bounds the retries when an operator changes the hold at the same moment.
const holdTries = 10

// Hold prevents Puppet runs of a node until the node is removed or the hold ends. It replaces an operator's own hold,
// which may end too early. The new hold keeps the author and reason of the old one.
func (a *Applying) Hold(ctx context.Context, node string, h agent.Hold) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	scope := etcd.Scope{Node: node}
	key := a.machines.db.Keys.Env(a.ref.String()).Hold(scope)
	h.Scope = scope.Segment("all")
	for try := 0; ; try++ {
		err := a.hold(ctx, key, h)
		if err == nil || !errors.Is(err, machines.ErrChanged) || try == holdTries {
			if err != nil {
				err = fmt.Errorf("cannot hold %s: %w", scope, a.ended(err))
			}
			return err
		}
	}
}

func (a *Applying) hold(ctx context.Context, key string, h agent.Hold) error {
	old, revision, err := etcd.Single[agent.Hold](ctx, a.machines.db, key)
	if errors.As(err, new(*etcd.UnreadableError)) { // an unreadable hold must not block this one
		old = nil
		var resp *clientv3.GetResponse
		if resp, err = a.machines.db.Get(ctx, key, clientv3.WithKeysOnly()); err == nil && len(resp.Kvs) > 0 {
			revision = resp.Kvs[0].ModRevision
		}
	}
	if err != nil {
		return err
	}
	h.Replaced = replaced(old)
	value, err := etcd.Encode(h)
	if err != nil {
		return err
	}
	_, err = a.write(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, clientv3.OpPut(key, value))
	return err
}

// replaced returns the operator's hold that a retirement's hold replaces. An apply that resumes replaces its own
// earlier hold: then it is the hold that the earlier one replaced.
func replaced(old *agent.Hold) *agent.Hold {
	if old == nil || old.Kind == agent.RetirementHold && old.Replaced == nil {
		return nil
	}
	if old.Kind == agent.RetirementHold {
		old = old.Replaced
	}
	before := *old
	before.Why, before.Replaced = agent.Prose(clip.Text(string(before.Why), maxWords)), nil
	return &before
}
