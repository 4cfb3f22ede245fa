package targets

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
)

// Data is one generation of an environment's live data, with the guard of a change.
type Data struct {
	hieradata.Generation
	Edit *Edit // what the next generation changes, for the history
	head dataHead
	rev  int64 // of the head

	recipients map[string]int64 // revisions by role: see Encrypted
}

// Encrypted makes the next generation conflict with a later change of recipients, to which secrets of its layers are encrypted: a
// rotation drops recipients that no stored secret uses.
func (d *Data) Encrypted(to Recipients) {
	if d.recipients == nil {
		d.recipients = map[string]int64{}
	}
	d.recipients[to.role] = to.revision
}

type dataHead struct {
	Newest model.Generation `json:"newest"`
}

// Generations lists the numbers of an environment's generations, highest first. A prune removes old ones.
func (s *Targets) Generations(ctx context.Context, ref model.Ref) ([]model.Generation, error) {
	var all []model.Generation
	k := s.db.Env(ref)
	err := s.db.Scan(ctx, k.Generations(), func(rest string, kv *etcd.KV) error {
		n, err := strconv.ParseInt(rest, 10, 64)
		if err != nil || k.Generation(model.Generation(n)) != string(kv.Key) {
			return etcd.NotOurs(kv)
		}
		all = append(all, model.Generation(n))
		return nil
	}, clientv3.WithKeysOnly(), clientv3.WithLimit(1000))
	slices.Reverse(all)
	return all, etcd.Wrap(err, "cannot list the data generations of %s", ref)
}

// InForce reads the default target of an environment; zero for none. It is one request.
func (s *Targets) InForce(ctx context.Context, ref model.Ref) (model.Target, error) {
	t, _, err := etcd.Single[model.Target](ctx, s.db, s.db.Env(ref).Target(etcd.Scope{}))
	if err != nil || t == nil {
		return model.Target{}, etcd.Wrap(err, "cannot read the target of %s", ref)
	}
	return *t, nil
}

// Data reads the generation of d's default target, on which a change is based. Without one it returns the zero
// generation.
func (s *Targets) Data(ctx context.Context, ref model.Ref, d Desires) (Data, error) {
	var data Data
	head, revision, err := etcd.Single[dataHead](ctx, s.db, s.db.Env(ref).DataHead())
	if err != nil {
		return Data{}, err
	}
	if head != nil {
		data.head, data.rev = *head, revision
	}
	if n := d.Default.Data; n > 0 {
		g, err := s.Generation(ctx, ref.String(), n)
		if err != nil {
			return Data{}, err
		}
		data.Generation = g.Generation
	}
	return data, nil
}

// ChangeData makes the next generation from data with these layers (canonical bytes; empty removes a layer). It
// becomes the data of the default target. One transaction writes the layers, the generation signed by a, its head, the
// target, the gate and the history record. Layers that are too many for it are written before.
func (s *Targets) ChangeData(ctx context.Context, ref model.Ref, d Desires, data Data, layers map[hieradata.Layer][]byte, a Author) (c Change, err error) {
	err = s.nextData(ctx, ref, data, layers, a, func(b *etcd.Batch, next model.Target) error {
		c, err = s.Change(ctx, b, ref, d, Change{Kind: DataChange, Before: d.Default, After: next.Overlay(d.Default), Edit: data.Edit}, a)
		return err
	})
	return c, err
}

// AddData makes the next generation as ChangeData does, and changes no target. It returns the generation as a target
// without a release. It returns ErrConflict if the targets changed since d was read.
func (s *Targets) AddData(ctx context.Context, ref model.Ref, d Desires, data Data, layers map[hieradata.Layer][]byte, a Author) (added model.Target, err error) {
	err = s.nextData(ctx, ref, data, layers, a, func(b *etcd.Batch, next model.Target) error {
		added = next
		b.If(etcd.Same(s.db.Env(ref).Gate(), d.GateRevision)).Touch(s.db.Keys.Targets()) // a prune in progress notices the layers
		return etcd.Wrap(s.db.Commit(ctx, b), "cannot write data generation %d of %s", next.Data, ref)
	})
	return added, err
}

// nextData makes the next generation. commit commits the batch, to which it may add: until it returns, no prune removes the layers.
func (s *Targets) nextData(ctx context.Context, ref model.Ref, data Data, layers map[hieradata.Layer][]byte, a Author, commit func(*etcd.Batch, model.Target) error) error {
	next, err := data.Next(layers, a.By, a.Why, a.At.UTC().Truncate(time.Second))
	if err != nil {
		return err
	}
	next.Environment = ref.String()
	next.Number = int64(data.head.Newest) + 1 // a rollback leaves newer generations behind; numbers are never reused
	switch height, err := s.DataHead(ctx, ref, a.At); {
	case err == nil && height.revision != data.rev:
		return etcd.ErrConflict
	case err == nil && height.Wrong():
		key := s.db.Env(ref).DataHead()
		if height.Newest > height.Head {
			key = s.db.Env(ref).Generation(height.Newest)
		}
		err = fmt.Errorf("its head in etcd is generation %d, and the newest is %d\nfind who wrote %s; `pulley recover -e %s` restores it",
			height.Head, height.Newest, key, ref)
		fallthrough
	case err != nil:
		return fmt.Errorf("cannot change the data of %s: %w", ref, err)
	}
	record, err := next.Encode()
	if err != nil {
		return err
	}
	document, err := a.Sign.Document(ctx, trust.Data, record)
	if err != nil {
		return fmt.Errorf("cannot sign data generation %d of %s: %w", next.Number, ref, err)
	}
	number := model.Generation(next.Number)
	k := s.db.Env(ref)
	b := etcd.If(etcd.Same(k.DataHead(), data.rev), etcd.Same(k.Generation(number), 0))
	for role, revision := range data.recipients {
		b.If(etcd.Same(k.Recipient(RecipientScope(role)), revision))
	}
	b.Put(k.DataHead(), dataHead{Newest: number}).Op(clientv3.OpPut(k.Generation(number), document))
	if puts := putLayers(k, layers); len(puts) == 1 {
		b.Op(puts[0]...)
	} else if len(puts) > 1 {
		l, err := release.PublishLock(ctx, s.db, a.By) // no prune removes the layers before the generation names them
		if err != nil {
			return err
		}
		defer l.Close()
		for _, batch := range puts {
			if _, err := s.db.Txn(ctx, nil, batch, nil); err != nil {
				return fmt.Errorf("cannot write the data layers of %s: %w", ref, err)
			}
		}
		b.If(l.Standing())
	}
	return commit(b, model.Target{Data: number, DataDigest: hieradata.Digest(record)})
}

// etcd's default limits of a transaction are 128 operations and 1.5 MiB.
const maxBatchLayers, maxBatchBytes = 100, 512 << 10

// putLayers returns the writes of layers, in batches for one transaction each. They need no guard: a layer is immutable and named by
// its hash.
func putLayers(k etcd.EnvKeys, layers map[hieradata.Layer][]byte) (batches [][]clientv3.Op) {
	var batch []clientv3.Op
	size := 0
	for _, layer := range slices.SortedFunc(maps.Keys(layers), hieradata.CompareLayers) {
		bytes := layers[layer]
		if len(bytes) == 0 {
			continue
		}
		if len(batch) == maxBatchLayers || size+len(bytes) > maxBatchBytes {
			batches, batch, size = append(batches, batch), nil, 0
		}
		batch, size = append(batch, clientv3.OpPut(k.Layer(hieradata.Digest(bytes)), string(bytes))), size+len(bytes)
	}
	if len(batch) > 0 {
		batches = append(batches, batch)
	}
	return batches
}

// DataHead is the head of an environment's data, after which the next generation has its number.
type DataHead struct {
	Head     model.Generation // in etcd; -1: unreadable
	Newest   model.Generation // that the head must have
	revision int64            // of the head
}

// Wrong reports whether somebody wrote the head without Pulley. A generation near the highest number would end all later
// changes, and one that exists already would refuse the next change.
func (h DataHead) Wrong() bool { return h.Head != h.Newest }

// DataHead compares the head of the data with the newest generation: of the history, or one that follows it without a gap. It
// ignores numbers that no change can have.
func (s *Targets) DataHead(ctx context.Context, ref model.Ref, now time.Time) (h DataHead, err error) {
	k := s.db.Env(ref)
	resp, err := s.db.Get(ctx, k.DataHead())
	if err != nil {
		return h, err
	}
	for _, kv := range resp.Kvs {
		var head dataHead
		if h.Head, h.revision = -1, kv.ModRevision; etcd.Into(&head)(kv) == nil {
			h.Head = max(head.Newest, -1)
		}
	}
	at := resp.Header.Revision
	history, err := s.past(ctx, ref.String(), Desires{Revision: at})
	if err != nil {
		return h, err
	}
	for _, t := range history.named(now) {
		h.Newest = max(h.Newest, t.Data)
	}
	for { // after a lost history
		resp, err := s.db.Get(ctx, k.Generation(h.Newest+1), clientv3.WithCountOnly(), clientv3.WithRev(at))
		if err != nil || resp.Count == 0 {
			return h, uncompacted(err)
		}
		h.Newest++
	}
}

// RecoverHead writes the head as it must be. It returns ErrConflict if the head changed since h was read.
func (s *Targets) RecoverHead(ctx context.Context, ref model.Ref, h DataHead) error {
	key := s.db.Env(ref).DataHead()
	err := s.db.Commit(ctx, etcd.If(etcd.Same(key, h.revision)).Put(key, dataHead{h.Newest}))
	return etcd.Wrap(err, "cannot restore the head of the data of %s", ref)
}

// SortedLayers lists the layers of the generation in the order of hieradata.CompareLayers.
func (d Data) SortedLayers() []hieradata.Layer {
	return slices.SortedFunc(maps.Keys(d.Layers), hieradata.CompareLayers)
}
