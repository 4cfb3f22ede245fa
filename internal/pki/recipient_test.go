package pki

import (
	"crypto/x509"
	"errors"
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

// A key that is there and cannot be used, or whose volume is not mounted, must neither count as lost nor be replaced: its secrets would be lost.
func TestOnlyMissingSecretsKeyIsMade(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		spoil func(dir, file string) error
		says  string // "": it is made
	}{
		"missing":          {func(string, string) error { return nil }, ""},
		"link to nothing":  {func(dir, file string) error { return os.Symlink(filepath.Join(dir, "volume/secrets.key"), file) }, "a link to a missing file"},
		"empty":            {func(_, file string) error { return os.WriteFile(file, nil, 0o600) }, "is empty or damaged"},
		"damaged":          {func(_, file string) error { return os.WriteFile(file, []byte("AGE-SECRET-KEY-1\n"), 0o600) }, "is empty or damaged"},
		"folder":           {func(_, file string) error { return os.Mkdir(file, 0o700) }, "is a directory"},
		"unmounted folder": {func(dir, _ string) error { return os.Remove(filepath.Join(dir, currentCert)) }, "volume of the folder may not be mounted"},
	} {
		dir := t.TempDir()
		ca := open(t, dir, Options{})
		file := filepath.Join(dir, secretsKey)
		if err := c.spoil(dir, file); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(file)
		_, err := ca.SecretsKey(false)
		key, made := ca.SecretsKey(true)
		if c.says == "" {
			again, read := ca.SecretsKey(true)
			if !errors.Is(err, fs.ErrNotExist) || made != nil || read != nil || again != key {
				t.Errorf("%s: %v, %v, %v", what, err, made, read)
			}
			continue
		}
		for _, err := range []error{err, made} {
			if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if now, _ := os.Lstat(file); (before == nil) != (now == nil) || before != nil && !os.SameFile(before, now) {
			t.Errorf("%s: the file was replaced", what)
		}
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
