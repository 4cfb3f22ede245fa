package desired

import (
	"context"
	"errors"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Register adds a node to the host list. The entry has no lease, because a powered-off host stays on the list. It keeps a pending
// request to the node.
func Register(ctx context.Context, db *etcd.DB, env string, h model.Host) error {
	k := db.Keys.Env(env)
	return etcd.Retry(ctx, func() error {
		old, revision, err := etcd.Single[model.Host](ctx, db, k.Host(h.Node))
		if err != nil && !errors.As(err, new(*etcd.UnreadableError)) { // an unreadable entry is overwritten
			return err
		}
		h.Request = h.AskedBefore(old)
		return db.Commit(ctx, etcd.If(etcd.Same(k.Host(h.Node), revision)).Put(k.Host(h.Node), h).Touch(k.HostsHead()))
	})
}

// Listed reads a host list with the exports of its nodes, and names its unreadable entries.
func Listed(ctx context.Context, db *etcd.DB, k etcd.EnvKeys) (hosts map[string]model.Host, exports map[string]model.Export, damaged []string, err error) {
	if hosts, damaged, err = etcd.ReadAll[model.Host](ctx, db, k.Hosts()); err == nil {
		exports = map[string]model.Export{}
		_, err = etcd.Collect(ctx, db, k.Exports(), func(rest string, e model.Export, revision int64) {
			e.Revision = revision
			exports[etcd.Unescape(rest)] = e
		})
	}
	return hosts, exports, damaged, err
}
