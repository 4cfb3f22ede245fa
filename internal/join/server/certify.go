package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// certifyTime bounds the creation of a user, and the check after it. The client's timeout does not apply: a client
// that disconnects in between must not leave the user of a removed node behind.
const certifyTime = time.Minute

// certify creates the user of a recorded identity, and its certificate. It first deletes the users of former
// incarnations.
func (d *Server) certify(ctx context.Context, ref model.Ref, a joining, i placed) (join.Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*certifyTime)
	defer cancel()
	failed := d.makeUser(ctx, ref, i)
	// The node may have been removed, or have joined again, while its user was created. The removal then found no user
	// to delete.
	now, revision, err := access.IdentitiesIn(d.DB).Get(ctx, ref, i.Node)
	if err != nil {
		return join.Answer{}, err
	}
	if !now.Live() || now.User != i.User {
		err := access.In(d.DB).DropUser(ctx, i.User)
		if !now.Live() {
			err = errors.Join(err, access.In(d.DB).DropNodeRole(ctx, ref.String(), i.Node))
		}
		if err = errors.Join(err, access.In(d.DB).DropSharedRole(ctx, ref)); err != nil {
			return join.Answer{}, err
		}
		return join.Answer{}, no(join.WasRemoved, join.Params{Node: i.Node})
	}
	if failed != nil {
		return join.Answer{}, failed
	}
	if now.Replaces != "" {
		now.Replaces = ""
		if err := access.IdentitiesIn(d.DB).Put(ctx, ref, *now, revision); err != nil && !errors.Is(err, etcd.ErrConflict) {
			return join.Answer{}, err
		}
	}
	return d.issuer.node(ref, a.CSR, i.Identity)
}

// makeUser creates the user, and the shared role of its environment. After an interruption, any part of them may
// exist.
func (d *Server) makeUser(ctx context.Context, ref model.Ref, i placed) error {
	ctx, cancel := context.WithTimeout(ctx, certifyTime)
	defer cancel()
	env := ref.String()
	err := d.roles.ensure(ctx, env, rolesLastFor)
	if err == nil && !i.ready { // the user is deleted after its entry, which the join saw
		err = access.In(d.DB).EnsureNode(ctx, env, i.Node, i.User)
		if errors.Is(err, etcd.ErrNoRole) { // the environment was destroyed and created again
			if err = d.roles.ensure(ctx, env, 0); err == nil {
				err = access.In(d.DB).EnsureNode(ctx, env, i.Node, i.User)
			}
		}
	}
	if err == nil && i.Replaces != "" {
		err = access.IdentitiesIn(d.DB).DropFormer(ctx, ref, i.Node, i.User)
	}
	return err
}

// issuer signs the certificates of recorded identities.
type issuer struct{ Config }

// pin returns the fingerprint of the CA that signs now.
func (i issuer) pin() string {
	if pins := i.CA.Fingerprints(); len(pins) > 0 {
		return pins[0]
	}
	return ""
}

func (i issuer) node(ref model.Ref, csr string, of access.Identity) (join.Answer, error) {
	answer, err := i.sign(csr, of.User, i.NodeLifetime)
	answer.Environment, answer.Node, answer.Role = ref.String(), of.Node, of.Role
	return answer, err
}

func (i issuer) operator(csr string, o access.OperatorIdentity) (join.Answer, error) {
	answer, err := i.sign(csr, o.User, operatorLifetime)
	answer.Operator, answer.As = o.Name, string(o.As)
	return answer, err
}

// sign issues the certificate of a user for the key of a signing request.
func (i issuer) sign(csr, user string, lifetime time.Duration) (join.Answer, error) {
	name, err := pki.ParseName(user)
	if err != nil {
		return join.Answer{}, err
	}
	request, refused := parseCSR(csr)
	if refused != nil {
		return join.Answer{}, refused
	}
	cert, err := i.CA.IssueClient(request.PublicKey, name, lifetime)
	if err != nil {
		return join.Answer{}, fmt.Errorf("cannot sign the certificate of %s: %w", name.Subject, err)
	}
	return join.Answer{
		Certificate: string(cert), CA: string(i.CA.Bundle()), Endpoints: i.Endpoints, Prefix: "/" + i.DB.Prefix(),
	}, nil
}

// trusts reports whether a currently trusted CA signed a certificate. The listener checked that when the connection
// began, and a connection may outlive its CA.
func (i issuer) trusts(leaf *x509.Certificate) bool {
	cas, err := pki.ParseCertificates(i.CA.Bundle())
	return err == nil && slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return leaf.CheckSignatureFrom(ca) == nil })
}

// parseCSR reads a signing request. It refuses one with a name, because its sender would not get that name.
func parseCSR(text string) (*x509.CertificateRequest, *join.RefusedError) {
	r, err := pki.ParseCSR([]byte(text))
	switch {
	case err != nil:
		return nil, no(join.BadCSR, join.Params{Problem: model.Prose(clip.Text(err.Error(), maxSaid))})
	case r.Subject.String() != "" || len(r.DNSNames)+len(r.IPAddresses)+len(r.EmailAddresses)+len(r.URIs)+len(r.Extensions) > 0:
		return nil, no(join.CSRHasName, join.Params{})
	}
	return r, nil
}

// sharedRoles are the roles that the nodes of each environment share.
type sharedRoles struct {
	db  *etcd.DB
	now func() time.Time

	mu      sync.Mutex
	checked map[string]time.Time // time of the last check, by environment
}

// ensure creates or repairs the role of an environment unless it was checked a moment ago.
func (r *sharedRoles) ensure(ctx context.Context, env string, moment time.Duration) error {
	now := r.now()
	r.mu.Lock()
	checked := r.checked[env]
	r.mu.Unlock()
	if now.Sub(checked) < moment {
		return nil
	}
	if err := access.In(r.db).EnsureEnvironment(ctx, env); err != nil {
		return err
	}
	r.mu.Lock()
	r.checked[env] = now
	r.mu.Unlock()
	return nil
}
