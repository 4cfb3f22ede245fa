package access

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/specs"
)

// lockoutNoted limits the writes for a machine that asks again and again.
const lockoutNoted = 4 * time.Minute

// NoteLockout records that etcd refused a certificate of this fleet, issued at a time, because it has no user of its name. It records nothing
// of a node that was removed after that time, and of the former machine of a node.
func (s *Identities) NoteLockout(ctx context.Context, name pki.Name, issued, now time.Time) error {
	ref, err := model.ParseRef(name.Environment)
	if err != nil || name.Kind != pki.KindNode || name.Prefix != s.db.Prefix() {
		return nil
	}
	err = etcd.Retry(ctx, func() error { return s.noteLockout(ctx, ref, name, issued, now) })
	return etcd.Wrap(err, "cannot record that etcd refuses node %s", name.Subject)
}

func (s *Identities) noteLockout(ctx context.Context, ref model.Ref, name pki.Name, issued, now time.Time) error {
	k, node, guards := s.db.Env(ref), name.Subject, map[string]int64{}
	var identity *Identity
	var spec *environments.Environment
	var old *model.Lockout
	_, err := s.db.Read(ctx, guards,
		etcd.Point{Key: k.Identity(node), Read: etcd.Into(&identity)},
		etcd.Point{Key: k.Spec(), Read: func(kv *etcd.KV) (err error) {
			spec, err = specs.Decode(kv)
			return err
		}},
		etcd.Point{Key: k.Lockout(node), Read: etcd.Into(&old)},
	)
	if err != nil || spec == nil || identity.supersedes(name, issued) {
		return err
	}
	if _, err := s.access.rolesOf(ctx, name.String()); !errors.Is(err, rpctypes.ErrUserNotFound) { // it was made a moment ago
		return err
	}
	l := model.Lockout{Node: node, User: name.String(), First: now, Last: now}
	if old != nil && old.User == l.User {
		if l.First = old.First; now.Sub(old.Last) < lockoutNoted {
			return nil
		}
	}
	return s.db.Commit(ctx, etcd.If(etcd.Unchanged(guards)...).Put(k.Lockout(node), l))
}

// supersedes reports whether a certificate of the node's name, issued at a time, is not valid any more by what was done since: the node was
// removed, or another machine joined.
func (i *Identity) supersedes(name pki.Name, issued time.Time) bool {
	switch {
	case i == nil:
		return false
	case i.Removed != nil:
		return issued.Before(i.Removed.At.Truncate(time.Second)) // certificates have seconds
	}
	return i.User != name.String() && issued.Before(i.Joined.Truncate(time.Second))
}

// ForgetLockouts deletes the notes of nodes of which etcd refused no call after a time.
func (s *Identities) ForgetLockouts(ctx context.Context, ref model.Ref, last time.Time) error {
	prefix := s.db.Env(ref).Lockout("")
	var old []*etcd.Batch
	_, err := etcd.Collect(ctx, s.db, prefix, func(rest string, l model.Lockout, revision int64) {
		if key := prefix + rest; !l.Last.After(last) {
			old = append(old, etcd.If(etcd.Same(key, revision)).Delete(key))
		}
	})
	for _, b := range old {
		if err == nil {
			_, err = s.db.Run(ctx, b) // one that was refused since stays
		}
	}
	return etcd.Wrap(err, "cannot forget which nodes of %s etcd refused", ref)
}
