package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/facts"
	"pulley/internal/machines"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
	"pulley/internal/rollout"
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

// KindOf returns the first part of a key, or the first part below its environment.
func KindOf(key string) (env, kind string) { return etcd.KindOf(key) }

// mostRuns is the number of run records of an environment up to which Unreadable decodes them: those of a large fleet have gigabytes, and
// `pulley runs` names what it cannot read.
const mostRuns = 5000

func (s *Fleet) unreadable(kv *etcd.KV, node string, err error) Unreadable {
	u := Unreadable{Key: string(kv.Key), Problem: err.Error(), Node: node, revision: kv.ModRevision}
	if named := new(etcd.UnreadableError); errors.As(err, &named) {
		u.Problem, u.Newer = named.Problem, named.Newer
	}
	k := s.db.Keys
	u.OfUser = slices.ContainsFunc([]string{k.AllIdentities(), k.AllPrecreated(), k.Operators()}, func(p string) bool { return strings.HasPrefix(u.Key, p) })
	return u
}

// Unreadable lists the keys of an environment that this program cannot read, in order. It does not decode content, generations and layers
// of live data, whose bytes `pulley releases verify` checks.
func (s *Fleet) Unreadable(ctx context.Context, ref model.Ref) (all []Unreadable, err error) {
	k := s.db.Env(ref)
	known := map[string]bool{k.HostsHead(): true}
	prefixes := []string{k.Generations(), k.Layers()}
	add := func(kv *etcd.KV, node string, err error) { all = append(all, s.unreadable(kv, node, err)) }
	for key, read := range map[string]func(*etcd.KV) error{
		k.Spec(): func(kv *etcd.KV) error {
			_, err := decodeSpec(kv)
			return err
		},
		k.Statement(): func(kv *etcd.KV) error {
			st, err := trust.ParseStatement(kv.Value)
			if err == nil && st.Environment != ref.String() {
				err = fmt.Errorf("it is no statement of %s", ref)
			}
			return err
		},
		k.Gate(): decodes[model.Gate], k.Job(): decodes[model.LiveJob], k.DataHead(): decodes[dataHead], k.AgentChoice(): decodes[desired.AgentWish],
		k.Applying(): decodes[etcd.LockHolder], k.Provisioning(): decodes[Provisioning], k.Former(): decodes[Former],
	} {
		known[key] = true
		if err == nil {
			_, err = s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: key, Read: func(kv *etcd.KV) error {
				if problem := read(kv); problem != nil {
					add(kv, "", problem)
				}
				return nil
			}})
		}
	}
	for _, p := range []struct {
		prefix string
		read   func(rest string, kv *etcd.KV) error
		node   bool // the rest of the key is a name of a node or a machine
	}{
		{k.Desired(), scoped[model.Target]("default"), false}, {k.Holds(), scoped[model.Hold]("all"), false},
		{k.History(), func(_ string, kv *etcd.KV) error {
			var c Change
			if err := etcd.Into(&c)(kv); err != nil || string(kv.Key) == k.Change(c.Epoch) {
				return err
			}
			return fmt.Errorf("it is the change of epoch %d", c.Epoch)
		}, false},
		{k.Permits(), func(_ string, kv *etcd.KV) error {
			record, _ := trust.Split(kv.Value)
			p, err := trust.ParsePermit(record)
			if err == nil && (p.Environment != ref.String() || string(kv.Key) != k.Permit(model.Epoch(p.Epoch))) {
				err = errors.New("it is the permit of another environment or epoch")
			}
			return err
		}, false},
		{k.Campaigns(), campaignPart, false}, {k.Acts(), valued[machines.Act], false}, {k.Recipients(), valued[Recipients], false},
		{k.Assignment(""), valued[model.Assignment], true}, {k.PreviewOrders(), valued[model.PreviewOrder], true},
		{k.Exports(), valued[model.Export], true}, {k.Hosts(), valued[model.Host], true},
		{k.MachineRecords(), valued[machines.Record], true}, {k.Retirement(""), valued[model.Confirmation], true},
		{k.Statuses(), valued[model.Status], true}, {k.Identities(), valued[Identity], true},
		{k.Precreated(""), valued[Precreated], true}, {k.Presigned(""), valued[Presigned], true},
		{k.FirstBoots(), valued[FirstBoot], true}, {k.Past(""), valued[Past], true}, {k.Flood(""), valued[Flood], true}, {k.Lockout(""), valued[model.Lockout], true},
		{k.Cleanup(""), func(rest string, kv *etcd.KV) error {
			var c Cleanup
			if err := etcd.Into(&c)(kv); err != nil || c.Node == etcd.Unescape(rest) {
				return err
			}
			return errOfAnother
		}, true},
		{k.NodesFacts(), func(_ string, kv *etcd.KV) error {
			if err := etcd.CheckSize(string(kv.Key), kv.Value); err != nil {
				return err
			}
			_, err := facts.Decode(kv.Value)
			return err
		}, true},
	} {
		prefixes = append(prefixes, p.prefix)
		if err == nil {
			err = s.db.Scan(ctx, p.prefix, func(rest string, kv *etcd.KV) error {
				name := ""
				if p.node {
					name = etcd.Unescape(rest)
				}
				problem := p.read(rest, kv)
				if problem == nil && p.node && !etcd.IsSegment(rest) {
					problem = errNotOurs
				}
				if problem != nil {
					add(kv, name, problem)
				}
				return nil
			})
		}
	}
	if err == nil {
		err = s.db.Scan(ctx, k.Root(), func(_ string, kv *etcd.KV) error {
			key := string(kv.Key)
			if !known[key] && !slices.ContainsFunc(prefixes, func(p string) bool { return len(key) > len(p) && strings.HasPrefix(key, p) }) {
				add(kv, "", errNotOurs)
			}
			return nil
		}, clientv3.WithKeysOnly(), clientv3.WithLimit(2000))
	}
	if err == nil {
		err = s.unreadableRuns(ctx, k, add)
	}
	slices.SortFunc(all, func(a, b Unreadable) int { return strings.Compare(a.Key, b.Key) })
	return all, etcd.Wrap(err, "cannot look for unreadable keys of %s", ref)
}

// AllUnreadable lists the keys that this program cannot read, by environment, of every environment that any key names. Those of no environment
// are below the zero Ref, with a few of each name that is none of an environment. What could not be looked at is in unread.
func (s *Fleet) AllUnreadable(ctx context.Context) (all map[model.Ref][]Unreadable, unread map[model.Ref]error, err error) {
	all, unread = map[model.Ref][]Unreadable{}, map[model.Ref]error{}
	none := s.db.Keys.Env("")
	refs := map[model.Ref]bool{{}: true}
	for _, below := range []string{
		none.Root(), none.Statuses(), none.NodesRuns(), none.NodesFacts(), none.Identities(), none.Precreated(""), none.Cleanup(""), none.Presigned(""),
		none.FirstBoots(), none.Past(""), none.Flood(""), none.Lockout(""), none.Recipients(), none.Retirement(""),
	} {
		root := strings.TrimSuffix(below, "/")
		err := s.db.EachSegment(ctx, root, func(segment string, below bool) error {
			ref, err := model.ParseRef(etcd.Unescape(segment))
			if below && err == nil && etcd.IsSegment(segment) {
				refs[ref] = true
				return nil
			}
			strange, left := root+segment, 1
			if below {
				strange, left = strange+"/", fewStrange
			}
			return s.db.Scan(ctx, strange, func(_ string, kv *etcd.KV) error {
				all[model.Ref{}] = append(all[model.Ref{}], s.unreadable(kv, "", errNotOurs))
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
		read := s.Unreadable
		if ref == (model.Ref{}) {
			read = s.unreadableOfNone
		}
		found, err := read(ctx, ref)
		if errors.Is(err, model.ErrUnreachable) {
			return nil, nil, err
		} else if err != nil {
			unread[ref] = err
		}
		all[ref] = append(all[ref], found...)
	}
	return all, unread, nil
}

// fewStrange is the number of keys that are listed of one name that is none of an environment.
const fewStrange = 5

// unreadableOfNone lists the keys of no environment that this program cannot read. It does not decode content and deltas, whose bytes
// `pulley releases verify` checks.
func (s *Fleet) unreadableOfNone(ctx context.Context, _ model.Ref) (all []Unreadable, err error) {
	k, releases, tokens := s.db.Keys, release.In(s.db), &Tokens{s.db}
	token := func(_ string, kv *etcd.KV) error {
		_, err := tokens.decodeToken(kv)
		return err
	}
	for _, p := range []struct {
		key  string // or a prefix, which ends with a slash
		read func(rest string, kv *etcd.KV) error
	}{
		{k.Releases(), func(_ string, kv *etcd.KV) error {
			_, err := releases.DecodeRelease(kv)
			return err
		}},
		{k.AgentReleases(), func(_ string, kv *etcd.KV) error {
			_, err := releases.DecodeAgent(kv)
			return err
		}},
		{k.Installation(), func(_ string, kv *etcd.KV) error {
			_, err := installationID(kv)
			return err
		}},
		{k.Withdrawals(), valued[release.Withdrawal]}, {k.NodeTokens(), token}, {k.OperatorTokens(), token}, {k.Operators(), valued[OperatorIdentity]},
		{k.Notices(), valued[Notice]}, {k.Disk(), valued[Disk]}, {k.Backup(), valued[Backup]}, {k.Publishings(), valued[LockHolder]}, {k.Pruning(), valued[LockHolder]},
		{k.Certificate(""), valued[LockHolder]}, {k.AllDestroyed(), valued[Destruction]},
	} {
		if err == nil {
			err = s.db.Scan(ctx, p.key, func(rest string, kv *etcd.KV) error {
				problem := errNotOurs
				if etcd.IsSegment(rest) == strings.HasSuffix(p.key, "/") {
					problem = p.read(rest, kv)
				}
				if problem != nil {
					all = append(all, s.unreadable(kv, "", problem))
				}
				return nil
			})
		}
	}
	return all, etcd.Wrap(err, "cannot look for unreadable keys of the fleet")
}

// unreadableRuns looks at the run records of nodes, and at the answers to previews beside them.
func (s *Fleet) unreadableRuns(ctx context.Context, k etcd.EnvKeys, add func(*etcd.KV, string, error)) error {
	resp, err := s.db.Get(ctx, k.NodesRuns(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count > mostRuns {
		return err
	}
	return s.db.Scan(ctx, k.NodesRuns(), func(rest string, kv *etcd.KV) error {
		node, id, _ := strings.Cut(rest, "/")
		err := etcd.CheckSize(string(kv.Key), kv.Value)
		switch {
		case err != nil:
		case !etcd.IsSegment(node) || !etcd.IsSegment(id):
			err = errNotOurs
		case id == model.PreviewRun:
			_, err = model.DecodePreview(kv.Value)
		default:
			_, _, err = model.DecodeRun(kv.Value)
		}
		if err != nil {
			add(kv, etcd.Unescape(node), err)
		}
		return nil
	})
}

var (
	errNotOurs   = errors.New("it is not a key of Pulley, and is ignored")
	errOfAnother = errors.New("it is that of another node")
)

func decodes[T any](kv *etcd.KV) error { return etcd.Into(new(T))(kv) }

func valued[T any](_ string, kv *etcd.KV) error { return decodes[T](kv) }

// scoped returns the reader of a value of a scope.
func scoped[T any](all string) func(string, *etcd.KV) error {
	return func(rest string, kv *etcd.KV) error {
		if _, ok := etcd.ScopeOf(rest, all); !ok {
			return errNotOurs
		}
		return decodes[T](kv)
	}
}

// campaignPart reads a part of a staged rollout.
func campaignPart(rest string, kv *etcd.KV) error {
	id, part, _ := strings.Cut(rest, "/")
	switch kind, _, _ := strings.Cut(part, "/"); kind {
	case "plan":
		var p rollout.Plan
		if err := etcd.Into(&p)(kv); err != nil || p.ID == id {
			return err
		}
		return errors.New("it is the plan of another rollout or job")
	case "state":
		return decodes[rollout.State](kv)
	case "endings":
		return decodes[endings](kv)
	case "nodes":
		return decodes[chunk](kv)
	}
	return errNotOurs
}

// DeleteUnreadable deletes a key that this program cannot read, as Unreadable lists it. It returns ErrConflict if somebody wrote it since. A gate
// is not deleted: epochs would begin again. It gets that of the newest change, whose key names it.
func (s *Fleet) DeleteUnreadable(ctx context.Context, ref model.Ref, u Unreadable) error {
	k := s.db.Env(ref)
	b := etcd.If(etcd.Same(u.Key, u.revision))
	if u.Key == k.Gate() {
		newest, err := newestEpoch(ctx, s.db, k)
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
		b.Touch(s.db.Keys.Targets())
	}
	return etcd.Wrap(s.db.Commit(ctx, b), "cannot delete key %s", u.Key)
}
