package fleetca

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/pki"
	"pulley/internal/specs"
)

// AdminName is the name of the first administrator.
const AdminName = "admin"

// SetUpUsers creates the users of serve and, once, of the first administrator in serve's own etcd. It returns the
// administrator's identity file if this call created the user. It may be repeated: a call completes an interrupted
// one.
func (c *Certificates) SetUpUsers(ctx context.Context, st *etcd.DB) (admin string, err error) {
	on, err := access.In(st).AuthEnabled(ctx)
	if err != nil {
		return "", err
	}
	if !on {
		if err := c.prepareAdmin(); err != nil {
			return "", err
		}
	}
	if err := access.In(st).SetUpAuth(ctx, c.User()); err != nil {
		return "", err
	}
	if err := c.dropFormer(ctx, st); err != nil {
		return "", err
	}
	id, err := pki.LoadIdentity(c.newAdmin())
	if errors.Is(err, fs.ErrNotExist) {
		if err = c.RecordRenewal(ctx, st); errors.As(err, new(*etcd.UnreadableError)) {
			err = nil // a task of serve repeats it, and `pulley doctor` names the key
		}
		return "", err
	}
	if err != nil {
		return "", err
	}
	if err := c.recordAdmin(ctx, st, id, "pulley serve"); err != nil {
		return "", err
	}
	if err := os.Rename(c.newAdmin(), c.admin()); err != nil {
		return "", fmt.Errorf("cannot store the administrator's identity: %w", err)
	}
	return c.admin(), nil
}

// MakeIdentities creates the identities of serve and of the first administrator for a cluster that serve does not run,
// and renews those that are due.
func (c *Certificates) MakeIdentities() error {
	return errors.Join(c.refreshIdentity(c.Identity(), pki.KindServe, c.hostname, adminLifetime),
		c.refreshIdentity(c.admin(), pki.KindOperator, AdminName, adminLifetime))
}

// SetUpCluster creates the roles and users of a cluster that serve does not run, and enables etcd's authentication. It
// keeps an administrator who logged in again or was revoked. It may be repeated.
func (c *Certificates) SetUpCluster(ctx context.Context, st *etcd.DB, by string) error {
	if err := access.In(st).SetUpAuth(ctx, c.User()); err != nil {
		return err
	}
	names, err := specs.In(st).List(ctx)
	if err != nil {
		return err
	}
	for _, env := range names {
		if err := access.In(st).EnsureEnvironment(ctx, env); err != nil {
			return err
		}
	}
	id, err := pki.LoadIdentity(c.admin())
	if err != nil {
		return err
	}
	old, _, err := access.IdentitiesIn(st).Operator(ctx, AdminName)
	if err != nil || old != nil && old.User != id.Leaf().Subject.CommonName {
		return err
	}
	return c.recordAdmin(ctx, st, id, by)
}

// Missing is what SetUpCluster would add to a cluster.
type Missing struct {
	AuthOff bool     // it would enable etcd's authentication
	Users   []string // by name, or by the file of an identity that it would create first
	Roles   []string
}

// Missing reads what SetUpCluster would add. It creates nothing: without serve's identity, it connects as nobody.
func (c *Certificates) Missing(ctx context.Context, connection etcd.Config) (m Missing, err error) {
	look := func(st *etcd.DB) error { m, err = c.missing(ctx, st); return err }
	if connection.Cert == c.Identity() && c.User() == "" {
		return m, c.asNobody(connection, func(st *etcd.DB, _ tls.Certificate) error { return look(st) })
	}
	st, err := etcd.Open(connection)
	if err != nil {
		return m, err
	}
	return m, errors.Join(look(st), st.Close())
}

func (c *Certificates) missing(ctx context.Context, st *etcd.DB) (Missing, error) {
	has, err := access.In(st).State(ctx)
	if err != nil {
		return Missing{}, err
	}
	m := Missing{AuthOff: !has.On}
	if has.On && !has.Admin {
		return m, errors.New("cannot list etcd's users and roles: etcd authenticates its users\ngive --cert and --key of a user with etcd's role root")
	}
	if !has.Users[access.RootUser] {
		m.Users = append(m.Users, access.RootUser)
	}
	for _, file := range []string{c.Identity(), c.admin()} {
		id, err := pki.LoadIdentity(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			m.Users = append(m.Users, "of a new identity in "+file)
		case err != nil:
			return m, err
		case !has.Users[id.Leaf().Subject.CommonName]:
			m.Users = append(m.Users, id.Leaf().Subject.CommonName)
		}
	}
	environs, err := specs.In(st).List(ctx)
	roles := []string{access.In(st).OperatorRole(access.RoleViewer), access.In(st).OperatorRole(access.RoleOperator)}
	for _, env := range environs {
		roles = append(roles, access.In(st).NodesRole(env))
	}
	for _, role := range roles {
		if !slices.Contains(has.Roles, role) {
			m.Roles = append(m.Roles, role)
		}
	}
	return m, err
}

// RemakeAdmin creates a new identity of the administrator. It deletes the user of the former identity: its copies are no
// longer valid. After an interruption the next start of serve, or the next call, completes it.
func (c *Certificates) RemakeAdmin(ctx context.Context, st *etcd.DB, by string) (file string, err error) {
	old, _, err := access.IdentitiesIn(st).Operator(ctx, AdminName)
	if err != nil {
		return "", err
	}
	name := pki.Name{Prefix: c.prefix, Kind: pki.KindOperator, Subject: AdminName, Incarnation: pki.NewIncarnation()}
	if err := c.Issue(c.newAdmin(), name, adminLifetime); err != nil {
		return "", fmt.Errorf("cannot make the identity of the administrator: %w", err)
	}
	id, err := pki.LoadIdentity(c.newAdmin())
	if err == nil {
		err = c.recordAdmin(ctx, st, id, by)
	}
	if err != nil {
		return "", err
	}
	if err := os.Rename(c.newAdmin(), c.admin()); err != nil {
		return "", fmt.Errorf("cannot store the administrator's identity: %w", err)
	}
	if old.Live() && old.User != name.String() {
		err = access.In(st).DropUser(ctx, old.User)
	}
	return c.admin(), err
}

// recordAdmin creates the administrator's user and its entry in the list of operators.
func (c *Certificates) recordAdmin(ctx context.Context, st *etcd.DB, id pki.Identity, by string) error {
	name, err := id.Name()
	if err != nil {
		return err
	}
	key, err := pki.KeyDigest(id.Key.Public())
	if err != nil {
		return err
	}
	if err := access.In(st).EnsureOperator(ctx, name.String(), access.RoleAdmin); err != nil {
		return err
	}
	old, revision, err := access.IdentitiesIn(st).Operator(ctx, name.Subject)
	if err != nil {
		return err
	}
	issued := pki.Issued(id.Leaf())
	record := access.OperatorIdentity{
		Name: name.Subject, As: access.RoleAdmin, User: name.String(), Incarnation: name.Incarnation, Key: key,
		Joined: issued, Issued: issued, Until: id.Leaf().NotAfter, CA: c.CA.Fingerprints()[0], By: by,
	}
	if old != nil && old.User == record.User {
		record.Joined, record.By = old.Joined, old.By
	}
	return access.IdentitiesIn(st).PutOperator(ctx, record, revision)
}

// dropFormer deletes the users of earlier identities of this serve. No other serve uses this folder.
func (c *Certificates) dropFormer(ctx context.Context, st *etcd.DB) error {
	users, err := access.In(st).Users(ctx)
	if err != nil {
		return err
	}
	for _, user := range users {
		name, err := pki.ParseName(user)
		if err != nil || name.Kind != pki.KindServe || name.Prefix != st.Prefix() || user == c.User() {
			continue
		}
		if err := access.In(st).DropUser(ctx, user); err != nil {
			return err
		}
	}
	return nil
}

// refreshAdmin renews the administrator's identity while its file is in the folder. It never creates one: that happens
// once.
func (c *Certificates) refreshAdmin() error {
	if _, err := os.Lstat(c.admin()); err != nil {
		return nil
	}
	return c.refreshIdentity(c.admin(), pki.KindOperator, AdminName, adminLifetime)
}

// prepareAdmin creates the first administrator's identity, which has no user in etcd yet.
func (c *Certificates) prepareAdmin() error {
	if _, err := os.Lstat(c.admin()); err == nil {
		return os.Rename(c.admin(), c.newAdmin()) // of a start whose etcd was lost or replaced
	}
	return c.refreshIdentity(c.newAdmin(), pki.KindOperator, AdminName, adminLifetime)
}

// RecordRenewal records a renewed certificate of the administrator in the list of operators, once for each renewal.
func (c *Certificates) RecordRenewal(ctx context.Context, st *etcd.DB) error {
	if !c.own {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id, err := pki.LoadIdentity(c.admin())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	key, err := pki.KeyDigest(id.Key.Public()) // each renewal has a new one
	if err != nil || key == c.recorded {
		return err
	}
	o, revision, err := access.IdentitiesIn(st).Operator(ctx, AdminName)
	if err != nil {
		return fmt.Errorf("cannot record the administrator's renewed certificate: %w", err)
	}
	if o.Live() && o.User == id.Leaf().Subject.CommonName && o.Key != key {
		o.Key, o.Issued, o.Until, o.CA = key, pki.Issued(id.Leaf()), id.Leaf().NotAfter, c.CA.Fingerprints()[0]
		if err := access.IdentitiesIn(st).PutOperator(ctx, *o, revision); err != nil {
			return fmt.Errorf("cannot record the administrator's renewed certificate: %w", err)
		}
	}
	c.recorded = key
	return nil
}
