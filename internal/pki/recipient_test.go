package pki

import (
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// A CA whose files are links to a volume that is not mounted must not be created again, and no former key of it be trusted again.
func TestLinkedFilesOfTheCAAreNotReplaced(t *testing.T) {
	t.Parallel()
	for _, name := range []string{currentCert, currentKey, nextCert, nextKey, previousCert, retiredCerts} {
		dir := t.TempDir()
		open(t, dir, Options{})
		_ = os.Remove(filepath.Join(dir, name))
		if name == currentKey || name == nextKey { // else the key is not made again
			_ = os.Remove(filepath.Join(dir, strings.TrimSuffix(name, ".key")+".pem"))
		}
		if name == retiredCerts {
			remove(t, dir, nextCert)
		}
		if name == currentKey {
			remove(t, dir, nextCert)
		}
		link := filepath.Join(dir, name)
		if err := os.Symlink(filepath.Join(dir, "volume", name), link); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCA(dir, Options{}); err == nil || !strings.Contains(err.Error(), "a link to a missing file\nmount the volume") {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s: the link was replaced (%v)", name, err)
		}
	}
}
