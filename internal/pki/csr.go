package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
)

const typeCSR = "CERTIFICATE REQUEST"

// NewKey creates a P-256 key.
func NewKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// CSR returns a certificate request for a key, as PEM. It has no subject: the signer decides the name.
func CSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: der}), nil
}

// ParseCSR parses the result of CSR. The request proves that its sender has the key. It accepts the keys P-256,
// Ed25519, and RSA from 2048 to 4096 bits. Callers must ignore a subject or names in the request.
func ParseCSR(pemBytes []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(pemBytes)
	if block == nil || block.Type != typeCSR {
		return nil, errors.New("cannot read the certificate request: it is no PEM block of that type")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate request: %w", err)
	}
	if err := checkKey(r.PublicKey); err != nil {
		return nil, fmt.Errorf("cannot accept the certificate request: %w", err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("cannot accept the certificate request: it is not signed by its own key: %w", err)
	}
	return r, nil
}

const minRSABits, maxRSABits = 2048, 4096

func checkKey(public crypto.PublicKey) error {
	switch k := public.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return fmt.Errorf("its key is on the curve %s; make one on P-256", k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("its RSA key has %d bits; make one of %d to %d", bits, minRSABits, maxRSABits)
		}
	default:
		return fmt.Errorf("its key is of the kind %T; make one on P-256", public)
	}
	return nil
}

// KeyDigest returns the name of a public key: "sha256:" and the hexadecimal SHA-256 of its SubjectPublicKeyInfo.
func KeyDigest(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("cannot name a key by its digest: %w", err)
	}
	return digest(der), nil
}

// Fingerprint returns the name of a certificate by its key: "sha256:" and the hexadecimal SHA-256 of its
// SubjectPublicKeyInfo, like kubeadm's pin of a CA. The pin of a CA is its certificate's fingerprint.
func Fingerprint(cert *x509.Certificate) string { return digest(cert.RawSubjectPublicKeyInfo) }

func digest(der []byte) string {
	sum := sha256.Sum256(der)
	return "sha256:" + hex.EncodeToString(sum[:])
}
