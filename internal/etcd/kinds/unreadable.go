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

// search looks for what cannot be read.
type search struct {
	db    *etcd.DB
	users []string // prefixes of the keys that may name a user of etcd
}

// found describes a key that cannot be read.
func (s search) found(kv *etcd.KV, node string, err error) Unreadable {
	u := Unreadable{Key: string(kv.Key), Problem: err.Error(), Node: node, Revision: kv.ModRevision}
	if named := new(etcd.UnreadableError); errors.As(err, &named) {
		u.Problem, u.Newer = named.Problem, named.Newer
	}
	u.OfUser = slices.ContainsFunc(s.users, func(p string) bool { return strings.HasPrefix(u.Key, p) })
	return u
}

// unreadableOf lists the keys of an environment that this program cannot read, in order, by the kinds that an environment has.
func (s search) unreadableOf(ctx context.Context, ref model.Ref, listed []Kind) (all []Unreadable, err error) {
	for _, kind := range listed {
		if err == nil {
			all, err = s.unread(ctx, kind, all)
		}
	}
	if err == nil {
		err = s.db.Scan(ctx, s.db.Env(ref).Root(), func(_ string, kv *etcd.KV) error {
			key := string(kv.Key)
			if !slices.ContainsFunc(listed, func(k Kind) bool {
				return key == k.At || k.Many() && len(key) > len(k.At) && strings.HasPrefix(key, k.At)
			}) {
				all = append(all, s.found(kv, "", etcd.ErrNotOurs))
			}
			return nil
		}, clientv3.WithKeysOnly(), clientv3.WithLimit(2000))
	}
	slices.SortFunc(all, func(a, b Unreadable) int { return strings.Compare(a.Key, b.Key) })
	return all, etcd.Wrap(err, "cannot look for unreadable keys of %s", ref)
}

// unread adds the values of one kind that cannot be read.
func (s search) unread(ctx context.Context, k Kind, all []Unreadable) ([]Unreadable, error) {
	if k.Read == nil {
		return all, nil
	}
	if !k.Many() {
		_, err := s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: k.At, Read: func(kv *etcd.KV) error {
			if problem := k.Read("", kv); problem != nil {
				all = append(all, s.found(kv, "", problem))
			}
			return nil
		}})
		return all, err
	}
	if k.Most > 0 {
		resp, err := s.db.Get(ctx, k.At, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count > k.Most {
			return all, err
		}
	}
	err := s.db.Scan(ctx, k.At, func(rest string, kv *etcd.KV) error {
		name := ""
		switch first, _, _ := strings.Cut(rest, "/"); {
		case k.Node:
			name = etcd.Unescape(rest)
		case k.BelowNode:
			name = etcd.Unescape(first)
		}
		problem := k.Read(rest, kv)
		if problem == nil && k.Node && !etcd.IsSegment(rest) {
			problem = etcd.ErrNotOurs
		}
		if problem != nil {
			all = append(all, s.found(kv, name, problem))
		}
		return nil
	})
	return all, err
}

// All lists the keys that this program cannot read, by environment: of each environment that any key names, with the kinds that env returns,
// and, below the zero Ref, those of no environment, with the kinds of none. Of a name that no environment can have, it lists a few. What it
// could not look at is in unread. It does not decode content, generations and layers: `pulley releases verify` checks their bytes.
func All(ctx context.Context, db *etcd.DB, env func(model.Ref) []Kind, none []Kind) (all map[model.Ref][]Unreadable, unread map[model.Ref]error, err error) {
	all, unread = map[model.Ref][]Unreadable{}, map[model.Ref]error{}
	refs := map[model.Ref]bool{{}: true}
	s := search{db: db}
	for _, kind := range append(env(model.Ref{}), none...) {
		if kind.OfUser {
			s.users = append(s.users, kind.root())
		}
	}
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
				all[model.Ref{}] = append(all[model.Ref{}], s.found(kv, "", etcd.ErrNotOurs))
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
			some, err = s.unreadableOfNone(ctx, none)
		} else {
			some, err = s.unreadableOf(ctx, ref, env(ref))
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

// root returns the prefix of the kind's keys in all environments. The kind is one of the empty name, or of no environment.
func (k Kind) root() string {
	root, _, named := strings.Cut(k.At, "//")
	if !named {
		return k.At
	}
	return root + "/"
}

// rootsOf lists the prefixes below which the names of environments are.
func rootsOf(env func(model.Ref) []Kind) (roots []string) {
	for _, kind := range env(model.Ref{}) {
		roots = append(roots, kind.root())
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// fewStrange is the number of keys that are listed of one name that is none of an environment.
const fewStrange = 5

// unreadableOfNone lists the keys of no environment that this program cannot read.
func (s search) unreadableOfNone(ctx context.Context, listed []Kind) (all []Unreadable, err error) {
	for _, kind := range listed {
		if err == nil && kind.Read != nil {
			err = s.db.Scan(ctx, kind.At, func(rest string, kv *etcd.KV) error {
				problem := etcd.ErrNotOurs
				if etcd.IsSegment(rest) == kind.Many() {
					problem = kind.Read(rest, kv)
				}
				if problem != nil {
					all = append(all, s.found(kv, "", problem))
				}
				return nil
			})
		}
	}
	return all, etcd.Wrap(err, "cannot look for unreadable keys of the fleet")
}
