package store

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/clip"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// booked is a machine record as it is stored. Off is the etcd revision at which its node last left the host list,
// while it retires. A later report of the node proves that its machine still runs.
type booked struct {
	machines.Record
	Off int64 `json:"off,omitempty"`
}

// forgetTries is the number of attempts when the node reports at the same moment.
const forgetTries = 10

// Put writes a node's machine record if the stored one is was (nil: none). Otherwise it returns ErrChanged. A record
// that is already stored is no error, because the answer to an earlier write may have been lost. If the claim of
// another machine replaces a retired one, Put also deletes the node's reports, like Drop.
func (a *Applying) Put(ctx context.Context, r machines.Record, was *machines.Record) error {
	return a.Order(ctx, r, was, machines.Token{})
}

// Order writes a node's machine record like Put, with the token of its userdata. The token admits one machine as that
// node. Order revokes the token of the previous record.
func (a *Applying) Order(ctx context.Context, r machines.Record, was *machines.Record, t machines.Token) error {
	err := a.rewrite(ctx, r.Node, func(now *booked, revision int64) ([]clientv3.Cmp, []clientv3.Op, error) {
		switch {
		case now.is(&r): // then its token is stored, too
			return a.putting(ctx, r, now, revision)
		case !now.is(was):
			return nil, nil, machines.ErrChanged
		}
		cmps, ops, err := a.putting(ctx, r, now, revision)
		if err != nil || t.ID == "" {
			return cmps, ops, err
		}
		guards, puts, err := a.lettingIn(ctx, r.Node, t)
		return append(cmps, guards...), append(ops, puts...), err
	})
	if err != nil {
		return fmt.Errorf("cannot write the record of the machine of %s: %w", r.Node, err)
	}
	return nil
}

func (a *Applying) putting(ctx context.Context, r machines.Record, now *booked, revision int64) (cmps []clientv3.Cmp, ops []clientv3.Op, err error) {
	next := booked{Record: clipped(r)}
	if now != nil && now.Phase == machines.Made && r.Phase == machines.Made && now.ID == r.ID {
		next.Joined = r.Joined || now.Joined // another client may have written it
	}
	if now != nil && now.Phase == machines.Retiring {
		switch r.Phase {
		case machines.Retiring:
			next.Off = now.Off
		case machines.Making:
			if cmps, ops, err = a.forgetting(ctx, *now); err != nil {
				return nil, nil, err
			}
		}
	}
	if now != nil && now.Token != next.Token {
		guards, puts, err := a.revoking(ctx, now.Record)
		if err != nil {
			return nil, nil, err
		}
		cmps, ops = append(cmps, guards...), append(ops, puts...)
	}
	value, err := etcd.Encode(next)
	key := a.machines.db.Keys.Env(a.ref.String()).MachineRecord(r.Node)
	return append(cmps, etcd.Same(key, revision)), append(ops, clientv3.OpPut(key, value)), err
}

// Drop deletes a node's machine record if it is was. Otherwise it returns ErrChanged. A missing record is no error.
// Drop also deletes the record's token if it is unused. For a retired node, it deletes the node's status, runs and
// facts, and only the acts remain. These reports stay if the node reported after it left the host list, or is on the
// list again: then it still runs.
func (a *Applying) Drop(ctx context.Context, was machines.Record) error {
	err := a.rewrite(ctx, was.Node, func(now *booked, revision int64) (cmps []clientv3.Cmp, ops []clientv3.Op, err error) {
		switch {
		case now == nil:
			return nil, nil, nil
		case !now.is(&was):
			return nil, nil, machines.ErrChanged
		case now.Phase == machines.Retiring:
			if cmps, ops, err = a.forgetting(ctx, *now); err != nil {
				return nil, nil, err
			}
		}
		guards, puts, err := a.dropping(ctx, now.Record)
		if err != nil {
			return nil, nil, err
		}
		cmps, ops = append(cmps, guards...), append(ops, puts...)
		key := a.machines.db.Keys.Env(a.ref.String()).MachineRecord(was.Node)
		return append(cmps, etcd.Same(key, revision)), append(ops, clientv3.OpDelete(key)), nil
	})
	if err != nil {
		return fmt.Errorf("cannot delete the record of the machine of %s: %w", was.Node, err)
	}
	return nil
}

// forgetting returns the operations that delete a retired node's reports, and the guards against a new report. It
// returns neither if the node still runs.
func (a *Applying) forgetting(ctx context.Context, now booked) ([]clientv3.Cmp, []clientv3.Op, error) {
	env, k := a.ref.String(), a.machines.db.Keys
	host, status := k.Env(env).Host(now.Node), k.Env(env).Status(now.Node)
	resp, err := a.machines.db.Txn(ctx, nil, []clientv3.Op{clientv3.OpGet(host, clientv3.WithKeysOnly()), clientv3.OpGet(status, clientv3.WithKeysOnly())}, nil)
	if err != nil {
		return nil, nil, err
	}
	listed, said := resp.Responses[0].GetResponseRange().Kvs, resp.Responses[1].GetResponseRange().Kvs
	if len(listed) > 0 || len(said) > 0 && now.Off != 0 && said[0].ModRevision > now.Off {
		return nil, nil, nil
	}
	saidAt := int64(0)
	if len(said) > 0 {
		saidAt = said[0].ModRevision
	}
	return []clientv3.Cmp{etcd.Same(host, 0), etcd.Same(status, saidAt)},
		[]clientv3.Op{clientv3.OpDelete(status), clientv3.OpDelete(k.Env(env).Runs(now.Node), clientv3.WithPrefix())}, nil
}

// off stores in the record of a retiring node, if any, that the node left the host list. fresh means that this call
// removed it. Otherwise off keeps the earlier revision.
func (a *Applying) off(ctx context.Context, node string, fresh bool) error {
	return a.rewrite(ctx, node, func(now *booked, revision int64) ([]clientv3.Cmp, []clientv3.Op, error) {
		if now == nil || now.Phase != machines.Retiring || now.Off != 0 && !fresh {
			return nil, nil, nil
		}
		key := a.machines.db.Keys.Env(a.ref.String()).MachineRecord(node)
		resp, err := a.machines.db.Get(ctx, key, clientv3.WithCountOnly())
		if err != nil {
			return nil, nil, err
		}
		now.Off = resp.Header.Revision
		value, err := etcd.Encode(*now)
		return []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, value)}, err
	})
}

// rewrite reads a node's record, calls change for the new contents, and writes them. It retries when a compared key
// was written at the same moment.
func (a *Applying) rewrite(ctx context.Context, node string, change func(now *booked, revision int64) ([]clientv3.Cmp, []clientv3.Op, error)) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	for try := 0; ; try++ {
		now, revision, err := etcd.Single[booked](ctx, a.machines.db, a.machines.db.Keys.Env(a.ref.String()).MachineRecord(node))
		if err != nil {
			return a.ended(err)
		}
		cmps, ops, err := change(now, revision)
		if err != nil {
			return a.ended(err)
		}
		_, err = a.write(ctx, cmps, ops...)
		if !errors.Is(err, machines.ErrChanged) || try == forgetTries {
			return err
		}
	}
}

// is reports whether the stored record is r. It compares the stored form: a time in memory and a long problem differ
// from it. It ignores Joined, which a removal from the host list also writes.
func (b *booked) is(r *machines.Record) bool {
	if b == nil || r == nil {
		return b == nil && r == nil
	}
	have, want := clipped(b.Record), clipped(*r)
	have.Joined = want.Joined
	x, errX := etcd.Encode(have)
	y, errY := etcd.Encode(want)
	return errX == nil && errY == nil && x == y
}

// clipped bounds text from outside. A provider's or node's answer may be as long as etcd accepts.
func clipped(r machines.Record) machines.Record {
	r.Problem = agent.Prose(clip.Text(string(r.Problem), maxWords))
	return r
}

// Record reads the machine record of a node. It returns nil if the node has none.
func (s *Machines) Record(ctx context.Context, ref environments.Ref, node string) (*machines.Record, error) {
	r, _, err := etcd.Single[machines.Record](ctx, s.db, s.db.Keys.Env(ref.String()).MachineRecord(node))
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of the machine of %s: %w", node, err)
	}
	return r, nil
}

// Records reads the machine records of an environment, by node. damaged names the unreadable ones.
func (s *Machines) Records(ctx context.Context, ref environments.Ref) (all map[string]machines.Record, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[machines.Record](ctx, s.db, s.db.Keys.Env(ref.String()).MachineRecords())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the machines of %s: %w", ref, err)
	}
	return all, damaged, nil
}
