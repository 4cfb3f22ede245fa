package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// maxWords bounds the text in a machine record or an act that came from a node or a provider.
const maxWords = 512

// Acts that are kept for an environment: the newest, and all within the time over which a budget is counted.
const (
	actsKept   = 1000
	actsYoung  = time.Hour
	actsAtOnce = 64 // deletions with each new act
)

// PutSpec stores the environment and returns its revision. If the environment was written since revision, it returns
// ErrChanged. It does not rewrite an equal environment: joins compare its revision.
func (a *Applying) PutSpec(ctx context.Context, e *environments.Environment, revision int64) (int64, error) {
	fail := func(err error) (int64, error) { return 0, fmt.Errorf("cannot store environment %s: %w", e.Ref(), err) }
	if e.Ref() != a.ref {
		return fail(fmt.Errorf("this is an apply of %s", a.ref))
	}
	b, err := environments.Encode(e)
	if err != nil {
		return 0, err
	}
	key := a.machines.db.Keys.Env(a.ref.String()).Spec()
	resp, err := a.machines.db.Get(ctx, key)
	if err != nil {
		return fail(a.ended(err))
	}
	if len(resp.Kvs) > 0 && resp.Kvs[0].ModRevision == revision && bytes.Equal(resp.Kvs[0].Value, b) {
		if err := a.stillOurs(ctx); err != nil {
			return fail(err)
		}
		return revision, nil
	}
	done, err := a.write(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, clientv3.OpPut(key, string(b)))
	if err != nil {
		return fail(err)
	}
	return done.Header.Revision, nil
}

// Note stores an act. Repeated calls store it once. It also deletes old acts.
func (a *Applying) Note(ctx context.Context, act machines.Act) error {
	fail := func(err error) error {
		return fmt.Errorf("cannot note what was done to the machine of %s: %w", act.Node, err)
	}
	value, err := etcd.Encode(act)
	if err != nil {
		return fail(err)
	}
	env := a.ref.String()
	key := a.machines.db.Keys.Env(env).Act(actID(act, value))
	ops := []clientv3.Op{clientv3.OpPut(key, value)}
	resp, err := a.machines.db.Txn(ctx, nil, []clientv3.Op{
		clientv3.OpGet(key, clientv3.WithCountOnly()),
		clientv3.OpGet(a.machines.db.Keys.Env(env).Acts(), clientv3.WithPrefix(), clientv3.WithLimit(actsAtOnce), clientv3.WithKeysOnly()),
	}, nil)
	if err != nil {
		return fail(a.ended(err))
	}
	old := resp.Responses[1].GetResponseRange()
	if resp.Responses[0].GetResponseRange().Count > 0 { // it is stored already, and nothing needs deletion
		old.Kvs = nil
	}
	young := a.machines.db.Keys.Env(env).Act(actTime(act.At.Add(-actsYoung)))
	for i, kv := range old.Kvs {
		if int64(i) >= old.Count+1-actsKept || string(kv.Key) >= young {
			break
		}
		ops = append(ops, clientv3.OpDelete(string(kv.Key)))
	}
	if _, err := a.write(ctx, nil, ops...); err != nil {
		return fail(err)
	}
	return nil
}

// actID is the same for equal acts, and sorts by time.
func actID(act machines.Act, value string) string {
	return fmt.Sprintf("%s-%x", actTime(act.At), sha256.Sum256([]byte(value)))[:25]
}

func actTime(at time.Time) string {
	if at.Before(time.Unix(0, 0)) {
		at = time.Unix(0, 0)
	}
	return fmt.Sprintf("%016x", at.UnixNano())
}

// Acts lists the acts on an environment's machines since a time, oldest first. damaged names the unreadable ones.
func (s *Machines) Acts(ctx context.Context, ref environments.Ref, since time.Time) (all []machines.Act, damaged []string, err error) {
	env := ref.String()
	prefix := s.db.Keys.Env(env).Acts()
	from := actTime(since)
	_, err = s.db.Pages(ctx, prefix, 500, func(rest string, b []byte) error {
		if strings.Compare(rest, from) < 0 {
			return nil
		}
		var act machines.Act
		if err := etcd.Decode(prefix+rest, b, &act); err != nil {
			damaged = append(damaged, err.Error())
			return nil
		}
		all = append(all, act)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list what was done to the machines of %s: %w", ref, err)
	}
	return all, damaged, nil
}
