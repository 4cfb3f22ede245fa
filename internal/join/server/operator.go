package server

import (
	"context"
	"errors"

	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// joinOperator turns a person into an operator. A token for a name replaces the name's former owner: only
// administrators create such tokens. As with a node, the record comes before the user in etcd.
func (d *Server) joinOperator(ctx context.Context, c *caller, a joining, t access.Token) (join.Answer, string, error) {
	c.about("operator", t.Operator, "as", string(t.As))
	if a.Machine.ID != "" {
		return join.Answer{}, "", no(join.OperatorToken, join.Params{})
	}
	var o access.OperatorIdentity
	err := retry(ctx, func(int) (err error) {
		o, err = d.settleOperator(ctx, a, t.Operator)
		return err
	})
	if err != nil {
		return join.Answer{}, "", err
	}
	answer, err := d.certifyOperator(ctx, a, o)
	return answer, "operator", err
}

// settleOperator decides by the token that the transaction compares. The earlier read only found the name.
func (d *Server) settleOperator(ctx context.Context, a joining, name string) (access.OperatorIdentity, error) {
	f, err := access.JoinsIn(d.DB).OperatorFacts(ctx, a.id, name)
	if err != nil {
		return access.OperatorIdentity{}, err
	}
	now := d.Now().UTC()
	if refused := judgeToken(f.Token, a.secret, now); refused != nil {
		return access.OperatorIdentity{}, refused
	}
	if f.Token.Operator != name || f.Token.ID != a.id {
		return access.OperatorIdentity{}, no(join.UnknownToken, join.Params{})
	}
	if f.Operator.Live() && f.Operator.Key == a.key && f.Operator.Token == a.id {
		return *f.Operator, nil // its answer was lost
	}
	if f.Token.UsedUp() {
		return access.OperatorIdentity{}, no(join.UsedUpToken, join.Params{Used: f.Token.Used})
	}
	user := pki.Name{Prefix: d.DB.Prefix(), Kind: pki.KindOperator, Subject: name, Incarnation: pki.NewIncarnation()}
	if err := user.Check(); err != nil {
		return access.OperatorIdentity{}, no(join.BadRequest, join.Params{Field: join.FieldOperator, Problem: model.Prose(clip.Text(err.Error(), maxSaid))})
	}
	o := access.OperatorIdentity{
		Name: name, As: f.Token.As, User: user.String(), Incarnation: user.Incarnation, Key: a.key,
		Joined: now, Issued: now, Until: now.Add(operatorLifetime), CA: d.issuer.pin(), Token: a.id, By: f.Token.By,
	}
	if f.Operator.Live() {
		o.Replaces = f.Operator.User
	}
	t := *f.Token
	t.Used++
	return o, access.JoinsIn(d.DB).CommitOperator(ctx, f, t, o)
}

// certifyOperator is certify for an operator.
func (d *Server) certifyOperator(ctx context.Context, a joining, o access.OperatorIdentity) (join.Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), certifyTime)
	defer cancel()
	if err := access.In(d.DB).EnsureOperator(ctx, o.User, o.As); err != nil {
		return join.Answer{}, err
	}
	if o.Replaces != "" {
		if err := access.IdentitiesIn(d.DB).DropFormerOperator(ctx, o.Name, o.User); err != nil {
			return join.Answer{}, err
		}
	}
	now, revision, err := access.IdentitiesIn(d.DB).Operator(ctx, o.Name)
	if err != nil {
		return join.Answer{}, err
	}
	if !now.Live() || now.User != o.User {
		if err := access.In(d.DB).DropUser(ctx, o.User); err != nil {
			return join.Answer{}, err
		}
		return join.Answer{}, no(join.WasRemoved, join.Params{Operator: o.Name})
	}
	if now.Replaces != "" {
		now.Replaces = ""
		if err := access.IdentitiesIn(d.DB).PutOperator(ctx, *now, revision); err != nil && !errors.Is(err, etcd.ErrConflict) {
			return join.Answer{}, err
		}
	}
	return d.issuer.operator(a.CSR, o)
}
