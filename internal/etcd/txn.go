package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Same guards that the key is unchanged since it was read at modRevision. Revision 0 means that the key did not exist.
func Same(key string, modRevision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", modRevision)
}

// Unchanged guards that all keys are unchanged since they were read, as Read returns their revisions.
func Unchanged(revisions map[string]int64) []clientv3.Cmp {
	guards := make([]clientv3.Cmp, 0, len(revisions))
	for key, revision := range revisions {
		guards = append(guards, Same(key, revision))
	}
	return guards
}

// Exists guards that the key exists.
func Exists(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
}

// NothingBelow guards that no key begins with prefix. For a range without keys etcd compares 0. For any other range it
// compares each key's revision, which is never 0.
func NothingBelow(prefix string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(prefix).WithPrefix(), "=", 0)
}

// NothingNewBelow guards that no key that begins with prefix was created after a revision.
func NothingNewBelow(prefix string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(prefix).WithPrefix(), "<", revision+1)
}

// MaxOps is etcd's default limit on the operations of one transaction.
const MaxOps = 128

// Batch is the guards and the writes of one transaction. It keeps an error of encoding until the transaction.
type Batch struct {
	guards []clientv3.Cmp
	ops    []clientv3.Op
	err    error
}

// If begins a batch that writes only if all guards are true.
func If(guards ...clientv3.Cmp) *Batch { return new(Batch).If(guards...) }

// If adds guards.
func (b *Batch) If(guards ...clientv3.Cmp) *Batch {
	b.guards = append(b.guards, guards...)
	return b
}

// Op adds operations.
func (b *Batch) Op(ops ...clientv3.Op) *Batch {
	b.ops = append(b.ops, ops...)
	return b
}

// Put writes a value in the form that Decode reads.
func (b *Batch) Put(key string, value any, opts ...clientv3.OpOption) *Batch {
	text, err := Encode(value)
	b.err = errors.Join(b.err, err)
	return b.Op(clientv3.OpPut(key, text, opts...))
}

// Delete deletes keys, which need not exist.
func (b *Batch) Delete(keys ...string) *Batch {
	for _, key := range keys {
		b.Op(clientv3.OpDelete(key))
	}
	return b
}

// Touch announces a change with an unguarded put. Readers use the key's ModRevision. A guard would make concurrent
// changes conflict.
func (b *Batch) Touch(key string) *Batch { return b.Op(clientv3.OpPut(key, touched)) }

// touched is the value of a key of which only the revision matters.
var touched = fmt.Sprintf(`{"v":%d}`, valueFormat)

// TouchBytes is the most that its value may have, also after a later format.
const TouchBytes = 16

// Run runs a batch. If a guard fails, it runs otherwise instead.
func (s *DB) Run(ctx context.Context, b *Batch, otherwise ...clientv3.Op) (*clientv3.TxnResponse, error) {
	if b.err != nil {
		return nil, b.err
	}
	return s.Txn(ctx, b.guards, b.ops, otherwise)
}

// Commit runs a batch. It returns ErrConflict if a guard fails. A batch without writes succeeds without a request.
func (s *DB) Commit(ctx context.Context, b *Batch) error {
	if len(b.ops) == 0 {
		return b.err
	}
	_, err := s.commit(ctx, b)
	return err
}

func (s *DB) commit(ctx context.Context, b *Batch) (revision int64, err error) {
	resp, err := s.Run(ctx, b)
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		return s.inForce(ctx, b, err)
	case err != nil:
		return 0, err
	case !resp.Succeeded:
		return 0, ErrConflict
	}
	return resp.Header.Revision, nil
}

// inForce reads a batch again whose answer was lost. It returns the revision if all its writes are in force. Otherwise the outcome stays
// unknown: a write that is still on its way may take effect later.
func (s *DB) inForce(ctx context.Context, b *Batch, unanswered error) (revision int64, err error) {
	reads := make([]clientv3.Op, 0, len(b.ops))
	for _, op := range b.ops {
		if !op.IsPut() && !op.IsDelete() || len(op.RangeBytes()) > 0 {
			return 0, unanswered
		}
		reads = append(reads, clientv3.OpGet(string(op.KeyBytes())))
	}
	resp, err := s.Txn(ctx, nil, reads, nil)
	if err != nil {
		return 0, unanswered
	}
	for i, op := range b.ops {
		kvs := resp.Responses[i].GetResponseRange().Kvs
		if op.IsDelete() && len(kvs) == 0 {
			continue
		}
		// All puts of a transaction have its revision.
		keeps := op.IsPut() && len(op.ValueBytes()) == 0 // of a Draft: no value of Pulley is empty
		if op.IsDelete() || len(kvs) == 0 || !keeps && string(kvs[0].Value) != string(op.ValueBytes()) || revision != 0 && kvs[0].ModRevision != revision {
			return 0, unanswered
		}
		revision = kvs[0].ModRevision
	}
	return cmp.Or(revision, resp.Header.Revision), nil
}

// Replace writes one value and returns the new revision. It returns ErrConflict if the key was written since revision.
func (s *DB) Replace(ctx context.Context, key string, value any, revision int64) (int64, error) {
	return s.commit(ctx, If(Same(key, revision)).Put(key, value))
}

// tries bounds Retry.
const tries = 100

// Retry repeats do while it returns ErrConflict and ctx has not ended.
func Retry(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		if err := do(); !errors.Is(err, ErrConflict) || ctx.Err() != nil || try == tries {
			return err
		}
	}
}

// Update reads a value, nil if there is none, and commits the writes that change adds to a batch. The batch is guarded
// by the revision of the value. Update repeats both after a conflict.
func Update[T any](
	ctx context.Context, s *DB, key string, commit func(context.Context, *Batch) error, change func(old *T, b *Batch) error,
) error {
	return Retry(ctx, func() error {
		old, revision, err := Single[T](ctx, s, key)
		if err != nil {
			return err
		}
		b := If(Same(key, revision))
		if err := change(old, b); err != nil {
			return err
		}
		return commit(ctx, b)
	})
}
