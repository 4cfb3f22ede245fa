package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
)

// Moment is how far an etcd is: a later look that finds less shows that it went back in time.
type Moment struct {
	Revision int64            `json:"revision"` // of etcd, which only grows
	Reached  map[string]Reach `json:"reached"`  // by environment
}

// Reach is the newest change of an environment.
type Reach struct {
	Epoch  agent.Epoch `json:"epoch"`
	Change string      `json:"change,omitempty"` // digest of its record, which never changes; "": there is none

	since int64  // revision at which its gate was created
	kept  string // digest of the record that the change of an earlier moment has now
}

// environmentsAtOnce is the number of environments in one transaction of Moment: three reads of each.
const environmentsAtOnce = 40

// Moment reads how far etcd is. It leaves out an environment without a gate, or with an unreadable one.
func (s *Targets) Moment(ctx context.Context, refs []environments.Ref, before Moment) (Moment, error) {
	now := Moment{Reached: map[string]Reach{}}
	for part := range slices.Chunk(refs, environmentsAtOnce) {
		var ops []clientv3.Op
		for _, ref := range part {
			k := s.db.Env(ref)
			ops = append(ops, clientv3.OpGet(k.Gate()), clientv3.OpGet(k.Change(before.Reached[ref.String()].Epoch)),
				clientv3.OpGet(k.History(), clientv3.WithLastKey()...))
		}
		resp, err := s.db.Txn(ctx, nil, ops, nil)
		if err != nil {
			return now, etcd.Wrap(err, "cannot see whether etcd went back in time")
		}
		now.Revision = resp.Header.Revision
		for i, ref := range part {
			var gate agent.Gate
			kvs := resp.Responses[3*i].GetResponseRange().Kvs
			if len(kvs) == 0 || etcd.Into(&gate)(kvs[0]) != nil {
				continue
			}
			r := Reach{Epoch: gate.Epoch, since: kvs[0].CreateRevision}
			if kvs := resp.Responses[3*i+1].GetResponseRange().Kvs; len(kvs) > 0 {
				r.kept = digestOf(kvs[0].Value)
			}
			if kvs := resp.Responses[3*i+2].GetResponseRange().Kvs; len(kvs) > 0 && string(kvs[0].Key) == s.db.Env(ref).Change(gate.Epoch) {
				r.Change = digestOf(kvs[0].Value)
			}
			now.Reached[ref.String()] = r
		}
	}
	return now, nil
}

func digestOf(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// Behind returns the environments that are before an earlier moment, although they were there then: all, if etcd itself is.
func (m Moment) Behind(before Moment) (environments []string) {
	for _, name := range slices.Sorted(maps.Keys(m.Reached)) {
		now, was := m.Reached[name], before.Reached[name]
		switch {
		case m.Revision < before.Revision:
		case was.Epoch == 0 || now.since > before.Revision: // it is new, or was made again
			continue
		case now.Epoch >= was.Epoch && (now.kept == was.Change || now.kept == "" && now.Epoch > was.Epoch+HistoryKept): // serve deletes old changes
			continue
		}
		environments = append(environments, name)
	}
	return environments
}

// GoneBack marks an environment whose etcd was seen to be farther: as Anchor does after a restore. It does nothing, and returns 0, if
// that was done since then, by `pulley restore`, by an operator or by another serve.
func (s *Targets) GoneBack(ctx context.Context, ref environments.Ref, before Moment, a Author) (epoch agent.Epoch, err error) {
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
func (s *Targets) Rewound(ctx context.Context, ref environments.Ref) (bool, error) {
	k := s.db.Env(ref)
	gate, _, err := etcd.Single[agent.Gate](ctx, s.db, k.Gate())
	if err != nil || gate == nil || gate.State == agent.GateOpen || gate.Rollout != "" {
		return false, err
	}
	c, _, err := etcd.Single[Change](ctx, s.db, k.Change(gate.Epoch))
	return err == nil && c != nil && c.Kind == Restored, err
}
