package store

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// Release ends a retirement's hold on a node, while the lock is held. An operator's own hold stays.
func (a *Applying) Release(ctx context.Context, node string) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	scope := etcd.Scope{Node: node}
	key := a.machines.db.Keys.Env(a.ref.String()).Hold(scope)
	for try := 0; ; try++ {
		h, revision, err := etcd.Single[agent.Hold](ctx, a.machines.db, key)
		if err == nil && (h == nil || h.Kind != agent.RetirementHold) {
			return nil
		}
		if err == nil {
			_, err = a.write(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, clientv3.OpDelete(key))
		}
		if err == nil || !errors.Is(err, machines.ErrChanged) || try == holdTries {
			if err != nil {
				err = fmt.Errorf("cannot end the hold of %s: %w", scope, a.ended(err))
			}
			return err
		}
	}
}
