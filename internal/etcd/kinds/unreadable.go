package kinds

import (
	"context"
	"errors"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Unreadable is a key that this program cannot read. It hides no other key.
type Unreadable struct {
	Key, Problem string
	Node         string // or machine, whose key it is; "" for a key of the environment or of none
	Newer        bool   // a newer Pulley may have written it

	OfUser bool // it may name a user of etcd

	Revision int64 // of its value
}

func (u Unreadable) Error() string {
	return (&etcd.UnreadableError{Key: u.Key, Problem: u.Problem}).Error()
}

// found describes a key that cannot be read.
func found(db *etcd.DB, kv *etcd.KV, node string, err error) Unreadable {
	u := Unreadable{Key: string(kv.Key), Problem: err.Error(), Node: node, Revision: kv.ModRevision}
	if named := new(etcd.UnreadableError); errors.As(err, &named) {
		u.Problem, u.Newer = named.Problem, named.Newer
	}
	k := db.Keys
	u.OfUser = slices.ContainsFunc([]string{k.AllIdentities(), k.AllPrecreated(), k.Operators()}, func(p string) bool { return strings.HasPrefix(u.Key, p) })
	return u
}

// unreadableOf lists the keys of an environment that this program cannot read, in order, by the kinds that an environment has.
func unreadableOf(ctx context.Context, db *etcd.DB, ref model.Ref, listed []Kind) (all []Unreadable, err error) {
	for _, kind := range listed {
		if err == nil {
			all, err = kind.unread(ctx, db, all)
		}
	}
	if err == nil {
		err = db.Scan(ctx, db.Env(ref).Root(), func(_ string, kv *etcd.KV) error {
			key := string(kv.Key)
			if !slices.ContainsFunc(listed, func(k Kind) bool {
				return key == k.At || k.Many() && len(key) > len(k.At) && strings.HasPrefix(key, k.At)
			}) {
				all = append(all, found(db, kv, "", ErrNotOurs))
			}
			return nil
		}, clientv3.WithKeysOnly(), clientv3.WithLimit(2000))
	}
	slices.SortFunc(all, func(a, b Unreadable) int { return strings.Compare(a.Key, b.Key) })
	return all, etcd.Wrap(err, "cannot look for unreadable keys of %s", ref)
}

// unread adds the values of one kind that cannot be read.
func (k Kind) unread(ctx context.Context, db *etcd.DB, all []Unreadable) ([]Unreadable, error) {
	if k.Read == nil {
		return all, nil
	}
	if !k.Many() {
		_, err := db.Read(ctx, map[string]int64{}, etcd.Point{Key: k.At, Read: func(kv *etcd.KV) error {
			if problem := k.Read("", kv); problem != nil {
				all = append(all, found(db, kv, "", problem))
			}
			return nil
		}})
		return all, err
	}
	if k.Most > 0 {
		resp, err := db.Get(ctx, k.At, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count > k.Most {
			return all, err
		}
	}
	err := db.Scan(ctx, k.At, func(rest string, kv *etcd.KV) error {
		name := ""
		if k.Node {
			name = etcd.Unescape(rest)
		}
		problem := k.Read(rest, kv)
		if problem == nil && k.Node && !etcd.IsSegment(rest) {
			problem = ErrNotOurs
		}
		if problem != nil {
			all = append(all, found(db, kv, name, problem))
		}
		return nil
	})
	return all, err
}

// All lists the keys that this program cannot read, by environment, with the kinds of an environment and those of none: of every environment that any key names. Those of no environment
// are below the zero Ref, with a few of each name that is none of an environment. What could not be looked at is in unread.
func All(ctx context.Context, db *etcd.DB, env func(model.Ref) []Kind, none []Kind) (all map[model.Ref][]Unreadable, unread map[model.Ref]error, err error) {
	all, unread = map[model.Ref][]Unreadable{}, map[model.Ref]error{}
	refs := map[model.Ref]bool{{}: true}
	for _, root := range rootsOf(env) {
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
				all[model.Ref{}] = append(all[model.Ref{}], found(db, kv, "", ErrNotOurs))
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
		var some []Unreadable
		if ref == (model.Ref{}) {
			some, err = unreadableOfNone(ctx, db, none)
		} else {
			some, err = unreadableOf(ctx, db, ref, env(ref))
		}
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
func rootsOf(env func(model.Ref) []Kind) (roots []string) {
	for _, kind := range env(model.Ref{}) { // whose name is the empty segment
		root, _, _ := strings.Cut(kind.At, "//")
		roots = append(roots, root+"/")
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// fewStrange is the number of keys that are listed of one name that is none of an environment.
const fewStrange = 5

// unreadableOfNone lists the keys of no environment that this program cannot read.
func unreadableOfNone(ctx context.Context, db *etcd.DB, listed []Kind) (all []Unreadable, err error) {
	for _, kind := range listed {
		if err == nil {
			err = db.Scan(ctx, kind.At, func(rest string, kv *etcd.KV) error {
				problem := ErrNotOurs
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
