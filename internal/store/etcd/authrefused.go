package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"pulley/internal/pki"
)

// ErrRevoked means that etcd has no user for a certificate. The node was removed, the operator was revoked, or either
// joined again under another incarnation. The certificate never becomes valid again.
var ErrRevoked = errors.New("etcd has no such user (any more)")

// refused adds the remedy to a request that etcd refused. It makes one more request, to see whether the user still
// exists: every user may read itself.
func (s *DB) refused(err error) error {
	advice := "ask whoever runs etcd which user and role this is to be; `--cert` and `--key` say who it is"
	switch name, notPulleys := pki.ParseName(s.user); {
	case s.user == "" || notPulleys != nil:
	case !s.revoked():
		if name.Kind == pki.KindOperator {
			advice = "this needs an operator with another role: `pulley operators list` shows who is an admin"
		}
	case name.Kind == pki.KindNode:
		return fmt.Errorf("etcd refuses %s: %w\nthis node was removed or its certificate was revoked; to bring it back, give it a new token: "+
			"`pulley token create -e %s --node %s`, and boot it anew with that", s.CallerName, ErrRevoked, name.Environment, name.Subject)
	default:
		return fmt.Errorf("etcd refuses %s: %w\nthis certificate was revoked, or there is a newer one; ask an admin for a token, and `pulley login` with it", s.CallerName, ErrRevoked)
	}
	return fmt.Errorf("etcd refuses %s: %w\n%s", s.CallerName, err, advice)
}

// revoked asks etcd whether this connection's user still exists. Without an answer it returns false.
func (s *DB) revoked() bool {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	_, err := s.Client.UserGet(ctx, s.user)
	return errors.Is(err, rpctypes.ErrUserNotFound)
}

// userOf returns the user that etcd derives from a connection: the common name of its certificate.
func userOf(t *tls.Config) string {
	if t == nil || len(t.Certificates) == 0 || t.Certificates[0].Leaf == nil {
		return ""
	}
	return t.Certificates[0].Leaf.Subject.CommonName
}

// ErrFull means that etcd has no space left: it accepts only deletions until an administrator frees space.
var ErrFull = rpctypes.ErrNoSpace

// ErrNoRole means that a user was granted a role that does not exist.
var ErrNoRole = rpctypes.ErrRoleNotFound
