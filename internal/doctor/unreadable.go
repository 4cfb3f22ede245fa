package doctor

import (
	"context"
	"slices"
	"strings"

	"pulley/internal/access"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/etcd/kinds"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/publish/prune"
	"pulley/internal/rollout/journal"
	"pulley/internal/specs"
)

// Unreadable lists the keys that this program cannot read; see kinds.All.
func Unreadable(ctx context.Context, db *etcd.DB) (all map[model.Ref][]kinds.Unreadable, unread map[model.Ref]error, err error) {
	return kinds.All(ctx, db, func(ref model.Ref) []kinds.Kind { return kindsOf(db, ref) }, kindsOfNone(db))
}

// kindsOf lists all kinds of values of an environment.
func kindsOf(db *etcd.DB, ref model.Ref) []kinds.Kind {
	k := db.Env(ref)
	return slices.Concat(specs.Kinds(k), targets.Kinds(k, ref), access.EnvKinds(k), fleet.Kinds(k), journal.Kinds(k), records.EnvKinds(k))
}

// kindsOfNone lists all kinds of values of no environment. The bytes of content and deltas are not values.
func kindsOfNone(db *etcd.DB) []kinds.Kind {
	k := db.Keys
	return slices.Concat(cluster.Kinds(k), access.Kinds(db), notify.Kinds(k), records.Kinds(k), prune.Kinds(db))
}

// DeleteUnreadable deletes a key that this program cannot read, as Unreadable lists it. It returns ErrConflict if it was written since. A gate
// is not deleted: epochs would begin again. It gets that of the newest change, whose key names it.
func DeleteUnreadable(ctx context.Context, db *etcd.DB, ref model.Ref, u kinds.Unreadable) error {
	k := db.Env(ref)
	b := etcd.If(etcd.Same(u.Key, u.Revision))
	if u.Key == k.Gate() {
		newest, err := targets.NewestEpoch(ctx, db, k)
		if err != nil {
			return etcd.Wrap(err, "cannot repair key %s", u.Key)
		}
		b.Put(u.Key, model.Gate{State: model.GateOpen, Epoch: newest})
	} else {
		b.Delete(u.Key)
	}
	switch { // as the commands that delete these keys
	case strings.HasPrefix(u.Key, k.Hosts()), strings.HasPrefix(u.Key, k.Exports()):
		b.Touch(k.HostsHead())
	case strings.HasPrefix(u.Key, k.Desired()), strings.HasPrefix(u.Key, k.Assignment("")):
		b.Touch(db.Keys.Targets())
	}
	return etcd.Wrap(db.Commit(ctx, b), "cannot delete key %s", u.Key)
}
