package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Grant creates a lease, which ends its keys after a time. Etcd's own clock counts, and it stands still while etcd is
// down.
func (s *DB) Grant(ctx context.Context, lasts time.Duration) (clientv3.LeaseID, error) {
	id, _, err := s.grantFor(ctx, lasts)
	return id, err
}

// grantFor also returns the duration of the lease: etcd may grant more than was requested.
func (s *DB) grantFor(ctx context.Context, lasts time.Duration) (clientv3.LeaseID, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	lease, err := s.Client.Grant(ctx, int64((lasts+time.Second-1)/time.Second))
	if err != nil {
		return 0, 0, s.Explain(err)
	}
	return lease.ID, time.Duration(lease.TTL) * time.Second, nil
}

// LeaseSwap is the lease that a write uses, and the lease that it replaces.
type LeaseSwap struct{ Fresh, Old clientv3.LeaseID }

// SettleLease revokes the unused lease after a write that returned err. After a write of unknown outcome both leases
// stay: revoking one could delete the value.
func (s *DB) SettleLease(ctx context.Context, l LeaseSwap, err error) {
	idle := l.Old
	switch {
	case errors.Is(err, ErrConflict):
		idle = l.Fresh
	case err != nil:
		return
	}
	if idle == 0 {
		return
	}
	s.Revoke(ctx, idle)
}

// LockLasts is the time that a lock outlives a killed program.
const LockLasts = time.Minute

// Renewal of a lock's lease, for a lease of one minute.
const (
	renewEvery   = 5 * time.Second
	lookEvery    = time.Second // interval of looking at the clock
	reserveShare = 4           // 1/4 of the lease's time remains for calls in progress to end
)

// Causes of a lock's end.
var (
	errClosed  = errors.New("it was closed")
	errRevoked = errors.New("its lease was revoked")
	errSilent  = errors.New("etcd did not answer in time")
)

// LockKind is the kind of work that a lock protects.
type LockKind string

// The kinds of locks.
const (
	LockPublish LockKind = "publish"
	LockPrune   LockKind = "prune"
	LockApply   LockKind = "apply"

	LockCertificate LockKind = "certificate" // a node's, at Puppet's CA
)

// Lock is a key that exists during some work. A lease keeps it. Transactions that depend on the lock compare the key's
// create revision. A holder that lost the lock unnoticed can therefore write nothing.
type Lock struct {
	db       *DB
	key      string
	revision int64
	lease    clientv3.LeaseID
	stands   context.Context // ends when the lock is lost or closed, with the cause
	end      context.CancelCauseFunc
}

// LockHolder is the value of a lock's key.
type LockHolder struct {
	Kind  LockKind  `json:"kind"`
	By    string    `json:"by"`
	Since time.Time `json:"since"`

	key string // of the lock
}

// String renders a holder, for example "ann publishes, since 2026-11-20T22:23:30Z".
func (h LockHolder) String() string {
	by, verb := "another program", "holds "+h.key
	switch h.Kind {
	case LockPublish:
		verb = "publishes"
	case LockPrune:
		verb = "prunes"
	case LockApply:
		verb = "applies"
	}
	if h.By != "" {
		by = strings.ToValidUTF8(h.By, "?")
	}
	if h.Since.IsZero() {
		return by + " " + verb
	}
	return fmt.Sprintf("%s %s, since %s", by, verb, h.Since.UTC().Format(time.RFC3339))
}

// LockSpec describes a lock to take.
type LockSpec struct {
	Key   func(id string) string
	Kind  LockKind
	By    string
	Lasts time.Duration // time that it outlives a killed program
	Free  clientv3.Cmp  // guard that must be true
	Rival clientv3.Op   // reads the keys that may conflict
}

// Lock takes a lock. If another lock conflicts, it returns nil and that lock's holder.
func (s *DB) Lock(ctx context.Context, spec LockSpec) (*Lock, LockHolder, error) {
	value, err := Encode(LockHolder{Kind: spec.Kind, By: spec.By, Since: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return nil, LockHolder{}, err
	}
	asked := time.Now()
	lease, lasts, err := s.grantFor(ctx, spec.Lasts)
	if err != nil {
		return nil, LockHolder{}, err
	}
	l := &Lock{db: s, key: spec.Key(fmt.Sprintf("%016x", int64(lease))), lease: lease}
	l.stands, l.end = context.WithCancelCause(context.WithoutCancel(ctx)) // until Close: interrupted work still records progress
	cmps := []clientv3.Cmp{spec.Free, Same(l.key, 0)}
	resp, err := s.Txn(ctx, cmps, []clientv3.Op{clientv3.OpPut(l.key, value, clientv3.WithLease(lease))}, []clientv3.Op{spec.Rival, clientv3.OpGet(l.key)})
	if err != nil || !resp.Succeeded {
		_ = l.Close() // otherwise the lease ends by itself
	}
	if err != nil {
		return nil, LockHolder{}, err
	}
	if !resp.Succeeded {
		var holder LockHolder
		for _, r := range resp.Responses {
			if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
				if err := Decode(string(kvs[0].Key), kvs[0].Value, &holder); err != nil {
					holder = LockHolder{}
				}
				holder.key = string(kvs[0].Key)
				return nil, holder, nil
			}
		}
		return nil, holder, nil
	}
	l.revision = resp.Header.Revision
	go l.live(asked, lasts)
	return l, LockHolder{}, nil
}

// Key returns the lock's key.
func (l *Lock) Key() string { return l.key }

// Context returns a context that ends when the lock is lost or closed. Its cause gives the reason.
func (l *Lock) Context() context.Context { return l.stands }

// Standing guards a write that is allowed only while the lock is held.
func (l *Lock) Standing() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(l.key), "=", l.revision)
}

// Lost reports whether the lock's key no longer contains this lock. If so, it ends the lock.
func (l *Lock) Lost(kvs []*mvccpb.KeyValue) bool {
	if len(kvs) > 0 && kvs[0].CreateRevision == l.revision {
		return false
	}
	l.end(errRevoked)
	return true
}

// Close releases the lock. If etcd does not answer, the lease ends it within a minute.
func (l *Lock) Close() error {
	l.end(errClosed)
	ctx, cancel := context.WithTimeout(context.Background(), l.db.Timeout) // also after an interruption
	defer cancel()
	if _, err := l.db.Client.Revoke(ctx, l.lease); err != nil {
		return fmt.Errorf("cannot release the lock %s: %w\nits lease ends it within a minute", l.key, l.db.Explain(err))
	}
	return nil
}

// A provider's command has some seconds between the signal and the kill. The reserve, minus one look at the clock,
// must be longer (inFlight in the test). Otherwise the command could order a machine while another apply works.

// live renews the lease until the lock is closed. It ends the lock before etcd can end the lease: a renewal counts
// from the time of the request, not of the answer.
func (l *Lock) live(asked time.Time, lasts time.Duration) {
	ticker := time.NewTicker(min(lookEvery, lasts/10))
	defer ticker.Stop()
	kept := newDeadline(asked, lasts)
	next := asked.Add(min(renewEvery, lasts/4))
	for {
		select {
		case <-l.stands.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		if kept.passed(now) {
			l.end(errSilent)
			return
		}
		if now.Before(next) {
			continue
		}
		left, err := l.renew(kept.at)
		switch {
		case errors.Is(err, errRevoked):
			l.end(err)
			return
		case err == nil:
			kept = newDeadline(now, left)
			next = now.Add(min(renewEvery, left/4))
		} // otherwise at the next tick
	}
}

// renew renews the lease and returns its duration. It reads the key first: a missing key shows a revoked lease.
// Without that read the client would renew in a tight loop while etcd is unavailable.
func (l *Lock) renew(until time.Time) (time.Duration, error) {
	ctx, cancel := context.WithDeadline(l.stands, until)
	defer cancel()
	resp, err := l.db.Get(ctx, l.key, clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != l.revision {
		return 0, errRevoked
	}
	ctx, cancel = context.WithTimeout(ctx, l.db.Timeout)
	defer cancel()
	alive, err := l.db.Client.KeepAliveOnce(ctx, l.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return 0, errRevoked
	}
	if err != nil {
		return 0, fmt.Errorf("cannot renew a lease: %w", l.db.Explain(err))
	}
	return time.Duration(alive.TTL) * time.Second, nil
}

// deadline is the earliest end of a lease, minus the reserve, by both of the machine's clocks. After a sleep only the
// wall clock is right.
type deadline struct{ at, wall time.Time }

func newDeadline(asked time.Time, lasts time.Duration) deadline {
	at := asked.Add(lasts - lasts/reserveShare)
	return deadline{at, at.Round(0)}
}

func (d deadline) passed(now time.Time) bool {
	return !now.Before(d.at) || !now.Round(0).Before(d.wall)
}
