package server

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/secrets"
	"pulley/internal/store"
)

// maxRecipients bounds the recipients that one scope keeps for older generations of data.
const maxRecipients = 16

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
func (d *Server) identitiesFor(ctx context.Context, ref environments.Ref, role string) (all []string) {
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
func (d *Server) identitiesOf(ctx context.Context, ref environments.Ref, role string) ([]string, error) {
	r, _, err := d.Store.Identities.Recipients(ctx, ref, role)
	if err != nil || len(r.Recipients) == 0 {
		return nil, err
	}
	return d.unwrap(ref, role, r)
}

func (d *Server) unwrap(ref environments.Ref, role string, r store.Recipients) (all []string, err error) {
	lost := no(join.IdentityLost, join.Params{Environment: ref.String(), Role: role})
	key, err := d.CA.SecretsKey(nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, lost
	}
	if err != nil {
		return nil, err
	}
	for _, one := range r.Recipients {
		identity, err := secrets.Unwrap(key, one.Identity, one.Recipient)
		if err != nil {
			return nil, lost
		}
		all = append(all, identity)
	}
	return all, nil
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
	ref, err := environments.ParseRef(r.Environment)
	if err != nil {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	c.about("env", ref.String(), "role", r.Role)
	spec, _, err := d.Store.Environments.Spec(ctx, ref)
	if errors.Is(err, store.ErrNotFound) || err == nil && spec == nil {
		return nil, no(join.NoEnvironment, join.Params{Environment: ref.String()})
	}
	if err != nil {
		return nil, err
	}
	if _, has := spec.Role(r.Role); !has && r.Role != "" {
		return nil, no(join.NoRole, join.Params{Environment: ref.String(), Role: r.Role})
	}
	var have store.Recipients
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
	if o.As != store.RoleAdmin {
		return nil, no(join.NotAnAdmin, join.Params{})
	}
	ref, err := environments.ParseRef(r.Environment)
	if err != nil {
		return nil, no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	c.about("env", ref.String(), "role", r.Role)
	have, _, err := d.Store.Identities.Recipients(ctx, ref, r.Role)
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
			return nil, no(join.BadSecret, join.Params{Environment: ref.String(), Role: r.Role, Claimed: s.Key})
		}
		answer.Plaintexts, keys = append(answer.Plaintexts, []byte(plain)), append(keys, s.Layer+": "+s.Key)
	}
	if len(keys) > 0 { // doctor requests none
		d.Log.Warn("secrets shown to an administrator", append(c.say, "operator", o.Name, "from", c.from, "keys", strings.Join(keys, ", "))...)
	}
	return answer, nil
}

func placeOf(ref environments.Ref, s join.Sealed) secrets.Place {
	return secrets.Place{Environment: ref.String(), Layer: hieradata.Layer(s.Layer), Key: s.Key}
}

// operator returns the operator of a request, who may change data.
func (d *Server) operator(ctx context.Context, c *caller) (*store.OperatorIdentity, error) {
	name, err := d.nameIn(c)
	if err != nil {
		return nil, err
	}
	if name.Kind != pki.KindOperator {
		return nil, no(join.NotAnOperator, join.Params{})
	}
	o, _, err := d.Store.Identities.Operator(ctx, name.Subject)
	switch {
	case err != nil:
		return nil, err
	case !o.Live() || o.User != name.String():
		return nil, no(join.WrongCertificate, join.Params{Operator: name.Subject})
	case o.As != store.RoleOperator && o.As != store.RoleAdmin:
		return nil, no(join.NotAnOperator, join.Params{})
	}
	return o, nil
}

// recipients returns the recipients of a scope with at least one, and a new one first if the request rotates. It
// certifies the newest again after a rotation of the CA.
func (d *Server) recipients(ctx context.Context, ref environments.Ref, r join.SealingRequest, by string) (store.Recipients, error) {
	have, revision, err := d.Store.Identities.Recipients(ctx, ref, r.Role)
	if err != nil {
		return have, err
	}
	scope := store.RecipientScope(r.Role)
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
		return have, d.Store.Identities.PutRecipients(ctx, ref, r.Role, have, revision)
	}
	if !r.Lost {
		if err := d.keyIsKept(ctx, ref, r.Role); err != nil {
			return have, err
		}
	}
	fresh, err := d.newRecipient(ref, scope, by)
	if err != nil {
		return have, err
	}
	if len(have.Recipients) > 0 && !r.Lost { // else nodes could not read the older secrets
		if _, err := d.unwrap(ref, r.Role, have); err != nil {
			return have, err
		}
	}
	if r.Lost {
		have.Recipients = nil
	}
	have.Recipients = append([]store.Recipient{fresh}, have.Recipients...)
	have.Recipients = have.Recipients[:min(len(have.Recipients), maxRecipients)]
	return have, d.Store.Identities.PutRecipients(ctx, ref, r.Role, have, revision)
}

// keyIsKept refuses where the key is lost: a new one beside recipients of the former would hide that.
func (d *Server) keyIsKept(ctx context.Context, ref environments.Ref, role string) error {
	if _, err := d.CA.SecretsKey(nil); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	refs, err := d.Store.Environments.Named(ctx)
	for _, one := range refs {
		if err != nil {
			break
		}
		var all map[string]store.Recipients
		if all, _, err = d.Store.Identities.AllRecipients(ctx, one); len(all) > 0 {
			return no(join.IdentityLost, join.Params{Environment: ref.String(), Role: role})
		}
	}
	return err
}

func (d *Server) newRecipient(ref environments.Ref, scope, by string) (store.Recipient, error) {
	key, err := d.CA.SecretsKey(func() (string, error) {
		identity, _, err := secrets.NewIdentity()
		return identity, err
	})
	if err != nil {
		return store.Recipient{}, err
	}
	master, err := secrets.RecipientOf(key)
	if err != nil {
		return store.Recipient{}, err
	}
	identity, recipient, err := secrets.NewIdentity()
	if err != nil {
		return store.Recipient{}, err
	}
	wrapped, err := secrets.Wrap(master, identity)
	if err != nil {
		return store.Recipient{}, err
	}
	certificate, err := d.CA.IssueRecipient(ref.String(), scope, recipient)
	return store.Recipient{Recipient: recipient, Certificate: string(certificate), Identity: wrapped, At: d.Now().UTC(), By: by}, err
}

// sealAgain encrypts secrets to the newest recipient. No answer has a plaintext.
func (d *Server) sealAgain(ref environments.Ref, r join.SealingRequest, have store.Recipients) ([]join.Sealed, error) {
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
			return nil, no(join.BadSecret, join.Params{Environment: ref.String(), Role: r.Role, Claimed: s.Key})
		}
		again = append(again, s)
	}
	return again, nil
}
