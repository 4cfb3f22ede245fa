package member

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"pulley/internal/serve/limits"
)

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
