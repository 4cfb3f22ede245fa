package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrPin is what a connection ends with when the server has no certificate of a CA with one of the pins.
var ErrPin = errors.New("it has no certificate of the CA that was pinned")

// ParseFingerprint checks a pin that was typed or pasted, and brings it into the form that Fingerprint has.
func ParseFingerprint(s string) (string, error) {
	pin := strings.ToLower(strings.TrimSpace(s))
	b, err := hex.DecodeString(strings.TrimPrefix(pin, "sha256:"))
	if err != nil || len(b) != 32 || !strings.HasPrefix(pin, "sha256:") {
		return "", fmt.Errorf("cannot use %q as a CA's fingerprint: it is not sha256: and 64 hexadecimal digits", s)
	}
	return pin, nil
}

// Pinned is how to reach a server of which only the pins of its CA are known: TLS 1.3, and the server has to show a CA
// certificate with one of the pins that signed its own, which is valid now and for the name that was dialled. A server that
// is dialled by address needs Named too, as TLS tells no address.
func Pinned(fingerprints []string) (*tls.Config, error) {
	if len(fingerprints) == 0 {
		return nil, errors.New("cannot know a server: no fingerprint of its CA is given")
	}
	pins := make([]string, 0, len(fingerprints))
	for _, f := range fingerprints {
		pin, err := ParseFingerprint(f)
		if err != nil {
			return nil, err
		}
		pins = append(pins, pin)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection verifies, also where a session is resumed
		VerifyConnection:   func(s tls.ConnectionState) error { return verifyPinned(s, pins) },
	}, nil
}

func verifyPinned(s tls.ConnectionState, pins []string) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("cannot trust the server: %w", ErrPin)
	}
	if s.ServerName == "" {
		return errors.New("cannot trust the server: it was dialled without a name to check")
	}
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	found := false
	for _, c := range s.PeerCertificates[1:] {
		if c.IsCA && slices.Contains(pins, Fingerprint(c)) {
			roots.AddCert(c)
			found = true
		} else {
			others.AddCert(c)
		}
	}
	leaf := s.PeerCertificates[0]
	if !found {
		return fmt.Errorf("cannot trust the server %s: %w (%s)\nit is another fleet's, its CA was replaced, or somebody stands in between; `pulley ca show` beside `pulley serve` tells the fingerprints",
			s.ServerName, ErrPin, strings.Join(pins, ", "))
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		DNSName: s.ServerName, Roots: roots, Intermediates: others, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return fmt.Errorf("cannot trust the server %s: %w", s.ServerName, err)
	}
	return nil
}

// Named is a client's configuration for one host, a name or an address: each is checked against the server's certificate.
func Named(config *tls.Config, host string) *tls.Config {
	c := config.Clone()
	c.ServerName = host
	if verify := c.VerifyConnection; verify != nil {
		c.VerifyConnection = func(s tls.ConnectionState) error {
			s.ServerName = host // empty for an address
			return verify(s)
		}
	}
	return c
}
