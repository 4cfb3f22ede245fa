package store

import (
	"context"
	"errors"
	"fmt"

	"pulley/internal/pki"
	"pulley/internal/store/etcd"
)

// RevokeOperator ends an operator's certificates of all incarnations. First it deletes the etcd users, and etcd
// refuses the certificates from then on. Then it records the revocation. Then it deletes users again, because a login
// may have created one in between. It returns ErrNotFound for an unknown operator. It refuses to revoke the last
// admin: no client could create another.
func (s *Identities) RevokeOperator(ctx context.Context, name string, r Revoked) error {
	for try := 0; ; try++ {
		err := s.revokeOperator(ctx, name, r)
		if err == nil || !errors.Is(err, etcd.ErrConflict) || try == 9 {
			if err != nil {
				err = fmt.Errorf("cannot revoke operator %s: %w", name, err)
			}
			return err
		}
	}
}

func (s *Identities) revokeOperator(ctx context.Context, name string, r Revoked) error {
	all, _, err := s.Operators(ctx)
	if err != nil {
		return err
	}
	others := 0
	for other, o := range all {
		if other != name && o.Live() && o.As == RoleAdmin && r.At.Before(o.Until) {
			others++
		}
	}
	known := all[name]
	if known.Live() && known.As == RoleAdmin && others == 0 {
		return errors.New("nobody else is an admin\nmake another one first: `pulley token create --operator NAME --as admin`")
	}
	found, err := s.dropOperator(ctx, name)
	if err != nil {
		return err
	}
	o, revision, err := s.Operator(ctx, name)
	switch {
	case err != nil:
		return err
	case o == nil && !found, o != nil && !o.Live() && !found:
		return etcd.ErrNotFound
	case o == nil:
		return nil
	}
	o.User, o.Replaces, o.Revoked = "", "", &r
	if err := s.PutOperator(ctx, *o, revision); err != nil {
		return err
	}
	_, err = s.dropOperator(ctx, name) // a login that creates its user later finds the record and deletes the user
	return err
}

// dropOperator deletes all users of an operator, and reports whether there were any.
func (s *Identities) dropOperator(ctx context.Context, name string) (found bool, err error) {
	users, err := s.operatorUsers(ctx, name)
	for i := 0; err == nil && i < len(users); i++ {
		found, err = true, s.access.DropUser(ctx, users[i])
	}
	return found, err
}

// DropFormerOperator deletes the users of all incarnations of an operator except user. Interrupted logins may have
// left several. If the operator now has another user, or none, nothing happens.
func (s *Identities) DropFormerOperator(ctx context.Context, name, user string) error {
	users, err := s.operatorUsers(ctx, name) // before the owners: a later login creates its user after its record
	if err != nil {
		return err
	}
	o, _, err := s.Operator(ctx, name)
	if err != nil || !o.Live() || o.User != user {
		return err
	}
	for _, former := range users {
		if former == user {
			continue
		}
		if err := s.access.DropUser(ctx, former); err != nil {
			return err
		}
	}
	return nil
}

// operatorUsers lists the etcd users of all incarnations of an operator.
func (s *Identities) operatorUsers(ctx context.Context, name string) (users []string, err error) {
	all, err := s.access.Users(ctx)
	if err != nil {
		return nil, err
	}
	for _, user := range all {
		if n, err := pki.ParseName(user); err == nil && n.Kind == pki.KindOperator && n.Prefix == s.db.Prefix() && n.Subject == name {
			users = append(users, user)
		}
	}
	return users, nil
}
