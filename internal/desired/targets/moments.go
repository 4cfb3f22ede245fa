package targets

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Moment is how far an etcd is: a later look that finds less shows that it went back in time.
type Moment struct {
	Revision int64            `json:"revision"` // of etcd, which only grows
	Reached  map[string]Reach `json:"reached"`  // by environment
}

// Reach is the newest change of an environment.
type Reach struct {
	Epoch  model.Epoch `json:"epoch"`
	Change string      `json:"change,omitempty"` // digest of its record, which never changes; "": there is none, or an unreadable one, which doctor deletes

	// Acts that raise no epoch: abort, pause, skip and hold.
	Rollout string `json:"rollout,omitempty"` // that owns it
	Acts    Acts   `json:"acts"`

	since int64  // revision at which its gate was created
	then  *Acts  // as etcd has them at the revision of an earlier moment; nil: it does not know any more
	kept  string // digest of the record that the change of an earlier moment has now
}

// Acts are the ModRevisions of the keys that operators write without a new epoch.
type Acts struct {
	Gate  int64 `json:"gate,omitempty"`
	State int64 `json:"state,omitempty"` // of the rollout; 0: not read yet
	Hold  int64 `json:"hold,omitempty"`  // the newest
	Holds int64 `json:"holds,omitempty"` // how many there are
}

// environmentsAtOnce is the number of environments in one transaction of Moment: five reads of each.
const environmentsAtOnce = 24

// Moment reads how far etcd is, all at one revision. It leaves out an environment without a gate, or with an unreadable one.
func (s *Targets) Moment(ctx context.Context, refs []model.Ref, before Moment) (Moment, error) {
	now := Moment{Reached: map[string]Reach{}}
	for part := range slices.Chunk(refs, environmentsAtOnce) {
		var ops []clientv3.Op
		at := clientv3.WithRev(now.Revision) // 0, the newest, for the first part
		for _, ref := range part {
			k := s.db.Env(ref)
			was := before.Reached[ref.String()]
			ops = append(append(ops, readActs(k, was, at)...), clientv3.OpGet(k.Change(was.Epoch), at), clientv3.OpGet(k.History(), append(clientv3.WithLastKey(), at)...))
		}
		resp, err := s.db.Txn(ctx, nil, ops, nil)
		if err != nil {
			return now, etcd.Wrap(err, "cannot see whether etcd went back in time")
		}
		now.Revision = cmp.Or(now.Revision, resp.Header.Revision)
		then, err := s.actsAt(ctx, part, before)
		if err != nil {
			return now, etcd.Wrap(err, "cannot see whether etcd went back in time")
		}
		for i, ref := range part {
			var gate model.Gate
			all := resp.Responses[5*i : 5*i+5]
			kvs := all[0].GetResponseRange().Kvs
			if len(kvs) == 0 || etcd.Into(&gate)(kvs[0]) != nil {
				continue
			}
			r := Reach{Epoch: gate.Epoch, Rollout: gate.Rollout, Acts: actsIn(all), since: kvs[0].CreateRevision}
			if was := before.Reached[ref.String()]; was.Rollout != r.Rollout {
				r.Acts.State = 0 // it is of the rollout before
			}
			if then != nil {
				r.then = &then[i]
			}
			if kvs := all[3].GetResponseRange().Kvs; len(kvs) > 0 {
				r.kept = digestOf(kvs[0].Value)
			}
			if kvs := all[4].GetResponseRange().Kvs; len(kvs) > 0 && string(kvs[0].Key) == s.db.Env(ref).Change(gate.Epoch) && etcd.Into(new(Change))(kvs[0]) == nil {
				r.Change = digestOf(kvs[0].Value)
			}
			now.Reached[ref.String()] = r
		}
	}
	return now, nil
}

func readActs(k etcd.EnvKeys, was Reach, more ...clientv3.OpOption) []clientv3.Op {
	newest := append(slices.Clone(more), clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))
	return []clientv3.Op{
		clientv3.OpGet(k.Gate(), more...),
		clientv3.OpGet(k.CampaignState(was.Rollout), append(slices.Clone(more), clientv3.WithKeysOnly())...),
		clientv3.OpGet(k.Holds(), newest...),
	}
}

func actsIn(all []*etcdserverpb.ResponseOp) Acts {
	revision := func(i int) int64 {
		if kvs := all[i].GetResponseRange().Kvs; len(kvs) > 0 {
			return kvs[0].ModRevision
		}
		return 0
	}
	return Acts{Gate: revision(0), State: revision(1), Hold: revision(2), Holds: all[2].GetResponseRange().Count}
}

// actsAt reads what etcd now says that it had at an earlier moment; nil if it does not know. Its past changes only if it went back in time, and new
// writes have the revisions of lost ones.
func (s *Targets) actsAt(ctx context.Context, refs []model.Ref, before Moment) ([]Acts, error) {
	if before.Revision == 0 {
		return nil, nil
	}
	var ops []clientv3.Op
	for _, ref := range refs {
		ops = append(ops, readActs(s.db.Env(ref), before.Reached[ref.String()], clientv3.WithRev(before.Revision))...)
	}
	resp, err := s.db.Txn(ctx, nil, ops, nil)
	if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrFutureRev) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	then := make([]Acts, len(refs))
	for i := range refs {
		then[i] = actsIn(resp.Responses[3*i : 3*i+3])
	}
	return then, nil
}

// lost reports whether acts of an earlier moment are gone: they were otherwise at that moment, or the keys are older now.
func (r Reach) lost(was Reach) bool {
	if r.then != nil {
		then := *r.then
		if was.Acts.State == 0 {
			then.State = 0
		}
		return then != was.Acts
	}
	return r.Acts.Gate < was.Acts.Gate || r.Rollout == was.Rollout && r.Acts.State < was.Acts.State
}

// SameActs reports whether no operator acted between two moments of an environment. Serve itself takes the steps of a rollout.
func (r Reach) SameActs(other Reach) bool {
	a, b := r.Acts, other.Acts
	a.State, b.State = 0, 0
	return a == b
}

func digestOf(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// Behind returns the environments that are before an earlier moment, although they were there then: all, if etcd itself is.
func (m Moment) Behind(before Moment) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m.Reached)) {
		now, was := m.Reached[name], before.Reached[name]
		switch {
		case m.Revision < before.Revision:
		case was.Epoch == 0 || now.since > before.Revision: // it is new, or was made again
			continue
		case now.lost(was):
		case now.Epoch >= was.Epoch && (was.Change == "" || now.kept == was.Change || now.kept == "" && now.Epoch > was.Epoch+HistoryKept): // serve deletes old changes
			continue
		}
		names = append(names, name)
	}
	return names
}

// GoneBack marks an environment whose etcd was seen to be farther: as Anchor does after a restore. It does nothing, and returns 0, if
// that was done since then, by `pulley restore`, by an operator or by another serve.
func (s *Targets) GoneBack(ctx context.Context, ref model.Ref, before Moment, a Author) (epoch model.Epoch, err error) {
	err = etcd.Retry(ctx, func() error {
		if marked, err := s.Rewound(ctx, ref); err != nil || marked {
			return err
		}
		epoch, err = s.anchor(ctx, ref, before.Reached[ref.String()].Epoch, a)
		return err
	})
	return epoch, err
}

// Rewound reports whether etcd went back in time, or was restored from a backup, and no operator continued an environment since then.
// Nothing but operators may change its nodes until then: what etcd has of them is old.
func (s *Targets) Rewound(ctx context.Context, ref model.Ref) (bool, error) {
	k := s.db.Env(ref)
	gate, _, err := etcd.Single[model.Gate](ctx, s.db, k.Gate())
	if err != nil || gate == nil || gate.State == model.GateOpen || gate.Rollout != "" {
		return false, err
	}
	c, _, err := etcd.Single[Change](ctx, s.db, k.Change(gate.Epoch))
	return err == nil && c != nil && c.Kind == Restored, err
}
