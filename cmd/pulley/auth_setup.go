package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"

	"pulley/internal/cli"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// ownIdentities are those with which a cluster of one's own begins.
type ownIdentities struct {
	ca                   *pki.CA
	serve, admin         pki.Identity
	serveFile, adminFile string
}

// ownIdentities makes what is missing, or soon at its end.
func (o *options) ownIdentities(ca *pki.CA, dir string) (own ownIdentities, err error) {
	own = ownIdentities{ca: ca, serveFile: filepath.Join(dir, "serve.pem"), adminFile: filepath.Join(dir, "admin.pem")}
	prefix := store.PrefixOf(o.connection.Prefix)
	host := pki.Name{Prefix: prefix, Kind: pki.KindServe, Subject: hostname(), Incarnation: pki.NewIncarnation()}
	if host.Check() != nil {
		host.Subject = "serve"
	}
	if own.serve, err = o.ownIdentity(ca, own.serveFile, host); err == nil {
		own.admin, err = o.ownIdentity(ca, own.adminFile, pki.Name{Prefix: prefix, Kind: pki.KindOperator, Subject: "admin", Incarnation: pki.NewIncarnation()})
	}
	return own, err
}

// ownIdentity reads an identity; it makes one of this name where there is none, and one of the name that it had where less
// than a third of its life is left.
func (o *options) ownIdentity(ca *pki.CA, file string, name pki.Name) (pki.Identity, error) {
	old, err := pki.LoadIdentity(file)
	switch {
	case err == nil:
		if old.Leaf().NotAfter.Sub(o.env.Now()) > identityLifetime/3 {
			return old, nil
		}
		name, err = old.Name()
	case errors.Is(err, fs.ErrNotExist):
		err = name.Check()
	}
	if err != nil {
		return pki.Identity{}, fmt.Errorf("cannot use the identity %s: %w", file, err)
	}
	key, err := pki.NewKey()
	if err != nil {
		return pki.Identity{}, err
	}
	cert, err := ca.IssueClient(key.Public(), name, identityLifetime)
	if err != nil {
		return pki.Identity{}, err
	}
	id, err := pki.NewIdentity(key, cert)
	if err == nil {
		err = id.Save(file)
	}
	if err != nil {
		err = fmt.Errorf("cannot make the identity %s: %w", file, err)
	}
	return id, err
}

// secureConnection connects as serve unless flags say as whom, and never in plain text: a user is the name in a certificate.
func (o *options) secureConnection(bundle, serve string) error {
	for _, e := range o.connection.Config().Endpoints {
		if u, err := url.Parse(e); err != nil || u.Scheme != "https" {
			return cli.Usagef("%s is no https URL: etcd can tell its users apart only by their certificates", e)
		}
	}
	if o.connection.CACert == "" {
		o.connection.CACert = bundle
	}
	if o.connection.Cert == "" && o.connection.Key == "" {
		o.connection.Cert, o.connection.Key = serve, serve
	}
	return nil
}

func (o *options) setUpAuth(ctx context.Context, s *store.Store, own ownIdentities) error {
	if err := s.SetUpAuth(ctx, own.serve.Leaf().Subject.CommonName); err != nil {
		return err
	}
	names, err := s.Environments(ctx)
	if err != nil {
		return err
	}
	for _, env := range names {
		if err := s.EnsureEnvironment(ctx, env); err != nil {
			return err
		}
	}
	return o.ensureAdmin(ctx, s, own)
}

// ensureAdmin puts the first administrator on the list, unless the name has another identity by now, or was revoked.
func (o *options) ensureAdmin(ctx context.Context, s *store.Store, own ownIdentities) error {
	name, err := own.admin.Name()
	if err != nil {
		return err
	}
	old, revision, err := s.Operator(ctx, name.Subject)
	if err != nil {
		return err
	}
	if old != nil && old.User != name.String() {
		return nil
	}
	digest, err := pki.KeyDigest(own.admin.Key.Public())
	if err != nil {
		return err
	}
	issued := pki.Issued(own.admin.Leaf())
	record := store.OperatorIdentity{
		Name: name.Subject, As: store.RoleAdmin, User: name.String(), Incarnation: name.Incarnation, Key: digest,
		Joined: issued, Issued: issued, Until: own.admin.Leaf().NotAfter, CA: own.ca.Fingerprints()[0], By: o.env.User,
	}
	if old != nil {
		record.Joined, record.By = old.Joined, old.By
	}
	if err := s.PutOperator(ctx, record, revision); err != nil {
		return err
	}
	return s.EnsureOperator(ctx, name.String(), store.RoleAdmin)
}
