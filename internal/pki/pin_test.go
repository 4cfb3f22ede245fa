package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// serve runs a TLS server with a chain, for handshakes only.
func serve(t *testing.T, config *tls.Config) (port string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.(*tls.Conn).Handshake() // the client checks the result
				_, _ = c.Read(make([]byte, 1))
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

func dial(t *testing.T, config *tls.Config, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err == nil {
		c.Close()
	}
	return err
}

func server(t *testing.T, ca *CA, hosts ...string) tls.Certificate {
	t.Helper()
	certs, key, err := ca.IssueServer(hosts, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// A new machine must send its token only to its fleet's serve.
func TestPinsAuthenticateServer(t *testing.T) {
	now := time.Now()
	ours := open(t, t.TempDir(), Options{})
	theirs := open(t, t.TempDir(), Options{})
	old := open(t, t.TempDir(), Options{Now: func() time.Time { return now.Add(-48 * time.Hour) }})
	good := server(t, ours)

	forged := server(t, theirs)
	forged.Certificate = append(forged.Certificate[:1:1], ours.Authorities()[0].Certificate.Raw) // our CA's certificate, which did not sign the leaf
	both := server(t, theirs)
	both.Certificate = append(both.Certificate, ours.Authorities()[0].Certificate.Raw)
	bare := server(t, ours)
	bare.Certificate = bare.Certificate[:1]
	key := newKey(t)
	posing, _, err := ours.issue(key.Public(), nodeName("compute1").String(), time.Hour, &x509.Certificate{
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, DNSNames: []string{"localhost"},
	})
	if err != nil {
		t.Fatal(err)
	}
	node := Identity{Key: key, Certificates: []*x509.Certificate{posing}}.Certificate()
	node.Certificate = append(node.Certificate, ours.Authorities()[0].Certificate.Raw)
	if err := ours.Rotate(false); err != nil {
		t.Fatal(err)
	}
	rotated := server(t, ours)
	pins := []string{ours.Authorities()[0].Fingerprint, ours.Authorities()[1].Fingerprint} // from before the rotation

	for _, c := range []struct {
		what    string
		config  *tls.Config
		pins    []string
		address string
		refused string
	}{
		{"by name", &tls.Config{Certificates: []tls.Certificate{good}}, pins, "localhost", ""},
		{"by address", &tls.Config{Certificates: []tls.Certificate{good}}, pins, "127.0.0.1", ""},
		{"pin in capitals", &tls.Config{Certificates: []tls.Certificate{good}}, []string{" SHA256:" + strings.ToUpper(pins[0][7:])}, "localhost", ""},
		{"after a rotation", &tls.Config{Certificates: []tls.Certificate{rotated}}, pins, "localhost", ""},
		{"another CA's pin", &tls.Config{Certificates: []tls.Certificate{good}}, theirs.Fingerprints(), "localhost", ErrPin.Error()},
		{"another CA", &tls.Config{Certificates: []tls.Certificate{server(t, theirs)}}, pins, "localhost", ErrPin.Error()},
		{"our CA beside a forged leaf", &tls.Config{Certificates: []tls.Certificate{forged}}, pins, "localhost", "unknown authority"},
		{"our CA behind theirs", &tls.Config{Certificates: []tls.Certificate{both}}, pins, "localhost", "unknown authority"},
		{"no chain", &tls.Config{Certificates: []tls.Certificate{bare}}, pins, "localhost", ErrPin.Error()},
		{"ended", &tls.Config{Certificates: []tls.Certificate{server(t, old)}}, old.Fingerprints(), "localhost", "expired"},
		{"a node that poses as serve", &tls.Config{Certificates: []tls.Certificate{node}}, pins, "localhost", "key usage"},
		{"TLS 1.2", &tls.Config{Certificates: []tls.Certificate{good}, MaxVersion: tls.VersionTLS12}, pins, "localhost", "protocol version"},
	} {
		port := serve(t, c.config)
		config, err := Pinned(c.pins)
		if err != nil {
			t.Fatal(err)
		}
		err = dial(t, Named(config, c.address), net.JoinHostPort("127.0.0.1", port))
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v", c.what, err)
		}
	}

	port := serve(t, &tls.Config{Certificates: []tls.Certificate{good}})
	config, _ := Pinned(pins)
	for _, host := range []string{"serve.example", "10.0.0.1"} {
		if err := dial(t, Named(config, host), net.JoinHostPort("127.0.0.1", port)); err == nil || !strings.Contains(err.Error(), host) {
			t.Errorf("a server of another name than %s: %v", host, err)
		}
	}
	if err := dial(t, config, net.JoinHostPort("127.0.0.1", port)); err == nil {
		t.Error("a server that is dialled by address has any name")
	}
}

// A truncated pin must be reported before anything is sent.
func TestInvalidPinsAreRejected(t *testing.T) {
	pin := open(t, t.TempDir(), Options{}).Fingerprints()[0]
	for _, pins := range [][]string{nil, {""}, {pin, ""}, {pin[:len(pin)-1]}, {pin[7:]}, {"sha256:" + strings.Repeat("g", 64)}, {"sha1:" + pin[7:]}} {
		if _, err := Pinned(pins); err == nil {
			t.Errorf("%q is taken", pins)
		}
	}
}

// A server's certificate must not be accepted for a client, and a client's only for its own name.
func TestServerAcceptsOnlyClientCertificates(t *testing.T) {
	ca := open(t, t.TempDir(), Options{})
	id := client(t, ca, time.Hour)
	config, err := id.TLS(ca.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	accept := func(clientConfig *tls.Config) error {
		t.Helper()
		ours, theirs := net.Pipe()
		done := make(chan error, 1)
		go func() {
			defer theirs.Close()
			done <- tls.Server(theirs, &tls.Config{Certificates: []tls.Certificate{server(t, ca)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: config.RootCAs}).Handshake()
		}()
		conn := tls.Client(ours, Named(clientConfig, "localhost"))
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		err := conn.Handshake()
		_, _ = conn.Read(make([]byte, 1)) // the alert
		ours.Close()
		return errors.Join(err, <-done)
	}
	if err := accept(config); err != nil {
		t.Error(err)
	}
	config.Certificates = []tls.Certificate{server(t, ca)}
	if accept(config) == nil {
		t.Error("a server's certificate is let in as a client's")
	}
	probe, err := ca.Probe()
	if err != nil {
		t.Fatal(err)
	}
	config.Certificates = []tls.Certificate{probe}
	if err := accept(config); err != nil {
		t.Errorf("the next CA is not trusted: %v", err)
	}
}
