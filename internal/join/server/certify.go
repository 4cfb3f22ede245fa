package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/environments"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// certifyTime bounds the creation of a user, and the check after it. The client's timeout does not apply: a client
// that disconnects in between must not leave the user of a removed node behind.
const certifyTime = time.Minute

// certify creates the user of a recorded identity, and its certificate. It first deletes the users of former
// incarnations.
func (d *Server) certify(ctx context.Context, ref environments.Ref, a ask, i placed) (join.Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*certifyTime)
	defer cancel()
	env := ref.String()
	failed := d.makeUser(ctx, ref, i)
	// The node may have been removed, or have joined again, while its user was created. The removal then found no user
	// to delete.
	now, revision, err := d.Store.Identities.Get(ctx, ref, i.Node)
	if err != nil {
		return join.Answer{}, err
	}
	if !now.Live() || now.User != i.User {
		if err := errors.Join(d.Store.Access.DropUser(ctx, i.User), d.dropRole(ctx, env, now, i.Node), d.Store.Access.DropSharedRole(ctx, ref)); err != nil {
			return join.Answer{}, err
		}
		return join.Answer{}, no(join.WasRemoved, join.Params{Node: i.Node})
	}
	if failed != nil {
		return join.Answer{}, failed
	}
	if now.Replaces != "" {
		now.Replaces = ""
		if err := d.Store.Identities.Put(ctx, ref, *now, revision); err != nil && !errors.Is(err, store.ErrConflict) {
			return join.Answer{}, err
		}
	}
	return d.signNode(ref, a.CSR, i.Identity)
}

// makeUser creates the user, and the shared role of its environment. After an interruption, any part of them may
// exist.
func (d *Server) makeUser(ctx context.Context, ref environments.Ref, i placed) error {
	ctx, cancel := context.WithTimeout(ctx, certifyTime)
	defer cancel()
	env := ref.String()
	err := d.sharedRole(ctx, env)
	if err == nil && !i.ready { // the user is deleted after its entry, which the join saw
		err = d.Store.Access.EnsureNode(ctx, env, i.Node, i.User)
		if errors.Is(err, store.ErrNoRole) { // the environment was destroyed and created again
			if err = d.lookAgain(ctx, env); err == nil {
				err = d.Store.Access.EnsureNode(ctx, env, i.Node, i.User)
			}
		}
	}
	if err == nil && i.Replaces != "" {
		err = d.Store.Identities.DropFormer(ctx, ref, i.Node, i.User)
	}
	return err
}

// dropRole removes the role of a name without an owner.
func (d *Server) dropRole(ctx context.Context, env string, now *store.Identity, node string) error {
	if now.Live() {
		return nil
	}
	return d.Store.Access.DropNodeRole(ctx, env, node)
}

func (d *Server) signNode(ref environments.Ref, csr string, i store.Identity) (join.Answer, error) {
	name, err := pki.ParseName(i.User)
	if err != nil {
		return join.Answer{}, err
	}
	answer, err := d.sign(csr, name, d.NodeLifetime)
	answer.Environment, answer.Node, answer.Role = ref.String(), i.Node, i.Role
	return answer, err
}

// sign issues a certificate of a name for the key of a signing request.
func (d *Server) sign(csr string, name pki.Name, lifetime time.Duration) (join.Answer, error) {
	request, refused := parseCSR(csr)
	if refused != nil {
		return join.Answer{}, refused
	}
	cert, err := d.CA.IssueClient(request.PublicKey, name, lifetime)
	if err != nil {
		return join.Answer{}, fmt.Errorf("cannot sign the certificate of %s: %w", name.Subject, err)
	}
	return join.Answer{
		Certificate: string(cert), CA: string(d.CA.Bundle()), Endpoints: d.Endpoints, Prefix: "/" + d.Store.Prefix(),
	}, nil
}

// sharedRole checks the shared role of an environment's nodes from time to time, and creates or repairs it.
func (d *Server) sharedRole(ctx context.Context, env string) error {
	d.mu.Lock()
	looked, now := d.roles[env], d.Now()
	d.mu.Unlock()
	if now.Sub(looked) < rolesLastFor {
		return nil
	}
	if err := d.Store.Access.EnsureEnvironment(ctx, env); err != nil {
		return err
	}
	d.mu.Lock()
	d.roles[env] = now
	d.mu.Unlock()
	return nil
}

// lookAgain is sharedRole without the pause.
func (d *Server) lookAgain(ctx context.Context, env string) error {
	d.mu.Lock()
	delete(d.roles, env)
	d.mu.Unlock()
	return d.sharedRole(ctx, env)
}
