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

// Applying is an apply in progress: the only one of its fleet while its lock is held. It writes only while the lock is
// held. A later write returns machines.ErrLost.
type Applying struct {
	lock *etcd.Lock
	FleetReader
	by string
}

// BeginApply locks the fleet for this apply, until Close or until etcd is unreachable for 45 seconds. If another apply
// is in progress, it returns a *BusyError. The environment need not exist.
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

// ApplyHolder reads the holder of an environment's apply lock; nil if there is none.
func (s *Machines) ApplyHolder(ctx context.Context, ref environments.Ref) (*LockHolder, error) {
	holder, _, err := etcd.Single[LockHolder](ctx, s.db, s.db.Keys.Env(ref.String()).Applying())
	return holder, err
}

// BusyError means that another apply of the environment is in progress.
type BusyError struct {
	Ref    environments.Ref
	Holder etcd.LockHolder
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("cannot apply %s while %s", e.Ref, e.Holder)
}

// Hint returns the remedy.
func (e *BusyError) Hint() string {
	return lockHint
}

// Context ends with ctx, and when another apply may change this fleet. Then its cause is machines.ErrLost. Every
// request to a provider runs under this context.
func (a *Applying) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.lock.Context(), func() { cancel(a.lost()) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}

// Close ends the apply: the next one can begin at once.
func (a *Applying) Close() error {
	lost := a.lock.Context().Err() != nil
	if err := a.lock.Close(); err != nil && !lost { // the write that lost the lock has already returned the loss
		return err
	}
	return nil
}

// Ref returns the fleet of the apply.
func (a *Applying) Ref() environments.Ref { return a.ref }

// lost returns the reason why writes are no longer allowed.
func (a *Applying) lost() error {
	return fmt.Errorf("%w: %w", machines.ErrLost, context.Cause(a.lock.Context()))
}

// ended replaces err with the loss of the lock, if it is lost.
func (a *Applying) ended(err error) error {
	if err != nil && a.lock.Context().Err() != nil && !errors.Is(err, machines.ErrLost) {
		return a.lost()
	}
	return err
}

// write runs a transaction while the lock is held. It returns ErrLost without the lock, and ErrChanged if another
// comparison fails.
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

// stillOurs reads whether the lock is held, for work of more than one transaction.
func (a *Applying) stillOurs(ctx context.Context) error {
	_, err := a.write(ctx, nil)
	return err
}

// now is the time of writes, to the second.
func (a *Applying) now() time.Time { return time.Now().UTC().Truncate(time.Second) }
