package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"pulley/internal/atomicfile"
)

// Identity is a key with its certificate chain. Its file is one PEM text, and one rename renews it: no reader ever
// sees a key with the certificate of another key.
type Identity struct {
	Key          crypto.Signer
	Certificates []*x509.Certificate // the leaf first
}

// NewIdentity returns an identity of a key and the PEM of its certificates.
func NewIdentity(key crypto.Signer, certPEM []byte) (Identity, error) {
	certs, err := ParseCertificates(certPEM)
	if err != nil {
		return Identity{}, fmt.Errorf("cannot use the certificate: %w", err)
	}
	i := Identity{Key: key, Certificates: certs}
	return i, i.check()
}

func (i Identity) check() error {
	switch {
	case i.Key == nil:
		return errors.New("cannot use the identity: it has no key")
	case len(i.Certificates) == 0:
		return errors.New("cannot use the identity: it has no certificate")
	case !sameKey(i.Key.Public(), i.Certificates[0]):
		return errors.New("cannot use the identity: its certificate is of another key")
	}
	return nil
}

// Leaf returns the identity's own certificate.
func (i Identity) Leaf() *x509.Certificate { return i.Certificates[0] }

// Name returns the identity's name.
func (i Identity) Name() (Name, error) { return ParseName(i.Leaf().Subject.CommonName) }

// Certificate returns the identity for package tls.
func (i Identity) Certificate() tls.Certificate {
	t := tls.Certificate{PrivateKey: i.Key, Leaf: i.Leaf()}
	for _, c := range i.Certificates {
		t.Certificate = append(t.Certificate, c.Raw)
	}
	return t
}

// TLS returns the configuration to reach a server of the fleet as this identity. bundle is the PEM of the trusted CAs.
func (i Identity) TLS(bundle []byte) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, errors.New("cannot use the CA certificates: no PEM certificate is in them")
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{i.Certificate()}}, nil
}

// LoadIdentity reads the file of Save. A missing file is fs.ErrNotExist.
func LoadIdentity(path string) (Identity, error) {
	certs, keys, err := readPEM(path)
	if err == nil && len(keys) > 1 {
		err = fmt.Errorf("%s: it contains more than one key", path)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("cannot read the identity: %w", err)
	}
	i := Identity{Certificates: certs}
	if len(keys) == 1 {
		i.Key = keys[0]
	}
	if err := i.check(); err != nil {
		return Identity{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return i, nil
}

// Save writes key and certificates into one file, atomically and durably. Only its owner may read it. Its folder must
// exist.
func (i Identity) Save(path string) error {
	if err := i.check(); err != nil {
		return err
	}
	key, err := EncodeKey(i.Key)
	if err == nil {
		err = atomicfile.WriteNamed(path, append(key, encodeCertificates(i.Certificates...)...), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot store the identity: %w", err)
	}
	return nil
}

// SaveKey writes a key alone, like Save, before its certificate exists.
func SaveKey(path string, key crypto.Signer) error {
	b, err := EncodeKey(key)
	if err == nil {
		err = atomicfile.WriteNamed(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot store the key: %w", err)
	}
	return nil
}

// LoadKey reads the file of SaveKey. A missing file is fs.ErrNotExist.
func LoadKey(path string) (crypto.Signer, error) {
	_, keys, err := readPEM(path)
	if err == nil && len(keys) != 1 {
		err = fmt.Errorf("%s: it contains %d PEM keys, not one", path, len(keys))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the key: %w", err)
	}
	return keys[0], nil
}
