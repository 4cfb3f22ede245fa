package etcd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Nonce returns 16 random hex digits. What has them in its key or in its value is never mistaken for another, also after etcd went back
// in time and gives numbers again.
func Nonce() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// draftLasts is the time that a draft outlives a killed program. A draft that is still being written after half of it is renewed.
const draftLasts = time.Minute

// MaxDraft is the number of keys of a draft: the transaction that keeps them has other writes, too.
const MaxDraft = MaxOps - 28

// Draft is what a command writes before its one deciding transaction, because it is too large for one. Its keys belong to the command alone:
// their caller puts a nonce into them. They have a short lease, which that transaction takes from them. The lease deletes the keys of a command that
// fails, is killed or loses a race.
type Draft struct {
	db      *DB
	lease   clientv3.LeaseID
	renewed time.Time
	keys    []string
}

// Draft begins a draft. The caller closes it, whatever became of it.
func (s *DB) Draft(ctx context.Context) (*Draft, error) {
	lease, err := s.Grant(ctx, draftLasts)
	return &Draft{db: s, lease: lease, renewed: time.Now()}, err
}

// Put writes one key of the draft.
func (d *Draft) Put(ctx context.Context, key string, value any) error {
	if len(d.keys) == MaxDraft {
		return fmt.Errorf("it has more than %d parts, which one transaction of etcd cannot keep\nstart it for fewer nodes, with --role", MaxDraft)
	}
	if time.Since(d.renewed) > draftLasts/2 {
		if err := d.db.Renew(ctx, d.lease); err != nil {
			return err
		}
		d.renewed = time.Now()
	}
	if err := d.db.Commit(ctx, If(Same(key, 0)).Put(key, value, clientv3.WithLease(d.lease))); err != nil {
		return err
	}
	d.keys = append(d.keys, key)
	return nil
}

// Keep adds to a batch that the keys stay. etcd refuses the whole batch if their lease ended before.
func (d *Draft) Keep(b *Batch) {
	for _, key := range d.keys {
		b.Op(clientv3.OpPut(key, "", clientv3.WithIgnoreValue()))
	}
}

// Close deletes the keys, unless a batch keeps them. A batch whose outcome is unknown, and that etcd executes after this, is refused.
func (d *Draft) Close(ctx context.Context) { d.db.Revoke(ctx, d.lease) }

// ErrLeaseEnded means that a lease ended, with its keys: its program did not run or did not reach etcd for too long.
var ErrLeaseEnded = errors.New("its lease ended: this program was stopped, or did not reach etcd, for too long")

// Renew renews a lease. It returns ErrLeaseEnded if there is none any more.
func (s *DB) Renew(ctx context.Context, lease clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	_, err := s.Client.KeepAliveOnce(ctx, lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return ErrLeaseEnded
	}
	return s.Explain(err)
}

// Revoke ends a lease that nothing needs any more, also for a caller whose context ended. Without an answer, it ends by itself.
func (s *DB) Revoke(ctx context.Context, lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
	defer cancel()
	_, _ = s.Client.Revoke(ctx, lease)
}
