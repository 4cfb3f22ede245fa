package release

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
)

// Publishing is a publish in progress. While it is held, no prune runs and the content that it found in etcd stays.
type Publishing struct {
	lock  *etcd.Lock
	s     *Releases
	usage etcd.Usage
	since int64 // bytes written after usage was read
}

// Close ends the publish.
func (p *Publishing) Close() error { return p.lock.Close() }

// LockHint is the remedy if another lock conflicts.
const LockHint = "try again after that; the lock of a killed program ends within a minute"

// BeginPublish begins a publish; Close ends it. During a prune it fails with an error that names the prune's author.
func (s *Releases) BeginPublish(ctx context.Context, by string) (*Publishing, error) {
	l, err := PublishLock(ctx, s.db, by)
	p := &Publishing{lock: l, s: s}
	if err == nil {
		p.usage = s.db.Usage(ctx)
	}
	return p, err
}

// PublishLock takes the lock during which no prune runs: values may be written before one that names them.
func PublishLock(ctx context.Context, db *etcd.DB, by string) (*etcd.Lock, error) {
	pruning := db.Keys.Pruning()
	return Lock(ctx, db, etcd.LockSpec{
		Key: db.Keys.Publishing, Kind: etcd.LockPublish, By: by, Free: etcd.Same(pruning, 0), Rival: clientv3.OpGet(pruning),
	})
}

// reserved is the part of etcd's quota that content leaves free: for nodes' reports, for changes, and for the lock of a prune. One
// object may enlarge etcd's file by more than its size.
func reserved(quota int64) int64 { return max(quota/10, 4<<20) }

// PutObject is Releases.PutObject, and leaves room in etcd: it refuses content that would fill it.
func (p *Publishing) PutObject(ctx context.Context, hash string, b []byte) (wrote bool, err error) {
	if p.usage.Quota > 0 && p.since > p.usage.Quota/128 {
		// etcd's own figure lacks what was written a moment ago, until the next commit.
		atLeast := p.usage.Stored + p.since
		p.usage, p.since = p.s.db.Usage(ctx), 0
		p.usage.Stored = max(p.usage.Stored, atLeast)
	}
	if u := p.usage; u.Quota > 0 && u.Stored+p.since+int64(len(b)) > u.Quota-reserved(u.Quota) {
		there, err := p.s.db.Get(ctx, p.s.db.Keys.Object(hash), clientv3.WithCountOnly())
		if err != nil || there.Count > 0 {
			return false, err
		}
		return false, fmt.Errorf("cannot store content %.12s: etcd's file has %d of %d MiB, and publish keeps the last %d MiB free for reports and changes\nrun `pulley releases prune`, then `pulley doctor --fix` as an admin; or raise the quota: `pulley serve --quota`",
			hash, (u.Stored+p.since)>>20, u.Quota>>20, reserved(u.Quota)>>20)
	}
	if wrote, err = p.s.PutObject(ctx, hash, b); wrote {
		p.since += int64(len(b))
	}
	return wrote, err
}

// LockHolders reads who publishes and who prunes.
func (s *Releases) LockHolders(ctx context.Context) (all []etcd.LockHolder, err error) {
	for _, prefix := range []string{s.db.Keys.Publishings(), s.db.Keys.Pruning()} {
		_, err := etcd.Collect(ctx, s.db, prefix, func(_ string, h etcd.LockHolder, _ int64) { all = append(all, h) }) // an unreadable one ends with its lease
		if err != nil {
			return all, etcd.Wrap(err, "cannot read who publishes or prunes")
		}
	}
	return all, nil
}

// Lock takes a lock of publishes or prunes, or says who holds the other.
func Lock(ctx context.Context, db *etcd.DB, spec etcd.LockSpec) (*etcd.Lock, error) {
	spec.Lasts = etcd.LockLasts
	l, holder, err := db.Lock(ctx, spec)
	if err == nil && l == nil {
		return nil, fmt.Errorf("cannot %s while %s\n%s", spec.Kind, holder, LockHint)
	}
	return l, etcd.Wrap(err, "cannot begin to %s", spec.Kind)
}
