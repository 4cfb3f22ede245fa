package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestMain turns this program into the signing command if it is started as one. Its argument is the key file.
func TestMain(m *testing.M) {
	if os.Getenv("PULLEY_SIGN_HASH") == "" {
		os.Exit(m.Run())
	}
	if err := signAsCommand(os.Args[1], os.Getenv("PULLEY_SIGN_HASH")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func signAsCommand(file, hash string) error {
	if hash != crypto.SHA256.String() {
		return fmt.Errorf("this token knows no %s", hash)
	}
	key, err := LoadKey(file)
	if err != nil {
		return err
	}
	digest, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	signature, err := key.Sign(rand.Reader, digest, crypto.SHA256)
	if err == nil {
		_, err = os.Stdout.Write(signature)
	}
	return err
}

func open(t *testing.T, dir string, o Options) *CA {
	t.Helper()
	ca, err := OpenCA(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func nodeName(node string) Name {
	return Name{Prefix: "pulley", Kind: KindNode, Environment: "dev", Subject: node, Incarnation: NewIncarnation()}
}

// client returns the identity of a node.
func client(t *testing.T, ca *CA, lifetime time.Duration) Identity {
	t.Helper()
	key := newKey(t)
	cert, err := ca.IssueClient(key.Public(), nodeName("compute1"), lifetime)
	if err != nil {
		t.Fatal(err)
	}
	id, err := NewIdentity(key, cert)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// trusted returns an error if a bundle does not verify a client's certificate.
func trusted(t *testing.T, bundle []byte, leaf *x509.Certificate, now time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatal("the bundle is empty")
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// files returns the names and contents of the files in a folder.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}

func remove(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
