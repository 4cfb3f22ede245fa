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

// noLookups is etcd's users. It fails the test if a lookup would take the lock of etcd's writes.
type noLookups struct {
	auth.AuthStore
	t *testing.T
}

func (n noLookups) IsAuthEnabled() bool { return true }
func (n noLookups) HasRole(user, role string) bool {
	n.t.Errorf("%s was looked up for role %s", user, role)
	return true
}

// A node's refused calls must cost etcd no lock: a flood of them would delay all writes.
func TestRefusedNodesAreNotLookedUp(t *testing.T) {
	t.Parallel()
	b := &bounds{operator: "pulley/operator"}
	b.guard(noLookups{t: t})
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "pulley/node/dev/compute1/0123456789abcdef"}}
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}}})
	if err := b.check(ctx, "/etcdserverpb.Lease/LeaseGrant"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a node's lease: %v", err)
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
