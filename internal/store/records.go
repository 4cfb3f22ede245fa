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

// booked is a record as it is stored. Off is the revision of etcd by which its node was last taken off the list of hosts, while
// it retires: what a node says after that is the word of a machine that still runs.
type booked struct {
	machines.Record
	Off int64 `json:"off,omitempty"`
}

// forgetTries is how often a record is looked at again because its node said something at the same moment.
const forgetTries = 10

// Put writes a node's record, if what etcd has of it is was (nil: nothing); else ErrChanged. One that is written already is
// no error: the answer to the write before may have been lost. When the claim of another machine takes the place of a retired
// one, what the node said goes as with Drop.
func (a *Applying) Put(ctx context.Context, r machines.Record, was *machines.Record) error {
	return a.Order(ctx, r, was, machines.Token{})
}

// Order writes a node's record like Put, and with it the token of its userdata, which lets in one machine as that node; the
// token that the record had before is revoked.
func (a *Applying) Order(ctx context.Context, r machines.Record, was *machines.Record, t machines.Token) error {
	err := a.rewrite(ctx, r.Node, func(now *booked, revision int64) ([]clientv3.Cmp, []clientv3.Op, error) {
		switch {
		case now.is(&r): // and so its token is there
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
		next.Joined = r.Joined || now.Joined // somebody else may have written it
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

// Drop deletes a node's record if it is was; else ErrChanged. None is no error. Its token goes, if nobody used it. With a retired
// one goes what the node said, its status, runs and facts: what is left of it are the acts. Where it said something after it was
// taken off the list, or is on the list again, it is there still, and all of that stays.
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

// forgetting is what deletes what a retired node said, and the guard that it says nothing meanwhile; nothing of both where the
// node is there still.
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

// off notes in the record of a node that retires, if it has one, that the node is off the list by now. fresh is that this call
// took it off: one that found nothing there leaves what was noted before.
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

// rewrite reads a node's record, has change say what to write for it, and does that; again where anything that it compares was
// written at the same moment.
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

// is reports whether what is stored is r: as it is stored, not as a time is held in memory or a problem was told. That it has
// joined is also written by who takes it off the list of hosts, and does not count.
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

// clipped bounds what others said: a node's answer may be as long as etcd takes.
func clipped(r machines.Record) machines.Record {
	r.Problem = agent.Prose(clip.Text(string(r.Problem), maxWords))
	return r
}

// Record reads what Pulley remembers of the machine of a node; nil where it had none made.
func (s *Machines) Record(ctx context.Context, ref environments.Ref, node string) (*machines.Record, error) {
	r, _, err := etcd.Single[machines.Record](ctx, s.db, s.db.Keys.Env(ref.String()).MachineRecord(node))
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of the machine of %s: %w", node, err)
	}
	return r, nil
}

// Records reads what Pulley remembers of the machines of an environment, by node. Those that can't be read are named in
// damaged.
func (s *Machines) Records(ctx context.Context, ref environments.Ref) (all map[string]machines.Record, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[machines.Record](ctx, s.db, s.db.Keys.Env(ref.String()).MachineRecords())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the machines of %s: %w", ref, err)
	}
	return all, damaged, nil
}
