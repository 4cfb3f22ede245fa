package pki

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// etcd would refuse a reader that gets a key with the certificate of another key in the middle of a renewal.
func TestIdentityIsReplacedAtomically(t *testing.T) {
	ca := open(t, t.TempDir(), Options{})
	file := filepath.Join(t.TempDir(), "node.pem")
	ids := []Identity{client(t, ca, time.Hour), client(t, ca, time.Hour)}
	if err := ids[0].Save(file); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			if err := ids[i%2].Save(file); err != nil {
				t.Error(err)
			}
		}
	}()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		both, err := os.ReadFile(file)
		if err == nil {
			_, err = tls.X509KeyPair(both, both)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if all := files(t, filepath.Dir(file)); len(all) != 1 {
		t.Errorf("%d files are left", len(all))
	}
}

// A damaged file must differ from a missing one: a node without an identity joins, and a node with a damaged one
// reports an error.
func TestInvalidIdentitiesAreRejected(t *testing.T) {
	dir := t.TempDir()
	ca := open(t, filepath.Join(dir, "pki"), Options{})
	id, other := client(t, ca, time.Hour), client(t, ca, time.Hour)
	if err := (Identity{Key: id.Key, Certificates: other.Certificates}).Save(filepath.Join(dir, "mixed.pem")); err == nil {
		t.Error("a key is kept with another's certificate")
	}
	if _, err := LoadIdentity(filepath.Join(dir, "mixed.pem")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	key, err := EncodeKey(other.Key)
	if err != nil {
		t.Fatal(err)
	}
	cert := string(encodeCertificates(id.Leaf()))
	for what, c := range map[string]struct{ text, says string }{
		"empty":          {"", "no key"},
		"key alone":      {string(key), "no certificate"},
		"cert alone":     {cert, "no key"},
		"mixed":          {string(key) + cert, "of another key"},
		"two keys":       {string(key) + string(key) + cert, "more than one key"},
		"damaged":        {strings.Replace(cert, "MII", "AAA", 1), "cannot read the identity"},
		"far too large":  {strings.Repeat("#", maxFileBytes+1), "larger"},
		"with old block": {"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n", "cannot be read"},
	} {
		if _, err := LoadIdentity(write(t, filepath.Join(dir, "bad.pem"), c.text)); err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A repeated join must use the same key.
func TestKeyIsStoredBeforeCertificate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.key")
	if _, err := LoadKey(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	key := newKey(t)
	if err := SaveKey(file, key); err != nil {
		t.Fatal(err)
	}
	back, err := LoadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := KeyDigest(key.Public())
	b, _ := KeyDigest(back.Public())
	if a != b || !strings.HasPrefix(a, "sha256:") {
		t.Errorf("%s and %s", a, b)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func FuzzParsePEM(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	text, err := EncodeKey(key)
	if err != nil {
		f.Fatal(err)
	}
	ca, err := OpenCA(f.TempDir(), Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(text, ca.Bundle()...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN RSA PRIVATE KEY-----\n-----END RSA PRIVATE KEY-----\n"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if certs, _, err := parsePEM(b); err == nil {
			for _, c := range certs {
				_ = Fingerprint(c)
				_ = RenewDue(c, nil, "compute1", c.NotBefore)
			}
		}
	})
}
