package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/auth"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"pulley/internal/serve/limits"
)

// lookups is etcd's users. It counts lookups, and those that take the lock of etcd's writes.
type lookups struct {
	auth.AuthStore
	roles        map[string]string
	reads, locks int
}

func (l *lookups) IsAuthEnabled() bool { return true }
func (l *lookups) IsAdminPermitted(of *auth.AuthInfo) error {
	l.reads++
	switch role, known := l.roles[of.Username]; {
	case !known:
		return auth.ErrUserNotFound
	case role != rootRole:
		return auth.ErrPermissionDenied
	}
	return nil
}

func (l *lookups) HasRole(user, role string) bool {
	l.locks++
	return l.roles[user] == role
}

// A node's refused calls must cost etcd no lookup, and those of a viewer one lock: a flood of them would delay all writes.
func TestRefusedNodesAreNotLookedUp(t *testing.T) {
	t.Parallel()
	users := &lookups{roles: map[string]string{"pulley/operator/ann/0123456789abcdef": "pulley/viewer", "pulley/operator/bob/0123456789abcdef": "pulley/operator", "root": "root"}}
	b := &bounds{operator: "pulley/operator", budgets: map[string]*budget{}}
	b.guard(users)
	for _, c := range []struct {
		user         string
		reads, locks int
		refused      bool
	}{
		{"pulley/node/dev/compute1/0123456789abcdef", 0, 0, true},
		{"pulley/operator/ann/0123456789abcdef", 1, 1, true},
		{"pulley/operator/gone/0123456789abcdef", 1, 0, true},
		{"", 1, 0, true},
		{"pulley/operator/bob/0123456789abcdef", 1, 1, false},
		{"root", 1, 0, false},
	} {
		users.reads, users.locks = 0, 0
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: c.user}}
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}}})
		err := b.check(ctx, "/etcdserverpb.Lease/LeaseGrant")
		if refused := err != nil && strings.Contains(err.Error(), "permission denied"); refused != c.refused || users.reads != c.reads || users.locks != c.locks {
			t.Errorf("a lease of %q: %v, after %d reads and %d locks", c.user, err, users.reads, users.locks)
		}
	}
}

// A stolen certificate must not hold more of etcd's connections than its user needs, from any number of addresses.
func TestConnectionsOfOneCertificateAreLimited(t *testing.T) {
	t.Parallel()
	c := secureConfig(t, t.TempDir())
	told := make(chan limits.Overload, 1)
	c.Connections = &limits.Connections{Total: 100, PerAddress: 100, PerUser: 2, Overloaded: func(o limits.Overload) { told <- o }}
	s := startSecure(t, c)
	config, err := s.Connection.TLS()
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"h2"}
	_, address, _ := strings.Cut(s.local(), "://")
	for n := range 3 {
		dialer := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+n))}}, Config: config}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout*6)
	defer cancel()
	select {
	case o := <-told:
		if !strings.Contains(o.User, "/serve/") || o.Open != 2 {
			t.Errorf("%+v", o)
		}
	case <-ctx.Done():
		t.Error("three connections of one certificate are open")
	}
}
