package fleetca

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/pki"
)

// openCertificates creates the certificates of a serve with the clock now.
func openCertificates(t *testing.T, now func() time.Time) *Certificates {
	t.Helper()
	c, err := Open(t.TempDir(), "", "server1", true, pki.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	refresh(t, c, "serve.example", "192.0.2.7")
	return c
}

func refresh(t *testing.T, c *Certificates, hosts ...string) {
	t.Helper()
	if err := c.Refresh(hosts); err != nil {
		t.Fatal(err)
	}
}

func loadPEM(t *testing.T, file string) pki.Identity {
	t.Helper()
	id, err := pki.LoadIdentity(file)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A server certificate that expires, lacks the name that nodes use, or is of a replaced CA cuts off the fleet.
func TestCertificatesAreRenewedInTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := openCertificates(t, func() time.Time { return now })
	server, own := loadPEM(t, c.Server()), loadPEM(t, c.Identity())
	if err := server.Leaf().VerifyHostname("192.0.2.7"); err != nil || len(server.Certificates) < 2 {
		t.Fatalf("the server's certificate: %v, %d in its chain", err, len(server.Certificates))
	}
	same := func(what string, want bool) {
		t.Helper()
		newServer, newOwn := loadPEM(t, c.Server()), loadPEM(t, c.Identity())
		if newServer.Leaf().Equal(server.Leaf()) != want || newOwn.Leaf().Equal(own.Leaf()) != want {
			t.Errorf("%s: kept %t and %t", what, newServer.Leaf().Equal(server.Leaf()), newOwn.Leaf().Equal(own.Leaf()))
		}
		if newOwn.Leaf().Subject.CommonName != own.Leaf().Subject.CommonName {
			t.Errorf("%s: serve has another name", what)
		}
		server, own = newServer, newOwn
	}
	now = now.Add(serverLifetime / 2)
	refresh(t, c, "serve.example", "192.0.2.7")
	same("half of the time is over", true)
	now = now.Add(serverLifetime / 4)
	refresh(t, c, "serve.example", "192.0.2.7")
	same("a quarter is left", false)
	if err := c.CA.Rotate(false); err != nil {
		t.Fatal(err)
	}
	if err := c.Renew(); err != nil {
		t.Fatal(err)
	}
	same("the CA was rotated", false)
	if got := pki.Fingerprint(loadPEM(t, c.Server()).Certificates[1]); got != c.CA.Fingerprints()[0] {
		t.Errorf("the server shows the CA %s", got)
	}
	refresh(t, c, "other.example")
	if err := loadPEM(t, c.Server()).Leaf().VerifyHostname("other.example"); err != nil {
		t.Error(err)
	}
	bundle, err := os.ReadFile(c.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	if all, err := pki.ParseCertificates(bundle); err != nil || len(all) != 3 {
		t.Errorf("%d CAs are trusted after a rotation, %v", len(all), err)
	}
	// Certificates of a clock that was ahead are not valid yet: they would stay useless for as long.
	now = now.Add(400 * 24 * time.Hour)
	refresh(t, c, "other.example")
	now = now.Add(-400 * 24 * time.Hour)
	refresh(t, c, "other.example")
	for _, file := range []string{c.Server(), c.Identity()} {
		if leaf := loadPEM(t, file).Leaf(); now.Before(leaf.NotBefore) || leaf.Subject.CommonName == own.Leaf().Subject.CommonName != (file == c.Identity()) {
			t.Errorf("after a clock that was ahead, %s is valid from %s for %s", file, leaf.NotBefore, leaf.Subject.CommonName)
		}
	}
	// A damaged identity is kept: it may be the only remnant of an administrator.
	if err := os.WriteFile(c.Identity(), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Renew(); err == nil {
		t.Error("a damaged identity was replaced")
	}
}

// Over HTTPS a machine without a certificate must be able to join. A certificate of a foreign CA must not pass for a
// node's. A certificate of a rotated CA must be accepted without a restart.
func TestServerRequestsClientCertificates(t *testing.T) {
	t.Parallel()
	c := openCertificates(t, time.Now)
	seen := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		name := ""
		if len(r.TLS.VerifiedChains) > 0 {
			name = r.TLS.VerifiedChains[0][0].Subject.CommonName
		}
		seen <- name
	}))
	pair, err := tls.LoadX509KeyPair(c.Server(), c.Server())
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	c.AskForCertificates(server.TLS)
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA.Bundle())
	as := func(file string) (string, error) {
		t.Helper()
		config := &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}
		if file != "" {
			mine := loadPEM(t, file).Certificate()
			// Also if the server does not request a certificate of this CA.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &mine, nil }
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 10 * time.Second}
		resp, err := client.Get(server.URL)
		if err != nil {
			return "", err
		}
		_ = resp.Body.Close()
		return <-seen, nil
	}
	name := pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: "compute1", Incarnation: pki.NewIncarnation()}
	if got, err := as(""); err != nil || got != "" {
		t.Errorf("without a certificate: %q, %v", got, err)
	}
	if got, err := as(identity(t, c, name)); err != nil || got != name.String() {
		t.Errorf("with a certificate: %q, %v", got, err)
	}
	if got, err := as(identity(t, openCertificates(t, time.Now), name)); err == nil {
		t.Errorf("with a foreign certificate: %q", got)
	}
	for range 2 { // the second one is of a CA that is newer than the server's start
		if err := c.CA.Rotate(true); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := as(identity(t, c, name)); err != nil || got != name.String() {
		t.Errorf("after rotations: %q, %v", got, err)
	}
}

// identity issues a certificate of the CA for a name, with or without a user in etcd.
func identity(t *testing.T, certs *Certificates, name pki.Name) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "identity.pem")
	if err := certs.Issue(file, name, time.Hour); err != nil {
		t.Fatal(err)
	}
	return file
}
