// Package records stores the machines that Pulley creates, and what it did with them. All writes need the lock of an
// apply, except that of a removal, which marks a machine as joined.
//
// It must never decide what becomes of a machine: package plan does.
package records

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/release"
	"pulley/internal/rollout/journal"
)

// Machines stores the machines that Pulley creates. One apply at a time may change them.
type Machines struct {
	db      *etcd.DB
	targets *targets.Targets
	fleet   *fleet.Fleet
	access  *access.Access
	tokens  *access.Tokens
	joins   *access.Joins
	notices *notify.Notices

	campaigns *journal.Campaigns
}

// In returns the machines of a fleet.
func In(db *etcd.DB) *Machines {
	return &Machines{db, targets.In(db), fleet.In(db), access.In(db), access.TokensIn(db), access.JoinsIn(db), notify.NoticesIn(db), journal.In(db)}
}

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
func (s *Machines) BeginApply(ctx context.Context, ref model.Ref, by string) (*Applying, error) {
	return s.beginApply(ctx, ref, by, etcd.LockLasts)
}

func (s *Machines) beginApply(ctx context.Context, ref model.Ref, by string, lasts time.Duration) (*Applying, error) {
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
func (s *Machines) ApplyHolder(ctx context.Context, ref model.Ref) (*etcd.LockHolder, error) {
	holder, _, err := etcd.Single[etcd.LockHolder](ctx, s.db, s.db.Keys.Env(ref.String()).Applying())
	return holder, err
}

// BusyError means that another apply of the environment is in progress.
type BusyError struct {
	Ref    model.Ref
	Holder etcd.LockHolder
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("cannot apply %s while %s", e.Ref, e.Holder)
}

// Hint returns the remedy.
func (e *BusyError) Hint() string {
	return release.LockHint
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
func (a *Applying) Ref() model.Ref { return a.ref }

// lost returns the reason why writes are no longer allowed.
func (a *Applying) lost() error {
	return fmt.Errorf("%w: %w", machines.ErrLost, context.Cause(a.lock.Context()))
}

// ended returns the loss of the lock if it is lost, and ErrChanged instead of a conflict.
func (a *Applying) ended(err error) error {
	switch {
	case err == nil || errors.Is(err, machines.ErrLost):
		return err
	case a.lock.Context().Err() != nil:
		return a.lost()
	case errors.Is(err, etcd.ErrConflict):
		return machines.ErrChanged
	}
	return err
}

// run runs a batch while the lock is held. It returns ErrLost without the lock, and ErrConflict if another guard fails.
func (a *Applying) run(ctx context.Context, b *etcd.Batch) (*clientv3.TxnResponse, error) {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	resp, err := a.db.Run(ctx, b.If(a.lock.Standing()), clientv3.OpGet(a.lock.Key(), clientv3.WithKeysOnly()))
	switch {
	case err != nil:
		return nil, a.ended(err)
	case resp.Succeeded:
		return resp, nil
	case a.lock.Lost(resp.Responses[0].GetResponseRange().Kvs):
		return nil, a.lost()
	}
	return nil, etcd.ErrConflict
}

func (a *Applying) commit(ctx context.Context, b *etcd.Batch) error {
	_, err := a.run(ctx, b)
	return err
}

// update is etcd.Update while the lock is held.
func update[T any](ctx context.Context, a *Applying, key string, change func(old *T, b *etcd.Batch) error) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	return a.ended(etcd.Update(ctx, a.db, key, a.commit, change))
}

// stillOurs reads whether the lock is held, for work of more than one transaction.
func (a *Applying) stillOurs(ctx context.Context) error { return a.commit(ctx, etcd.If()) }

// now is the time of writes, to the second.
func (a *Applying) now() time.Time { return a.db.Now().UTC().Truncate(time.Second) }

// PutSpec stores the environment and returns its revision. If the environment was written since revision, it returns
// ErrChanged. It does not rewrite an equal environment: joins compare its revision.
func (a *Applying) PutSpec(ctx context.Context, e *environments.Environment, revision int64) (int64, error) {
	fail := func(err error) (int64, error) {
		return 0, fmt.Errorf("cannot store environment %s: %w", e.Ref(), a.ended(err))
	}
	if e.Ref() != a.ref {
		return fail(fmt.Errorf("this is an apply of %s", a.ref))
	}
	text, err := environments.Encode(e)
	if err != nil {
		return 0, err
	}
	resp, err := a.db.Get(ctx, a.keys.Spec())
	if err != nil {
		return fail(err)
	}
	before, err := a.machines.destruction(ctx, a.ref)
	if err == nil && before.Unfinished {
		err = fmt.Errorf("%w\nrun `pulley env destroy %s` again: the rest of the old environment would become part of this one", machines.ErrDestroying, a.ref)
	}
	if err != nil {
		return fail(err)
	}
	b := etcd.If(etcd.Same(a.keys.Spec(), revision))
	same := len(resp.Kvs) > 0 && bytes.Equal(resp.Kvs[0].Value, text)
	if !same {
		b.Op(clientv3.OpPut(a.keys.Spec(), string(text)))
		for _, kv := range resp.Kvs {
			if old, bad := environments.Decode(kv.Value); bad == nil { // an unreadable one names no Puppet servers
				err = access.KeepFormer(ctx, a.db, b, old, e, resp.Header.Revision)
			}
		}
		if err == nil && len(resp.Kvs) == 0 && before.Epoch > 0 {
			err = a.recreate(ctx, b, before)
		}
		if err != nil {
			return fail(err)
		}
	}
	done, err := a.run(ctx, b)
	switch {
	case err != nil:
		return fail(err)
	case same:
		return revision, nil
	}
	return done.Header.Revision, nil
}

// recreate lets the epochs of an environment follow those of a destroyed one, unless it has epochs already.
func (a *Applying) recreate(ctx context.Context, b *etcd.Batch, before Destruction) error {
	begun, err := a.db.Exists(ctx, a.keys.Gate())
	if err != nil || begun {
		return err
	}
	c := targets.Change{Epoch: before.Epoch + 1, Kind: targets.Recreated, By: a.by, At: a.now()}
	b.If(etcd.Same(a.keys.Gate(), 0)).Put(a.keys.Gate(), model.Gate{Epoch: c.Epoch, State: model.GateOpen, By: a.by, At: c.At}).
		Put(a.keys.Change(c.Epoch), c).Touch(a.db.Keys.Targets())
	return nil
}

// Hold prevents Puppet runs of a node until the node is removed or the hold ends. It replaces an operator's own hold,
// which may end too early. The new hold keeps the author and reason of the old one.
func (a *Applying) Hold(ctx context.Context, node string, h model.Hold) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	scope := etcd.Scope{Node: node}
	key := a.keys.Hold(scope)
	h.Scope = scope.Segment("all")
	err := etcd.Retry(ctx, func() error {
		old, revision, err := etcd.Single[model.Hold](ctx, a.db, key)
		if err != nil && !errors.As(err, new(*etcd.UnreadableError)) { // an unreadable hold must not block this one
			return err
		}
		h.Replaced = replaced(old)
		return a.commit(ctx, etcd.If(etcd.Same(key, revision)).Put(key, h))
	})
	return etcd.Wrap(a.ended(err), "cannot hold %s", scope)
}

// replaced returns the operator's hold that a retirement's hold replaces. An apply that resumes replaces its own
// earlier hold: then it is the hold that the earlier one replaced.
func replaced(old *model.Hold) *model.Hold {
	if old == nil || old.Kind == model.RetirementHold && old.Replaced == nil {
		return nil
	}
	if old.Kind == model.RetirementHold {
		old = old.Replaced
	}
	before := *old
	before.Why, before.Replaced = model.Prose(clip.Text(string(before.Why), maxWords)), nil
	return &before
}

// Release ends a retirement's hold on a node, while the lock is held. An operator's own hold stays.
func (a *Applying) Release(ctx context.Context, node string) error {
	key := a.keys.Hold(etcd.Scope{Node: node})
	err := update(ctx, a, key, func(h *model.Hold, b *etcd.Batch) error {
		if h != nil && h.Kind == model.RetirementHold {
			b.Delete(key)
		}
		return nil
	})
	return etcd.Wrap(err, "cannot end the hold of node %s", node)
}

// Ask is Fleet.Request while the lock is held. The transaction of a request to retire also confirms it, which with etcd
// authentication needs an admin. A request that cancels a retirement deletes the confirmation. An operator cannot
// delete it: then EndRetirements does.
func (a *Applying) Ask(ctx context.Context, node string, r model.Request) error {
	key, withdraw := a.keys.Retirement(node), true
	confirm := func(h model.Host, b *etcd.Batch) error { // an apply knows its own retirements
		switch {
		case r.Do == model.RequestRetire:
			b.Put(key, model.Confirmation{ID: r.ID, MachineID: h.MachineID})
		case h.Retires() && withdraw:
			b.Delete(key)
		}
		return nil
	}
	err := a.machines.fleet.Ask(ctx, a.ref, node, r, a.commit, confirm)
	if r.Do != model.RequestRetire && errors.Is(err, rpctypes.ErrPermissionDenied) {
		withdraw = false
		err = a.machines.fleet.Ask(ctx, a.ref, node, r, a.commit, confirm)
	}
	return etcd.Wrap(a.ended(err), "cannot ask node %s", node)
}

// Remove removes a node from the fleet, like RemoveNode. A missing node is no error.
func (a *Applying) Remove(ctx context.Context, node, why string) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	if err := a.stillOurs(ctx); err != nil {
		return fmt.Errorf("cannot remove node %s: %w", node, err)
	}
	err := a.machines.joins.RemoveNode(ctx, a.ref, node, access.Removal{At: a.now(), By: a.by, Why: model.Prose(why)}, Left)
	gone := errors.Is(err, etcd.ErrNotFound)
	if err != nil && !gone {
		return a.ended(err)
	}
	return etcd.Wrap(a.off(ctx, node, !gone), "cannot remove node %s", node)
}
