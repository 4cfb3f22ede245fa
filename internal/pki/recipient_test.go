package pki

import (
	"crypto/x509"
	"testing"
)

// A person who can write etcd must not make operators encrypt to a key of theirs, and a recipient's certificate must open
// no connection.
func TestRecipientCannotBeSubstituted(t *testing.T) {
	t.Parallel()
	ca, err := OpenCA(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenCA(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.IssueRecipient("dev@t42", "role.web", "age1abc")
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckRecipient(ca.Bundle(), cert, "dev@t42", "role.web", "age1abc"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"environment": CheckRecipient(ca.Bundle(), cert, "prod", "role.web", "age1abc"),
		"scope":       CheckRecipient(ca.Bundle(), cert, "dev@t42", "environment", "age1abc"),
		"recipient":   CheckRecipient(ca.Bundle(), cert, "dev@t42", "role.web", "age1evil"),
		"CA":          CheckRecipient(other.Bundle(), cert, "dev@t42", "role.web", "age1abc"),
		"none":        CheckRecipient(ca.Bundle(), nil, "dev@t42", "role.web", "age1abc"),
		"the CA's":    CheckRecipient(ca.Bundle(), ca.Bundle(), "dev@t42", "role.web", "age1abc"),
	} {
		if err == nil {
			t.Errorf("another %s is accepted", what)
		}
	}
	certs, err := ParseCertificates(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Bundle())
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}}); err == nil {
			t.Errorf("the certificate can be used as %v", use)
		}
	}
	if _, err := ParseName(certs[0].Subject.CommonName); err == nil {
		t.Error("the certificate has the name of a user")
	}
}
