package records

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/etcd"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// booked is a machine record as it is stored. Off is the etcd revision at which its node last left the host list,
// while it retires. A later report of the node proves that its machine still runs.
type booked struct {
	machines.Record
	Off int64 `json:"off,omitempty"`
}

// Left is the machine record of a node that an operator removes, as access.RecordLeft: its machine joined. An interrupted apply may not
// have seen that, and the host list will no longer show it.
func Left(kv *etcd.KV) (any, error) {
	var b booked
	if err := etcd.Into(&b)(kv); err != nil || b.Phase != machines.Made || b.Joined {
		return nil, err
	}
	b.Joined = true
	return b, nil
}

// Away reports whether an apply retires the node of a machine record, or replaces its machine.
func Away(kv *etcd.KV) (bool, error) {
	var r machines.Record
	err := etcd.Into(&r)(kv)
	return err == nil && r.Away(), err
}

// Put writes a node's machine record if the stored one is was (nil: none). Otherwise it returns ErrChanged. A record
// that is already stored is no error, because the answer to an earlier write may have been lost. If the claim of
// another machine replaces a retired one, Put also deletes the node's reports, like Drop.
func (a *Applying) Put(ctx context.Context, r machines.Record, was *machines.Record) error {
	return a.Order(ctx, r, was, machines.Token{})
}

// Order writes a node's machine record like Put, with the token of its userdata. The token admits one machine as that
// node. Order revokes the token of the previous record.
func (a *Applying) Order(ctx context.Context, r machines.Record, was *machines.Record, t machines.Token) error {
	err := update(ctx, a, a.keys.MachineRecord(r.Node), func(now *booked, b *etcd.Batch) error {
		stored := now.is(&r) // then its token is stored, too
		if !stored && !now.is(was) {
			return machines.ErrChanged
		}
		err := a.putting(ctx, b, r, now)
		if err == nil && t.ID != "" && !stored {
			err = a.lettingIn(ctx, b, r.Node, t)
		}
		return err
	})
	return etcd.Wrap(err, "cannot write the record of the machine of %s", r.Node)
}

func (a *Applying) putting(ctx context.Context, b *etcd.Batch, r machines.Record, now *booked) error {
	next := booked{Record: clipped(r)}
	if now != nil && now.Phase == machines.Made && r.Phase == machines.Made && now.ID == r.ID {
		next.Joined = r.Joined || now.Joined // another client may have written it
	}
	if now != nil && now.Phase == machines.Retiring {
		switch r.Phase {
		case machines.Retiring:
			next.Off = now.Off
		case machines.Making:
			if err := a.forgetting(ctx, b, *now); err != nil {
				return err
			}
		}
	}
	if now != nil && now.Token != next.Token {
		t, key, err := a.unused(ctx, b, now.Record)
		if err != nil {
			return err
		}
		if t != nil {
			t.Revoked = &access.Revoked{At: a.now(), By: a.by, Why: "its machine is being replaced"}
			b.Put(key, t)
		}
	}
	b.Put(a.keys.MachineRecord(r.Node), next)
	return nil
}

// Drop deletes a node's machine record if it is was. Otherwise it returns ErrChanged. A missing record is no error.
// Drop also deletes the record's token if it is unused. For a retired node, it deletes the node's status, runs and
// facts, and only the acts remain. These reports stay if the node reported after it left the host list, or is on the
// list again: then it still runs. Drop contains no put: a full etcd accepts it.
func (a *Applying) Drop(ctx context.Context, was machines.Record) error {
	err := update(ctx, a, a.keys.MachineRecord(was.Node), func(now *booked, b *etcd.Batch) error {
		switch {
		case now == nil:
			return nil
		case !now.is(&was):
			return machines.ErrChanged
		case now.Phase == machines.Retiring:
			if err := a.forgetting(ctx, b, *now); err != nil {
				return err
			}
		}
		t, key, err := a.unused(ctx, b, now.Record)
		if t != nil {
			b.Delete(key)
		}
		b.Delete(a.keys.MachineRecord(was.Node))
		return err
	})
	return etcd.Wrap(err, "cannot delete the record of the machine of %s", was.Node)
}

// forgetting deletes a retired node's reports, guarded against a new report. It does nothing if the node still runs.
func (a *Applying) forgetting(ctx context.Context, b *etcd.Batch, now booked) error {
	host, status := a.keys.Host(now.Node), a.keys.Status(now.Node)
	read, exists := map[string]int64{}, func(*etcd.KV) error { return nil }
	_, err := a.db.Read(ctx, read, etcd.Point{Key: host, Read: exists}, etcd.Point{Key: status, Read: exists})
	if err != nil || read[host] != 0 || now.Off != 0 && read[status] > now.Off {
		return err
	}
	b.If(etcd.Unchanged(read)...).Delete(status).Op(clientv3.OpDelete(a.keys.Runs(now.Node), clientv3.WithPrefix()))
	return nil
}

// off stores in the record of a retiring node, if any, that the node left the host list. fresh means that this call
// removed it. Otherwise off keeps the earlier revision.
func (a *Applying) off(ctx context.Context, node string, fresh bool) error {
	key := a.keys.MachineRecord(node)
	return update(ctx, a, key, func(now *booked, b *etcd.Batch) error {
		if now == nil || now.Phase != machines.Retiring || now.Off != 0 && !fresh {
			return nil
		}
		resp, err := a.db.Get(ctx, key, clientv3.WithCountOnly())
		if err == nil {
			now.Off = resp.Header.Revision
			b.Put(key, now)
		}
		return err
	})
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
	r.Problem = model.Prose(clip.Text(string(r.Problem), maxWords))
	return r
}

// Record reads the machine record of a node. It returns nil if the node has none.
func (s *Machines) Record(ctx context.Context, ref model.Ref, node string) (*machines.Record, error) {
	r, _, err := etcd.Single[machines.Record](ctx, s.db, s.db.Env(ref).MachineRecord(node))
	return r, etcd.Wrap(err, "cannot read the record of the machine of %s", node)
}

// Records reads the machine records of an environment, by node. damaged names the unreadable ones.
func (s *Machines) Records(ctx context.Context, ref model.Ref) (all map[string]machines.Record, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[machines.Record](ctx, s.db, s.db.Env(ref).MachineRecords())
	return all, damaged, etcd.Wrap(err, "cannot list the machines of %s", ref)
}

// lettingIn stores the token of a machine's userdata. If this token exists already, an earlier write succeeded and only
// its answer was lost. Then the guards fail, and the record is read again.
func (a *Applying) lettingIn(ctx context.Context, b *etcd.Batch, node string, t machines.Token) error {
	found, err := a.machines.tokens.Find(ctx, t.ID)
	switch {
	case errors.As(err, new(*etcd.UnreadableError)), found != nil && found.Hash != t.Hash:
		return machines.ErrTokenTaken
	case err != nil:
		return err
	}
	return a.machines.tokens.Put(b, access.Token{
		ID: t.ID, Hash: t.Hash, Environment: a.ref.String(), Node: node, Uses: 1, Created: t.Created, Expires: t.Expires, By: a.by, Why: "pulley env apply",
	})
}

// unused returns the token of a node's record if it could still admit a machine, with its key, and guards the batch by
// its revision. It returns nil if the token was used, revoked, deleted, or belongs to another record.
func (a *Applying) unused(ctx context.Context, b *etcd.Batch, r machines.Record) (t *access.Token, key string, err error) {
	if r.Token == "" {
		return nil, "", nil
	}
	key = a.db.Keys.NodeToken(r.Token)
	resp, err := a.db.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, key, err
	}
	t, err = a.machines.tokens.DecodeToken(resp.Kvs[0])
	if err != nil || t.Revoked != nil || t.UsedUp() || t.Environment != a.ref.String() || t.Node != r.Node {
		return nil, key, nil //nolint:nilerr // an unreadable token admits no machine
	}
	b.If(etcd.Same(key, resp.Kvs[0].ModRevision))
	return t, key, nil
}
