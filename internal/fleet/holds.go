package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Holds reads the holds of an environment. damaged names the unreadable ones.
func (s *Fleet) Holds(ctx context.Context, ref model.Ref) (holds map[etcd.Scope]model.Hold, damaged []string, err error) {
	k, unknown := s.db.Env(ref), []string{}
	holds = map[etcd.Scope]model.Hold{}
	damaged, err = etcd.Collect(ctx, s.db, k.Holds(), func(rest string, h model.Hold, _ int64) {
		if scope, ok := etcd.ScopeOf(rest, "all"); ok {
			holds[scope] = h
		} else {
			unknown = append(unknown, etcd.UnknownKey(k.Holds()+rest))
		}
	})
	return holds, append(damaged, unknown...), etcd.Wrap(err, "cannot list the holds of %s", ref)
}

// HoldOf reads a scope's own hold, and the revision for Hold. It is nil if there is none, or if it is unreadable.
func (s *Fleet) HoldOf(ctx context.Context, ref model.Ref, scope etcd.Scope) (*model.Hold, int64, error) {
	h, revision, err := etcd.Single[model.Hold](ctx, s.db, s.db.Env(ref).Hold(scope))
	if errors.As(err, new(*etcd.UnreadableError)) {
		err = nil
	}
	return h, revision, etcd.Wrap(err, "cannot read the hold of %s", scope)
}

// Hold sets a hold on a scope. It replaces the hold of that revision, 0 for none, and returns ErrConflict if the scope
// has another one. With lasts > 0 a lease of etcd ends it, which depends on no client's clock.
func (s *Fleet) Hold(ctx context.Context, ref model.Ref, scope etcd.Scope, h model.Hold, lasts time.Duration, revision int64) error {
	var opts []clientv3.OpOption
	if lasts > 0 {
		lease, err := s.db.Grant(ctx, lasts)
		if err != nil {
			return fmt.Errorf("cannot set a hold that ends: %w", err)
		}
		opts = append(opts, clientv3.WithLease(lease))
	}
	h.Scope = scope.Segment("all")
	key := s.db.Env(ref).Hold(scope)
	return etcd.Wrap(s.db.Commit(ctx, etcd.If(etcd.Same(key, revision)).Put(key, h, opts...)), "cannot hold %s", scope)
}

// HoldUnlessHeld sets a hold on a scope without a hold of its own, and reports whether it did. An operator's hold
// stays.
func (s *Fleet) HoldUnlessHeld(ctx context.Context, ref model.Ref, scope etcd.Scope, h model.Hold) (bool, error) {
	h.Scope = scope.Segment("all")
	_, err := s.db.Replace(ctx, s.db.Env(ref).Hold(scope), h, 0)
	if errors.Is(err, etcd.ErrConflict) {
		return false, nil
	}
	return err == nil, etcd.Wrap(err, "cannot hold %s", scope)
}

// Unhold removes a scope's hold. It returns ErrNotFound if there is none.
func (s *Fleet) Unhold(ctx context.Context, ref model.Ref, scope etcd.Scope) error {
	key := s.db.Env(ref).Hold(scope)
	err := s.db.Commit(ctx, etcd.If(etcd.Exists(key)).Delete(key))
	if errors.Is(err, etcd.ErrConflict) {
		err = etcd.ErrNotFound
	}
	return etcd.Wrap(err, "cannot end the hold on %s", scope)
}

// EndHolds corrects the holds of all environments after a restart of etcd: a starting member gives every lease its
// full time again. EndHolds removes holds whose end has passed, and gives the others a lease of the remaining time. It
// returns the number of removed holds.
func (s *Fleet) EndHolds(ctx context.Context, now time.Time) (ended int, err error) {
	environments, err := s.specs.List(ctx)
	if err != nil {
		return 0, err
	}
	var problems []error
	for _, env := range environments {
		err := s.db.Scan(ctx, s.db.Keys.Env(env).Holds(), func(_ string, kv *etcd.KV) error {
			removed, err := s.endHold(ctx, kv, now)
			if removed {
				ended++
			}
			return err
		})
		problems = append(problems, etcd.Wrap(err, "cannot end the holds of %s", env))
	}
	return ended, errors.Join(problems...)
}

// endHold removes a hold whose end has passed, and renews the lease of another one.
func (s *Fleet) endHold(ctx context.Context, kv *etcd.KV, now time.Time) (removed bool, err error) {
	var h model.Hold
	if etcd.Decode(string(kv.Key), kv.Value, &h) != nil || h.Until.IsZero() {
		return false, nil // lists of holds show an unreadable one
	}
	op := clientv3.OpDelete(string(kv.Key))
	left := h.Until.Sub(now)
	if left > 0 {
		lease, err := s.db.Grant(ctx, left)
		if err != nil {
			return false, fmt.Errorf("cannot renew the hold on %s: %w", h.Scope, err)
		}
		op = clientv3.OpPut(string(kv.Key), string(kv.Value), clientv3.WithLease(lease))
	}
	// A conflict means that an operator set or ended the hold at this moment, which counts.
	err = s.db.Commit(ctx, etcd.If(etcd.Same(string(kv.Key), kv.ModRevision)).Op(op))
	if errors.Is(err, etcd.ErrConflict) {
		return false, nil
	}
	return err == nil && left <= 0, etcd.Wrap(err, "cannot end the hold on %s", h.Scope)
}
