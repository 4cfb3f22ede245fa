package pki

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"
)

// A leaf with more than its purpose, or a longer life than its CA, would grant unintended access.
func TestLeavesAreForOnePurpose(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	ca := open(t, dir, Options{Now: func() time.Time { return now }})
	leaf := client(t, ca, 90*24*time.Hour).Leaf()
	if leaf.IsCA || !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("a client's certificate: %+v", leaf)
	}
	if got := now.Sub(leaf.NotBefore).Round(time.Second); got < time.Hour || got > time.Hour+time.Second {
		t.Errorf("it is dated back by %s", got)
	}
	certs, key, err := ca.IssueServer([]string{"10.0.0.1", "serve.example", "10.0.0.1", "0.0.0.0", "localhost", ""}, 100*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(certs, key); err != nil {
		t.Error(err)
	}
	chain, err := ParseCertificates(certs)
	if err != nil || len(chain) != 2 || Fingerprint(chain[1]) != ca.Fingerprints()[0] {
		t.Fatalf("the chain is %d long: %v", len(chain), err)
	}
	server := chain[0]
	if !slices.Equal(server.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || !server.NotAfter.Equal(chain[1].NotAfter) {
		t.Errorf("a server's certificate: %v, until %s", server.ExtKeyUsage, server.NotAfter)
	}
	if !slices.Equal(server.DNSNames, []string{"localhost", "serve.example"}) || len(server.IPAddresses) != 3 {
		t.Errorf("its names are %q and %v", server.DNSNames, server.IPAddresses)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "10.0.0.1", "serve.example"} {
		if err := server.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}

// A failed issue must leave nothing behind.
func TestIssueRefuses(t *testing.T) {
	now := time.Now()
	ca := open(t, t.TempDir(), Options{Now: func() time.Time { return now }})
	good := newKey(t).Public()
	if _, err := ca.IssueClient(good, nodeName("a/b"), time.Hour); err == nil {
		t.Error("a name that is none")
	}
	if _, err := ca.IssueClient(good, nodeName("compute1"), 0); err == nil {
		t.Error("no lifetime")
	}
	if _, err := ca.IssueClient("key", nodeName("compute1"), time.Hour); err == nil {
		t.Error("no key")
	}
	now = now.Add(11 * 365 * 24 * time.Hour)
	if _, err := ca.IssueClient(good, nodeName("compute1"), time.Hour); err == nil || !strings.Contains(err.Error(), "ca rotate") {
		t.Errorf("a CA that ended: %v", err)
	}
}
