package access

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/pki"
)

// OperatorIdentity is the holder of an operator's name.
type OperatorIdentity struct {
	Name        string       `json:"name"`
	As          OperatorRole `json:"as"`
	User        string       `json:"user,omitempty"` // in etcd; "" once revoked
	Incarnation string       `json:"incarnation,omitempty"`
	Replaces    string       `json:"replaces,omitempty"` // as of Identity
	Key         string       `json:"key,omitempty"`
	Joined      time.Time    `json:"joined,omitzero"`
	Issued      time.Time    `json:"issued,omitzero"`
	Until       time.Time    `json:"until,omitzero"`
	CA          string       `json:"ca,omitempty"`
	Token       string       `json:"token,omitempty"`
	By          string       `json:"by,omitempty"`
	Revoked     *Revoked     `json:"revoked,omitempty"`
}

// Live reports whether certificates of this operator can still be valid.
func (o *OperatorIdentity) Live() bool { return o != nil && o.Revoked == nil && o.User != "" }

// Operators lists the holders of operators' names.
func (s *Identities) Operators(ctx context.Context) (all map[string]OperatorIdentity, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[OperatorIdentity](ctx, s.db, s.db.Keys.Operators())
	return all, damaged, etcd.Wrap(err, "cannot list operators")
}

// Operator reads the holder of an operator's name, and the revision of its last write. It returns nil and 0 if there
// is none.
func (s *Identities) Operator(ctx context.Context, name string) (*OperatorIdentity, int64, error) {
	return etcd.Single[OperatorIdentity](ctx, s.db, s.db.Keys.Operator(name))
}

// PutOperator replaces an operator. It returns ErrConflict if the operator was written since revision.
func (s *Identities) PutOperator(ctx context.Context, o OperatorIdentity, revision int64) error {
	_, err := s.db.Replace(ctx, s.db.Keys.Operator(o.Name), o, revision)
	return err
}

// RevokeOperator ends an operator's certificates of all incarnations. First it deletes the etcd users, and etcd
// refuses the certificates from then on. Then it records the revocation. Then it deletes users again, because a login
// may have created one in between. It returns ErrNotFound for an unknown operator. It refuses to revoke the last
// admin: no client could create another.
func (s *Identities) RevokeOperator(ctx context.Context, name string, r Revoked) error {
	err := etcd.Retry(ctx, func() error { return s.revokeOperator(ctx, name, r) })
	return etcd.Wrap(err, "cannot revoke operator %s", name)
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
		return errors.New("this is the only admin\ncreate another one first: `pulley token create --operator NAME --as admin`")
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
	if err != nil {
		return false, err
	}
	return len(users) > 0, s.access.dropUsers(ctx, users, "")
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
	return s.access.dropUsers(ctx, users, user)
}

// operatorUsers lists the etcd users of all incarnations of an operator.
func (s *Identities) operatorUsers(ctx context.Context, name string) ([]pki.Name, error) {
	return s.access.owned(ctx, func(n pki.Name) bool { return n.Kind == pki.KindOperator && n.Subject == name })
}

// OperatorFacts is the input of an operator's join.
type OperatorFacts struct {
	Token    *Token
	Operator *OperatorIdentity

	guards map[string]int64
}

// OperatorFacts reads the input of an operator's join.
func (s *Joins) OperatorFacts(ctx context.Context, token, name string) (OperatorFacts, error) {
	f := OperatorFacts{guards: map[string]int64{}}
	_, err := s.db.Read(ctx, f.guards,
		etcd.Point{Key: s.db.Keys.OperatorToken(token), Read: func(kv *etcd.KV) (err error) {
			f.Token, err = s.tokens.DecodeToken(kv)
			return err
		}},
		etcd.Point{Key: s.db.Keys.Operator(name), Read: etcd.Into(&f.Operator)},
	)
	if err != nil {
		return OperatorFacts{}, fmt.Errorf("cannot read the input of the join of operator %s: %w", name, err)
	}
	return f, nil
}

// CommitOperator writes an operator's join. It returns ErrConflict if the token or the operator was written since
// facts were read.
func (s *Joins) CommitOperator(ctx context.Context, facts OperatorFacts, t Token, o OperatorIdentity) error {
	if facts.Token == nil || o.Name != facts.Token.Operator || o.As != facts.Token.As {
		return fmt.Errorf("cannot write that operator %s joined as %s: the token is for another operator", o.Name, o.As)
	}
	b := etcd.If(etcd.Unchanged(facts.guards)...)
	return s.db.Commit(ctx, b.Put(s.db.Keys.OperatorToken(facts.Token.ID), t).Put(s.db.Keys.Operator(o.Name), o))
}
