package etcdtest

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/serve/member"
)

// Serve is the user that StartAuth creates for `pulley serve`.
const Serve = "pulley/serve/test/00000000000000aa"

// Auth is a member with TLS and authentication. Each client has a certificate, whose common name is its user.
type Auth struct {
	*Server
	PKI PKI

	issued  map[string][2]string // certificate and key by common name
	clients map[string]*clientv3.Client
}

// AuthOptions are the options of StartAuth.
type AuthOptions struct {
	QuotaBytes int64  // member.DefaultQuota when 0
	Trusted    []byte // PEM of further trusted client CAs, besides that of PKI
}

// StartAuth runs a member with authentication until the test ends. Its users are root and Serve.
func StartAuth(t testing.TB, o AuthOptions) *Auth {
	t.Helper()
	a := &Auth{PKI: NewPKI(t), issued: map[string][2]string{}, clients: map[string]*clientv3.Client{}}
	c := member.EtcdConfig{Dir: t.TempDir(), CACert: filepath.Join(t.TempDir(), "trusted.pem"), Cert: a.PKI.ServerCert, Key: a.PKI.ServerKey,
		OperatorRole: strings.Trim(etcd.DefaultPrefix, "/") + "/" + string(access.RoleOperator)}
	own, err := os.ReadFile(a.PKI.CA)
	if err == nil {
		err = os.WriteFile(c.CACert, append(own, o.Trusted...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.Server = start(t, c, cmp.Or(o.QuotaBytes, member.DefaultQuota))
	if err := access.In(a.Admin()).SetUpAuth(t.Context(), Serve); err != nil {
		t.Fatal(err)
	}
	return a
}

// Admin returns a connection as `pulley serve`, which may do everything.
func (a *Auth) Admin() *etcd.DB { a.t.Helper(); return a.DB(Serve) }

// DB returns a connection with a certificate of this name. The test decides whether the user exists.
func (a *Auth) DB(user string) *etcd.DB {
	a.t.Helper()
	s, err := etcd.Open(a.Config(user))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = s.Close() })
	return s
}

// Config returns the connection settings with a certificate of this name, which is the same at every call.
func (a *Auth) Config(user string) etcd.Config {
	a.t.Helper()
	pair, ok := a.issued[user]
	if !ok {
		pair[0], pair[1] = a.PKI.issue(a.t, user)
		a.issued[user] = pair
	}
	return etcd.Config{Endpoints: []string{a.Endpoint}, CACert: a.PKI.CA, Cert: pair[0], Key: pair[1], Timeout: 5 * time.Second}
}

// ClientOf returns a plain client with a certificate of this name, for calls that Pulley would never make.
func (a *Auth) ClientOf(user string) *clientv3.Client {
	a.t.Helper()
	if c, ok := a.clients[user]; ok {
		return c
	}
	config := a.Config(user)
	pair, err := tls.LoadX509KeyPair(config.Cert, config.Key)
	if err != nil {
		a.t.Fatal(err)
	}
	pem, err := os.ReadFile(config.CACert)
	if err != nil {
		a.t.Fatal(err)
	}
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	secure.RootCAs.AppendCertsFromPEM(pem)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{a.Endpoint}, TLS: secure, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = c.Close() })
	a.clients[user] = c
	return c
}

// Everything lists all keys with their values, all users with their roles, all roles with their grants, and the number
// of leases: one line each, in order. Tests compare two moments with it.
func (a *Auth) Everything() []string {
	a.t.Helper()
	ctx, c := a.t.Context(), a.ClientOf(Serve)
	fail := func(err error) {
		if err != nil {
			a.t.Fatal(err)
		}
	}
	keys, err := c.Get(ctx, "", clientv3.WithFromKey())
	fail(err)
	var all []string
	for _, kv := range keys.Kvs {
		all = append(all, fmt.Sprintf("key %s at %d: %s", kv.Key, kv.ModRevision, kv.Value))
	}
	users, err := c.UserList(ctx)
	fail(err)
	for _, u := range users.Users {
		user, err := c.UserGet(ctx, u)
		fail(err)
		all = append(all, fmt.Sprintf("user %s: %v", u, user.Roles))
	}
	roles, err := c.RoleList(ctx)
	fail(err)
	for _, r := range roles.Roles {
		role, err := c.RoleGet(ctx, r)
		fail(err)
		all = append(all, fmt.Sprintf("role %s: %v", r, role.Perm))
	}
	leases, err := c.Leases(ctx)
	fail(err)
	all = append(all, fmt.Sprintf("%d leases", len(leases.Leases)))
	slices.Sort(all)
	return all
}
