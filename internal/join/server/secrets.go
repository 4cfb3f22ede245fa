package server

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/secrets"
	"pulley/internal/specs"
)

// maxRecipients bounds the recipients of one scope that no stored generation of data uses, with the newest, and maxUsed those that some use: their value
// must fit into etcd.
const maxRecipients, maxUsed = 16, 256

// identities answers a node with the identities of its environment and role. Its role is that of its join, which no
// operator writes.
func (d *Server) identities(ctx context.Context, c *caller) (any, error) {
	var m join.Machine
	if err := c.read(&m); err != nil {
		return nil, err
	}
	who, err := d.node(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := d.sameMachine(ctx, c, who, m); err != nil {
		return nil, err
	}
	a := join.IdentitiesAnswer{Identities: []string{}}
	for _, role := range scopesOf(who.identity.Role) {
		some, err := d.identitiesOf(ctx, who.ref, role)
		if err != nil {
			return nil, err
		}
		a.Identities = append(a.Identities, some...)
	}
	d.Log.Info("identities of secrets given", append(c.say, "role", who.identity.Role, "from", c.from, "count", len(a.Identities))...)
	return a, nil
}

// scopesOf returns the roles whose secrets a node of a role may read; "" is the environment.
func scopesOf(role string) []string {
	if role == "" {
		return []string{""}
	}
	return []string{"", role}
}

// identitiesFor is identities for a join or a renewal, which no secret may prevent: the node repeats the request at its
// first run with a secret.
func (d *Server) identitiesFor(ctx context.Context, ref model.Ref, role string) (all []string) {
	for _, scope := range scopesOf(role) {
		some, err := d.identitiesOf(ctx, ref, scope)
		if err != nil {
			d.Log.Warn("a node gets no identities of secrets", "env", ref.String(), "role", scope, "error", err)
		}
		all = append(all, some...)
	}
	return all
}

// identitiesOf decrypts the identities of a role, or of the environment for role "".
func (d *Server) identitiesOf(ctx context.Context, ref model.Ref, role string) ([]string, error) {
	r, err := targets.In(d.DB).Recipients(ctx, ref, role)
	if err != nil || len(r.Recipients) == 0 {
		return nil, err
	}
	return d.unwrap(ref, role, r)
}

func (d *Server) unwrap(ref model.Ref, role string, r targets.Recipients) (all []string, err error) {
	kept, all, err := d.readable(r)
	if err == nil && len(kept) < len(r.Recipients) {
		return nil, no(join.IdentityLost, join.Params{Environment: ref.String(), Role: role})
	}
	return all, err
}

// readable returns the recipients whose identities the key decrypts, and the identities: none if the key is lost. A key that cannot be read
// for any other reason is an error.
func (d *Server) readable(r targets.Recipients) (kept []targets.Recipient, all []string, err error) {
	key, err := d.secretsKey(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, one := range r.Recipients {
		if identity, err := secrets.Unwrap(key, one.Identity, one.Recipient); err == nil {
			kept, all = append(kept, one), append(all, identity)
		}
	}
	return kept, all, nil
}

// sealing answers an operator with the recipient of a scope. It makes a missing one, and a new one on request.
func (d *Server) sealing(ctx context.Context, c *caller) (any, error) {
	var r join.SealingRequest
	if err := c.read(&r); err != nil {
		return nil, err
	}
	o, err := d.operator(ctx, c)
	if err != nil {
		return nil, err
	}
	if r.Lost && o.As != access.RoleAdmin { // the key may be on another serve, or in a backup
		return nil, no(join.NotAnAdmin, join.Params{})
	}
	ref, err := model.ParseRef(r.Environment)
	if err != nil {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	c.about("env", ref.String(), "role", r.Role)
	spec, _, err := specs.In(d.DB).Spec(ctx, ref)
	if errors.Is(err, etcd.ErrNotFound) || err == nil && spec == nil {
		return nil, no(join.NoEnvironment, join.Params{Environment: ref.String()})
	}
	if err != nil {
		return nil, err
	}
	if _, has := spec.Role(r.Role); !has && r.Role != "" {
		return nil, no(join.NoRole, join.Params{Environment: ref.String(), Role: r.Role})
	}
	var have targets.Recipients
	err = retry(ctx, func(int) (err error) {
		have, err = d.recipients(ctx, ref, r, o.Name)
		return err
	})
	if err != nil {
		return nil, err
	}
	newest := have.Recipients[0]
	answer := join.SealingAnswer{Recipient: newest.Recipient, Certificate: newest.Certificate}
	if answer.Secrets, err = d.sealAgain(ref, r, have); err != nil {
		return nil, err
	}
	d.Log.Info("recipient of secrets given", append(c.say, "from", c.from, "rotated", r.Rotate, "encrypted_again", len(answer.Secrets))...)
	return answer, nil
}

// reveal answers an administrator with plaintexts.
func (d *Server) reveal(ctx context.Context, c *caller) (any, error) {
	var r join.RevealRequest
	if err := c.read(&r); err != nil {
		return nil, err
	}
	o, err := d.operator(ctx, c)
	if err != nil {
		return nil, err
	}
	if o.As != access.RoleAdmin {
		return nil, no(join.NotAnAdmin, join.Params{})
	}
	ref, err := model.ParseRef(r.Environment)
	if err != nil {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	c.about("env", ref.String(), "role", r.Role)
	have, err := targets.In(d.DB).Recipients(ctx, ref, r.Role)
	if err != nil {
		return nil, err
	}
	identities, err := d.unwrap(ref, r.Role, have)
	if err != nil {
		return nil, err
	}
	var answer join.RevealAnswer
	var keys []string
	for _, s := range r.Secrets {
		plain, err := secrets.Open(identities, placeOf(ref, s), s.Text)
		if err != nil {
			return nil, no(join.BadSecret, join.Params{Environment: ref.String(), Role: r.Role, Claimed: s.Key, Layer: s.Layer})
		}
		answer.Plaintexts, keys = append(answer.Plaintexts, []byte(plain)), append(keys, s.Layer+": "+s.Key)
	}
	if len(keys) > 0 { // doctor requests none
		d.Log.Warn("secrets shown to an administrator", append(c.say, "operator", o.Name, "from", c.from, "keys", strings.Join(keys, ", "))...)
	}
	return answer, nil
}

func placeOf(ref model.Ref, s join.Sealed) secrets.Place {
	return secrets.Place{Environment: ref.String(), Layer: hieradata.Layer(s.Layer), Key: s.Key}
}

// operator returns the operator of a request, who may change data.
func (d *Server) operator(ctx context.Context, c *caller) (*access.OperatorIdentity, error) {
	name, err := d.nameIn(c)
	if err != nil {
		return nil, err
	}
	if name.Kind != pki.KindOperator {
		return nil, no(join.NotAnOperator, join.Params{})
	}
	o, _, err := access.IdentitiesIn(d.DB).Operator(ctx, name.Subject)
	switch {
	case err != nil:
		return nil, err
	case !o.Live() || o.User != name.String():
		return nil, no(join.WrongCertificate, join.Params{Operator: name.Subject})
	case o.As != access.RoleOperator && o.As != access.RoleAdmin:
		return nil, no(join.NotAnOperator, join.Params{})
	}
	return o, nil
}

// recipients returns the recipients of a scope with at least one, and a new one first if the request rotates. It
// certifies the newest again after a rotation of the CA.
func (d *Server) recipients(ctx context.Context, ref model.Ref, r join.SealingRequest, by string) (targets.Recipients, error) {
	have, err := targets.In(d.DB).Recipients(ctx, ref, r.Role)
	if err != nil {
		return have, err
	}
	scope := targets.RecipientScope(r.Role)
	if len(have.Recipients) > 0 && !r.Rotate {
		if _, err := d.unwrap(ref, r.Role, have); err != nil {
			return have, err
		}
		newest := &have.Recipients[0]
		if pki.CheckRecipient(d.CA.Bundle(), []byte(newest.Certificate), ref.String(), scope, newest.Recipient) == nil {
			return have, nil
		}
		certificate, err := d.CA.IssueRecipient(ref.String(), scope, newest.Recipient)
		if err != nil {
			return have, err
		}
		newest.Certificate = string(certificate)
		return have, targets.In(d.DB).PutRecipients(ctx, ref, r.Role, have, nil)
	}
	if r.Lost {
		have.Recipients, err = d.notLost(ref, r.Role, have)
	} else if err = d.keyIsKept(ctx, ref, r.Role); err == nil && len(have.Recipients) > 0 { // else nodes could not read the older secrets
		_, err = d.unwrap(ref, r.Role, have)
	}
	if err != nil {
		return have, err
	}
	fresh, err := d.newRecipient(ref, scope, by)
	if err != nil {
		return have, err
	}
	have.Recipients = append([]targets.Recipient{fresh}, have.Recipients...)
	if len(have.Recipients) <= maxRecipients {
		return have, targets.In(d.DB).PutRecipients(ctx, ref, r.Role, have, nil)
	}
	used, err := targets.In(d.DB).RecipientsInUse(ctx, ref)
	if err != nil {
		return have, err
	}
	if have.Recipients = bounded(have.Recipients, used.IDs); len(have.Recipients) > maxUsed {
		return have, no(join.TooManyRecipients, join.Params{Environment: ref.String(), Role: r.Role, Limit: maxUsed})
	}
	return have, targets.In(d.DB).PutRecipients(ctx, ref, r.Role, have, &used)
}

// bounded drops the oldest recipients that no stored secret uses, until maxRecipients are left. It drops none in use: a rollback, or the
// present data after a rotation that did not finish, needs it. The first one is new, and stays.
func bounded(all []targets.Recipient, used map[string]bool) []targets.Recipient {
	kept := slices.Clone(all)
	for i := len(kept) - 1; i > 0 && len(kept) > maxRecipients; i-- {
		if !used[secrets.ID(kept[i].Recipient)] {
			kept = slices.Delete(kept, i, i+1)
		}
	}
	return kept
}

// notLost returns the recipients whose identities this serve decrypts. It refuses if it decrypts all: then nothing is lost.
func (d *Server) notLost(ref model.Ref, role string, have targets.Recipients) ([]targets.Recipient, error) {
	kept, _, err := d.readable(have)
	if err == nil && len(kept) == len(have.Recipients) {
		err = no(join.NothingLost, join.Params{Environment: ref.String(), Role: role})
	}
	return kept, err
}

// secretsKey returns the key of the CA folder, and with create makes a missing one. It refuses one that is there and cannot be used.
func (d *Server) secretsKey(create bool) (string, error) {
	key, err := secrets.Key(d.CA, create)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		problem, _, _ := strings.Cut(err.Error(), "\n")
		err = no(join.SecretsKeyUnusable, join.Params{Problem: model.Prose(problem)})
	}
	return key, err
}

// keyIsKept refuses where the key is lost: a new one beside recipients of the former would hide that.
func (d *Server) keyIsKept(ctx context.Context, ref model.Ref, role string) error {
	if _, err := d.secretsKey(false); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	refs, err := specs.In(d.DB).Named(ctx)
	for _, one := range refs {
		if err != nil {
			break
		}
		var all map[string]targets.Recipients
		if all, _, err = targets.In(d.DB).AllRecipients(ctx, one); len(all) > 0 {
			return no(join.IdentityLost, join.Params{Environment: ref.String(), Role: role})
		}
	}
	return err
}

func (d *Server) newRecipient(ref model.Ref, scope, by string) (targets.Recipient, error) {
	key, err := d.secretsKey(true)
	if err != nil {
		return targets.Recipient{}, err
	}
	master, err := secrets.RecipientOf(key)
	if err != nil {
		return targets.Recipient{}, err
	}
	identity, recipient, err := secrets.NewIdentity()
	if err != nil {
		return targets.Recipient{}, err
	}
	wrapped, err := secrets.Wrap(master, identity)
	if err != nil {
		return targets.Recipient{}, err
	}
	certificate, err := d.CA.IssueRecipient(ref.String(), scope, recipient)
	return targets.Recipient{Recipient: recipient, Certificate: string(certificate), Identity: wrapped, At: d.Now().UTC(), By: by}, err
}

// sealAgain encrypts secrets to the newest recipient. No answer has a plaintext.
func (d *Server) sealAgain(ref model.Ref, r join.SealingRequest, have targets.Recipients) ([]join.Sealed, error) {
	if len(r.Secrets) == 0 {
		return nil, nil
	}
	identities, err := d.unwrap(ref, r.Role, have)
	if err != nil {
		return nil, err
	}
	var again []join.Sealed
	for _, s := range r.Secrets {
		at := placeOf(ref, s)
		plain, err := secrets.Open(identities, at, s.Text)
		if err == nil {
			s.Text, err = secrets.Seal(have.Recipients[0].Recipient, at, plain)
		}
		if err != nil {
			return nil, no(join.BadSecret, join.Params{Environment: ref.String(), Role: r.Role, Claimed: s.Key, Layer: s.Layer})
		}
		again = append(again, s)
	}
	return again, nil
}
