package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// IssueClient issues the certificate of a node, an operator or a serve. It returns the PEM of the leaf alone.
func (c *CA) IssueClient(public crypto.PublicKey, name Name, lifetime time.Duration) ([]byte, error) {
	err := name.Check()
	if err == nil {
		err = checkKey(public)
	}
	var cert *x509.Certificate
	if err == nil {
		cert, _, err = c.issue(public, pkix.Name{CommonName: name.String()}, lifetime, func(t *x509.Certificate) {
			t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot issue a certificate for %s: %w", name, err)
	}
	return encodeCertificates(cert), nil
}

// IssueServer creates a key and issues the certificate of a server. It returns the PEM of the leaf followed by that of
// the CA, for clients that know only the CA's pin. hosts are names and addresses; the machine's own are always
// included.
func (c *CA) IssueServer(hosts []string, lifetime time.Duration) (certAndChainPEM, keyPEM []byte, err error) {
	key, err := NewKey()
	if err == nil {
		keyPEM, err = encodeKey(key)
	}
	var cert, ca *x509.Certificate
	if err == nil {
		cert, ca, err = c.issue(key.Public(), pkix.Name{CommonName: "pulley serve"}, lifetime, func(t *x509.Certificate) {
			t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			t.DNSNames, t.IPAddresses = subjects(hosts)
		})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot issue a server certificate: %w", err)
	}
	return encodeCertificates(cert, ca), keyPEM, nil
}

// subjects splits hosts into names and addresses without duplicates. Wildcard addresses (0.0.0.0) name no host.
func subjects(hosts []string) (names []string, addresses []net.IP) {
	for _, h := range append([]string{"localhost", "127.0.0.1", "::1"}, hosts...) {
		ip := net.ParseIP(h)
		switch {
		case ip == nil && h != "" && !slices.Contains(names, h):
			names = append(names, h)
		case ip != nil && !ip.IsUnspecified() && !slices.ContainsFunc(addresses, ip.Equal):
			addresses = append(addresses, ip)
		}
	}
	return names, addresses
}

func (c *CA) issue(public crypto.PublicKey, subject pkix.Name, lifetime time.Duration, more func(*x509.Certificate)) (cert, ca *x509.Certificate, err error) {
	m, err := c.fresh()
	if err != nil {
		return nil, nil, err
	}
	now := c.options.Now()
	switch {
	case lifetime <= 0:
		return nil, nil, fmt.Errorf("%s is no lifetime", lifetime)
	case !now.Before(m.current.NotAfter):
		return nil, nil, fmt.Errorf("the CA ended at %s\n`pulley ca rotate` makes the next one sign", m.current.NotAfter.Format(time.RFC3339))
	}
	t := c.template(subject, now, lifetime, more)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	if t.NotAfter.After(m.current.NotAfter) {
		t.NotAfter = m.current.NotAfter
	}
	return sign(t, m.current, public, m.key)
}

func sign(t, ca *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, *x509.Certificate, error) {
	if key == nil {
		return nil, nil, errors.New("its key is not at hand")
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, public, key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, ca, err
}
