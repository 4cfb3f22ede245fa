package store

import (
	"context"
	"errors"
	"fmt"

	"pulley/internal/pki"
)

// RevokeOperator ends an operator's certificates, whatever their incarnation: first the etcd users go, from then on etcd
// refuses them; then it is written down. ErrNotFound when there is no such operator. The last admin can't be revoked:
// nobody could make another.
func (s *Store) RevokeOperator(ctx context.Context, name string, r Revoked) error {
	for try := 0; ; try++ {
		err := s.revokeOperator(ctx, name, r)
		if err == nil || !errors.Is(err, ErrConflict) || try == 9 {
			if err != nil {
				err = fmt.Errorf("cannot revoke operator %s: %w", name, err)
			}
			return err
		}
	}
}

func (s *Store) revokeOperator(ctx context.Context, name string, r Revoked) error {
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
	users, err := s.Users(ctx)
	if err != nil {
		return err
	}
	found := false
	for _, user := range users {
		if n, err := pki.ParseName(user); err == nil && n.Kind == pki.KindOperator && n.Prefix == s.Prefix() && n.Subject == name {
			found = true
			if err := s.DropUser(ctx, user); err != nil {
				return err
			}
		}
	}
	o, revision, err := s.Operator(ctx, name)
	switch {
	case err != nil:
		return err
	case o == nil && !found, o != nil && !o.Live() && !found:
		return ErrNotFound
	case o == nil:
		return nil
	}
	o.User, o.Replaces, o.Revoked = "", "", &r
	return s.PutOperator(ctx, *o, revision)
}
