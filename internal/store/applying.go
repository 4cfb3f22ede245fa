package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

var (
	_ machines.Reader    = (*Applying)(nil)
	_ machines.Inventory = (*Applying)(nil)
	_ machines.Nodes     = (*Applying)(nil)
)

// Applying is an apply that is under way: the only one of its fleet, as long as its mark stands. All that it writes, it
// writes only then; what comes later is machines.ErrLost.
type Applying struct {
	lock *etcd.Lock
	FleetReader
	by string
}

// BeginApply takes the fleet for this apply alone, until Close or until etcd can't be reached for three quarters of a minute.
// While another one is under way it is refused with a *BusyError. The environment need not exist.
func (s *Machines) BeginApply(ctx context.Context, ref environments.Ref, by string) (*Applying, error) {
	return s.beginApply(ctx, ref, by, etcd.LockLasts)
}

func (s *Machines) beginApply(ctx context.Context, ref environments.Ref, by string, lasts time.Duration) (*Applying, error) {
	key := s.db.Keys.Env(ref.String()).Applying()
	l, holder, err := s.db.Lock(ctx, etcd.LockSpec{
		Key: func(string) string { return key }, Kind: etcd.LockApply, By: by, Lasts: lasts, Free: etcd.Same(key, 0), Rival: clientv3.OpGet(key),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot begin to apply %s: %w", ref, err)
	}
	if l == nil {
		return nil, &BusyError{Ref: ref, Holder: holder}
	}
	return &Applying{l, s.FleetReader(ref), by}, nil
}

// ApplyHolder reads who applies an environment; nil where nobody does.
func (s *Machines) ApplyHolder(ctx context.Context, ref environments.Ref) (*LockHolder, error) {
	holder, _, err := etcd.Single[LockHolder](ctx, s.db, s.db.Keys.Env(ref.String()).Applying())
	return holder, err
}

// BusyError is that somebody else applies an environment at this moment.
type BusyError struct {
	Ref    environments.Ref
	Holder etcd.LockHolder
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("cannot apply %s while %s", e.Ref, e.Holder)
}

// Hint says what to do.
func (e *BusyError) Hint() string {
	return lockHint
}

// Context ends with ctx, and when somebody else may apply this fleet: then its cause is machines.ErrLost. Whatever is asked
// of a provider is asked under it.
func (a *Applying) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.lock.Context(), func() { cancel(a.lost()) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}

// Close ends the apply: the next one can begin at once.
func (a *Applying) Close() error {
	lost := a.lock.Context().Err() != nil
	if err := a.lock.Close(); err != nil && !lost { // that it was lost was told to whoever wrote
		return err
	}
	return nil
}

// Ref is the fleet that is applied.
func (a *Applying) Ref() environments.Ref { return a.ref }

// lost is why nothing may be written any more.
func (a *Applying) lost() error {
	return fmt.Errorf("%w: %w", machines.ErrLost, context.Cause(a.lock.Context()))
}

// ended puts the loss of the mark in the place of what came of it.
func (a *Applying) ended(err error) error {
	if err != nil && a.lock.Context().Err() != nil && !errors.Is(err, machines.ErrLost) {
		return a.lost()
	}
	return err
}

// write is a transaction that is done only while the mark stands. When the mark is gone it is ErrLost; when another of the
// comparisons fails, ErrChanged.
func (a *Applying) write(ctx context.Context, cmps []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	cmps = append([]clientv3.Cmp{a.lock.Standing()}, cmps...)
	resp, err := a.machines.db.Txn(ctx, cmps, ops, []clientv3.Op{clientv3.OpGet(a.lock.Key(), clientv3.WithKeysOnly())})
	if err != nil {
		return nil, a.ended(err)
	}
	if resp.Succeeded {
		return resp, nil
	}
	if a.lock.Lost(resp.Responses[0].GetResponseRange().Kvs) {
		return nil, a.lost()
	}
	return nil, machines.ErrChanged
}

// stillOurs is a read that tells whether the mark stands, for what is done in more than one transaction.
func (a *Applying) stillOurs(ctx context.Context) error {
	_, err := a.write(ctx, nil)
	return err
}

// now is the time for what is written, to the second.
func (a *Applying) now() time.Time { return time.Now().UTC().Truncate(time.Second) }
