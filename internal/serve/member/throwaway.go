package member

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// throwaway holds the certificates for the first phase of a secure start. They are a CA whose key exists only in
// memory and for a moment, the member's certificate, and the certificate of etcd's user root. The member later trusts
// none of them.
type throwaway struct {
	ca, server, root string // files
	socket           string // named like the server's certificate
}

// makeThrowaway writes the certificates into a folder that only this user can read.
func makeThrowaway(dir string) (throwaway, error) {
	t := throwaway{
		ca: filepath.Join(dir, "ca.pem"), server: filepath.Join(dir, "server.pem"), root: filepath.Join(dir, "root.pem"),
		socket: filepath.Join(dir, "localhost"),
	}
	ca, err := newThrowawayCA()
	if err == nil {
		err = os.WriteFile(t.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.certificate.Raw}), 0o600)
	}
	if err == nil {
		err = ca.issue(t.server, x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	}
	if err == nil {
		err = ca.issue(t.root, x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "root"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
	if err != nil {
		return t, fmt.Errorf("cannot make certificates for the start: %w", err)
	}
	return t, nil
}

func (t throwaway) remove() {
	for _, file := range []string{t.ca, t.server, t.root} {
		_ = os.Remove(file) // the folder is deleted at the end anyway
	}
}

type throwawayCA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newThrowawayCA() (throwawayCA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return throwawayCA{}, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "start of pulley serve"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return throwawayCA{}, err
	}
	c, err = x509.ParseCertificate(der)
	return throwawayCA{c, key}, err
}

// issue writes a certificate from the template, with a new key, into one file.
func (ca throwawayCA) issue(file string, template x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.NotBefore, template.NotAfter, template.KeyUsage = ca.certificate.NotBefore, ca.certificate.NotAfter, x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.certificate, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return os.WriteFile(file, append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...), 0o600)
}
