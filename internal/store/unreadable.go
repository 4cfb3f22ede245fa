package store

import (
	"context"
	"errors"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/etcd/kinds"
	"pulley/internal/model"
)

// Unreadable is a key that this program cannot read. It hides no other key.
type Unreadable struct {
	Key, Problem string
	Node         string // or machine, whose key it is; "" for a key of the environment or of none
	Newer        bool   // a newer Pulley may have written it

	OfUser bool // it may name a user of etcd

	revision int64
}

func (u Unreadable) Error() string {
	return (&etcd.UnreadableError{Key: u.Key, Problem: u.Problem}).Error()
}

// kindsOf lists all kinds of values of an environment.
func kindsOf(db *etcd.DB, ref model.Ref) []kinds.Kind {
	k := db.Env(ref)
	return slices.Concat(specKinds(k), targetsKinds(k, ref), accessEnvKinds(k), fleetKinds(k), journalKinds(k), recordsEnvKinds(k))
}

// kindsOfNone lists all kinds of values of no environment. The bytes of content and deltas are not values.
func kindsOfNone(db *etcd.DB) []kinds.Kind {
	k := db.Keys
	return slices.Concat(clusterKinds(k), accessKinds(db), notifyKinds(k), recordsKinds(k), pruneKinds(db))
}

// found describes a key that cannot be read.
func found(db *etcd.DB, kv *etcd.KV, node string, err error) Unreadable {
	u := Unreadable{Key: string(kv.Key), Problem: err.Error(), Node: node, revision: kv.ModRevision}
	if named := new(etcd.UnreadableError); errors.As(err, &named) {
		u.Problem, u.Newer = named.Problem, named.Newer
	}
	k := db.Keys
	u.OfUser = slices.ContainsFunc([]string{k.AllIdentities(), k.AllPrecreated(), k.Operators()}, func(p string) bool { return strings.HasPrefix(u.Key, p) })
	return u
}

// unreadableOf lists the keys of an environment that this program cannot read, in order.
func unreadableOf(ctx context.Context, db *etcd.DB, ref model.Ref) (all []Unreadable, err error) {
	listed := kindsOf(db, ref)
	for _, kind := range listed {
		if err == nil {
			all, err = kindsUnread(ctx, db, kind, all)
		}
	}
	if err == nil {
		err = db.Scan(ctx, db.Env(ref).Root(), func(_ string, kv *etcd.KV) error {
			key := string(kv.Key)
			if !slices.ContainsFunc(listed, func(k kinds.Kind) bool {
				return key == k.At || k.Many() && len(key) > len(k.At) && strings.HasPrefix(key, k.At)
			}) {
				all = append(all, found(db, kv, "", kinds.ErrNotOurs))
			}
			return nil
		}, clientv3.WithKeysOnly(), clientv3.WithLimit(2000))
	}
	slices.SortFunc(all, func(a, b Unreadable) int { return strings.Compare(a.Key, b.Key) })
	return all, etcd.Wrap(err, "cannot look for unreadable keys of %s", ref)
}

// kindsUnread adds the values of one kind that cannot be read.
func kindsUnread(ctx context.Context, db *etcd.DB, kind kinds.Kind, all []Unreadable) ([]Unreadable, error) {
	if kind.Read == nil {
		return all, nil
	}
	if !kind.Many() {
		_, err := db.Read(ctx, map[string]int64{}, etcd.Point{Key: kind.At, Read: func(kv *etcd.KV) error {
			if problem := kind.Read("", kv); problem != nil {
				all = append(all, found(db, kv, "", problem))
			}
			return nil
		}})
		return all, err
	}
	if kind.Most > 0 {
		resp, err := db.Get(ctx, kind.At, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count > kind.Most {
			return all, err
		}
	}
	err := db.Scan(ctx, kind.At, func(rest string, kv *etcd.KV) error {
		name := ""
		if kind.Node {
			name = etcd.Unescape(rest)
		}
		problem := kind.Read(rest, kv)
		if problem == nil && kind.Node && !etcd.IsSegment(rest) {
			problem = kinds.ErrNotOurs
		}
		if problem != nil {
			all = append(all, found(db, kv, name, problem))
		}
		return nil
	})
	return all, err
}

// allUnreadable lists the keys that this program cannot read, by environment, of every environment that any key names. Those of no environment
// are below the zero Ref, with a few of each name that is none of an environment. What could not be looked at is in unread.
func allUnreadable(ctx context.Context, db *etcd.DB) (all map[model.Ref][]Unreadable, unread map[model.Ref]error, err error) {
	all, unread = map[model.Ref][]Unreadable{}, map[model.Ref]error{}
	refs := map[model.Ref]bool{{}: true}
	for _, root := range rootsOf(db) {
		err := db.EachSegment(ctx, root, func(segment string, below bool) error {
			ref, err := model.ParseRef(etcd.Unescape(segment))
			if below && err == nil && etcd.IsSegment(segment) {
				refs[ref] = true
				return nil
			}
			strange, left := root+segment, 1
			if below {
				strange, left = strange+"/", fewStrange
			}
			return db.Scan(ctx, strange, func(_ string, kv *etcd.KV) error {
				all[model.Ref{}] = append(all[model.Ref{}], found(db, kv, "", kinds.ErrNotOurs))
				if left--; left == 0 {
					return etcd.ErrEnough
				}
				return nil
			}, clientv3.WithKeysOnly())
		})
		if err != nil {
			return nil, nil, etcd.Wrap(err, "cannot list environments")
		}
	}
	for ref := range refs {
		read := unreadableOf
		if ref == (model.Ref{}) {
			read = unreadableOfNone
		}
		some, err := read(ctx, db, ref)
		if errors.Is(err, model.ErrUnreachable) {
			return nil, nil, err
		} else if err != nil {
			unread[ref] = err
		}
		all[ref] = append(all[ref], some...)
	}
	return all, unread, nil
}

// rootsOf lists the prefixes below which the names of environments are.
func rootsOf(db *etcd.DB) (roots []string) {
	for _, kind := range kindsOf(db, model.Ref{}) { // whose name is the empty segment
		root, _, _ := strings.Cut(kind.At, "//")
		roots = append(roots, root+"/")
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// fewStrange is the number of keys that are listed of one name that is none of an environment.
const fewStrange = 5

// unreadableOfNone lists the keys of no environment that this program cannot read.
func unreadableOfNone(ctx context.Context, db *etcd.DB, _ model.Ref) (all []Unreadable, err error) {
	for _, kind := range kindsOfNone(db) {
		if err == nil {
			err = db.Scan(ctx, kind.At, func(rest string, kv *etcd.KV) error {
				problem := kinds.ErrNotOurs
				if etcd.IsSegment(rest) == kind.Many() {
					problem = kind.Read(rest, kv)
				}
				if problem != nil {
					all = append(all, found(db, kv, "", problem))
				}
				return nil
			})
		}
	}
	return all, etcd.Wrap(err, "cannot look for unreadable keys of the fleet")
}

// deleteUnreadable deletes a key that this program cannot read, as allUnreadable lists it. It returns ErrConflict if it was written since. A gate
// is not deleted: epochs would begin again. It gets that of the newest change, whose key names it.
func deleteUnreadable(ctx context.Context, db *etcd.DB, ref model.Ref, u Unreadable) error {
	k := db.Env(ref)
	b := etcd.If(etcd.Same(u.Key, u.revision))
	if u.Key == k.Gate() {
		newest, err := newestEpoch(ctx, db, k)
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
