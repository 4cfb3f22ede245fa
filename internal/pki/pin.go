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

// ErrPin ends a connection to a server without a certificate of a CA with one of the pins.
var ErrPin = errors.New("it has no certificate of the CA that was pinned")

// ParseFingerprint checks a pin from user input, and converts it to the form of Fingerprint.
func ParseFingerprint(s string) (string, error) {
	pin := strings.ToLower(strings.TrimSpace(s))
	b, err := hex.DecodeString(strings.TrimPrefix(pin, "sha256:"))
	if err != nil || len(b) != 32 || !strings.HasPrefix(pin, "sha256:") {
		return "", fmt.Errorf("cannot use %q as a CA's fingerprint: it is not sha256: and 64 hexadecimal digits", s)
	}
	return pin, nil
}

// Pinned returns the configuration to reach a server that is known only by its CA's pins. It requires TLS 1.3. The
// server must present a CA certificate with one of the pins. That CA must have signed the server's certificate, which
// must be valid now and for the dialled name. A server that is dialled by address also needs Named, because TLS sends
// no address.
func Pinned(fingerprints []string) (*tls.Config, error) {
	if len(fingerprints) == 0 {
		return nil, errors.New("cannot authenticate a server: the fingerprint of its CA is missing")
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
		InsecureSkipVerify: true, // VerifyConnection verifies, also for resumed sessions
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
		return fmt.Errorf("cannot trust the server %s: %w (%s)\nthe server belongs to another fleet, its CA was replaced, or the connection is intercepted; `pulley ca show` on the server prints the fingerprints",
			s.ServerName, ErrPin, strings.Join(pins, ", "))
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		DNSName: s.ServerName, Roots: roots, Intermediates: others, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return fmt.Errorf("cannot trust the server %s: %w", s.ServerName, err)
	}
	return nil
}

// Named returns a client's configuration for one host, a name or an address, which is checked against the server's
// certificate.
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
