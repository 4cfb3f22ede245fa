package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"
	"time"
)

func request(t *testing.T, key crypto.Signer, r x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: der})
}

// A request for a foreign or weak key would lead to a certificate that others can use.
func TestRequestsAreRefused(t *testing.T) {
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, err := CSR(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(good)
	other, _ := pem.Decode(request(t, newKey(t), x509.CertificateRequest{}))
	damaged := bytes.Clone(block.Bytes)
	copy(damaged[len(damaged)-64:], other.Bytes[len(other.Bytes)-64:]) // the end of a signature
	for what, c := range map[string]struct {
		csr  []byte
		says string
	}{
		"no PEM":        {[]byte("hello"), "no PEM block"},
		"empty":         {nil, "no PEM block"},
		"other type":    {pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: block.Bytes}), "no PEM block"},
		"cut":           {pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: block.Bytes[:40]}), "cannot read"},
		"bad signature": {pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: damaged}), "not signed by its own key"},
		"another curve": {request(t, p384, x509.CertificateRequest{}), "P-384"},
		"weak RSA":      {weak(t), "1024 bits"},
	} {
		if _, err := ParseCSR(c.csr); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// weak is a request of `openssl req -new -newkey rsa:1024`: Go creates none.
func weak(t *testing.T) []byte {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0")
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return request(t, key, x509.CertificateRequest{})
}

// The subject of a request must not decide the name of the certificate.
func TestSubjectOfARequestIsIgnored(t *testing.T) {
	ca := open(t, t.TempDir(), Options{})
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.Signer{newKey(t), ed, big} {
		r, err := ParseCSR(request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "root"}, DNSNames: []string{"serve.example"}}))
		if err != nil {
			t.Fatal(err)
		}
		name := nodeName("compute1")
		cert, err := ca.IssueClient(r.PublicKey, name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		id, err := NewIdentity(key, cert)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := id.Name(); err != nil || got != name || len(id.Leaf().DNSNames) != 0 {
			t.Errorf("it is %v, %q, %v", got, id.Leaf().DNSNames, err)
		}
	}
}

func FuzzParseCSR(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	good, err := CSR(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseCSR(b); err == nil && (r.CheckSignature() != nil || checkKey(r.PublicKey) != nil) {
			t.Error("it is taken, and proves nothing")
		}
	})
}
