package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"pulley/internal/stablehash"
)

// IssueClient issues the certificate of a node, an operator or a serve. It returns the PEM of the leaf alone.
func (c *CA) IssueClient(public crypto.PublicKey, name Name, lifetime time.Duration) ([]byte, error) {
	err := name.Check()
	if err == nil {
		err = checkKey(public)
	}
	var cert *x509.Certificate
	if err == nil {
		cert, _, err = c.issue(public, name.String(), lifetime, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
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
		keyPEM, err = EncodeKey(key)
	}
	var cert, ca *x509.Certificate
	if err == nil {
		of := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		of.DNSNames, of.IPAddresses = subjects(hosts)
		cert, ca, err = c.issue(key.Public(), "pulley serve", lifetime, of)
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

// issue issues a certificate with the use and the hosts of another one.
func (c *CA) issue(public crypto.PublicKey, subject string, lifetime time.Duration, of *x509.Certificate) (cert, ca *x509.Certificate, err error) {
	m, err := c.fresh()
	if err != nil {
		return nil, nil, err
	}
	now := c.options.Now()
	switch {
	case lifetime <= 0:
		return nil, nil, fmt.Errorf("%s is not a valid lifetime", lifetime)
	case !now.Before(m.current.NotAfter):
		return nil, nil, fmt.Errorf("the CA expired at %s\nrun `pulley ca rotate`: the next CA then signs", m.current.NotAfter.Format(time.RFC3339))
	case now.Before(m.current.NotBefore):
		return nil, nil, fmt.Errorf("the CA begins at %s, and this machine's clock shows %s\ncheck the clock; if it is correct, the CA was made with a wrong clock: "+
			"start `pulley serve` in an empty data folder", m.current.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	t := c.template(pkix.Name{CommonName: subject}, now, lifetime)
	t.KeyUsage, t.ExtKeyUsage, t.DNSNames, t.IPAddresses, t.URIs = x509.KeyUsageDigitalSignature, of.ExtKeyUsage, of.DNSNames, of.IPAddresses, of.URIs
	if t.NotAfter.After(m.current.NotAfter) {
		t.NotAfter = m.current.NotAfter
	}
	return sign(t, m.current, public, m.key)
}

func sign(t, ca *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, *x509.Certificate, error) {
	if key == nil {
		return nil, nil, errors.New("its key is not available")
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, public, key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, ca, err
}

// clockSkew is the time by which certificates are backdated, for machines with slow clocks.
const clockSkew = time.Hour

// After a rotation each node renews in one slot of every cycle of rotationSlots slots. A node that ticks at least once
// a slot renews within two cycles. A slot is longer than the time between two ticks.
const (
	rotationSlot  = 15 * time.Minute
	rotationSlots = 8
)

// Issued returns the time at which this package made a certificate.
func Issued(leaf *x509.Certificate) time.Time {
	if issued := leaf.NotBefore.Add(clockSkew); issued.Before(leaf.NotAfter) {
		return issued
	}
	return leaf.NotBefore
}

// RenewDue reports whether a node or operator must renew its certificate. One reason is its age: between 5/12 and 4/12
// of its life are left. The other is a rotation: the servers' certificate has another CA and the slot of this name has
// come. serverIssuer is the authority key ID of the servers' certificate; nil means unknown.
func RenewDue(leaf *x509.Certificate, serverIssuer []byte, name string, now time.Time) bool {
	life := leaf.NotAfter.Sub(Issued(leaf))
	early := time.Duration(stablehash.Fraction("renew", name, string(leaf.SerialNumber.Bytes())) * float64(life/12))
	if left := leaf.NotAfter.Sub(now); left < life/3+early {
		return true
	}
	if len(serverIssuer) == 0 || len(leaf.AuthorityKeyId) == 0 || bytes.Equal(serverIssuer, leaf.AuthorityKeyId) {
		return false
	}
	if now.Sub(Issued(leaf)) < life/100 { // otherwise yet another CA would cause a renewal in each tick
		return false
	}
	slot := now.UnixNano() / int64(max(min(rotationSlot, life/100), 1))
	cycle := strconv.FormatInt(slot/rotationSlots, 10)
	return stablehash.Sum("rotation", name, string(serverIssuer), cycle)%rotationSlots == uint64(slot%rotationSlots)
}
