package records

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// maxWords bounds the text in a machine record or an act that came from a node or a provider.
const maxWords = 512

// Acts that are kept for an environment: the newest, and all within the time over which a budget is counted.
const (
	actsKept   = 1000
	actsYoung  = time.Hour
	actsAtOnce = 64 // deletions with each new act
)

// Note stores an act. Repeated calls store it once. It also deletes old acts.
func (a *Applying) Note(ctx context.Context, act machines.Act) error {
	value, err := etcd.Encode(act)
	if err == nil {
		err = a.note(ctx, act, value)
	}
	return etcd.Wrap(a.ended(err), "cannot record the action on the machine of %s", act.Node)
}

func (a *Applying) note(ctx context.Context, act machines.Act, value string) error {
	key := a.keys.Act(actID(act, value))
	b := etcd.If().Op(clientv3.OpPut(key, value))
	resp, err := a.db.Run(ctx, etcd.If().Op(
		clientv3.OpGet(key, clientv3.WithCountOnly()),
		clientv3.OpGet(a.keys.Acts(), clientv3.WithPrefix(), clientv3.WithLimit(actsAtOnce), clientv3.WithKeysOnly()),
	))
	if err != nil {
		return err
	}
	stored, old := resp.Responses[0].GetResponseRange().Count > 0, resp.Responses[1].GetResponseRange()
	young := a.keys.Act(actTime(act.At.Add(-actsYoung)))
	for i, kv := range old.Kvs {
		if stored || int64(i) >= old.Count+1-actsKept || string(kv.Key) >= young {
			break
		}
		b.Delete(string(kv.Key))
	}
	return a.commit(ctx, b)
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
func (s *Machines) Acts(ctx context.Context, ref model.Ref, since time.Time) (all []machines.Act, damaged []string, err error) {
	from := actTime(since)
	err = s.db.Scan(ctx, s.db.Env(ref).Acts(), func(rest string, kv *etcd.KV) error {
		if rest < from { // not decoded: an unreadable old act must not stop a watch
			return nil
		}
		var act machines.Act
		if err := etcd.Decode(string(kv.Key), kv.Value, &act); err != nil {
			damaged = append(damaged, err.Error())
			return nil
		}
		all = append(all, act)
		return nil
	})
	return all, damaged, etcd.Wrap(err, "cannot list the actions on the machines of %s", ref)
}
