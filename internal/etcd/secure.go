package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"pulley/internal/bounded"
)

// peer remembers the issuer of etcd's last certificate.
type peer struct {
	issuer atomic.Pointer[[]byte]
}

// ServerIssuer returns the authority key ID of etcd's last certificate, which identifies the signing CA. It is nil
// before the first connection and without TLS.
func (s *DB) ServerIssuer() []byte {
	if s == nil || s.peer == nil {
		return nil
	}
	if issuer := s.peer.issuer.Load(); issuer != nil {
		return *issuer
	}
	return nil
}

// TLS returns the TLS configuration; nil for plain text.
func (c Config) TLS() (*tls.Config, error) { return c.tls(&peer{}) }

// tls returns the TLS configuration; nil for plain text. It reads the client's certificate again for every connection.
// A renewed certificate therefore needs no new client.
func (c Config) tls(seen *peer) (*tls.Config, error) {
	secure := c.CACert != "" || c.Cert != "" || c.Key != ""
	for _, e := range c.Endpoints {
		if strings.HasPrefix(e, "https://") {
			secure = true
		}
	}
	if !secure {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, VerifyConnection: func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) > 0 {
			seen.issuer.Store(&s.PeerCertificates[0].AuthorityKeyId)
		}
		return nil
	}}
	if c.CACert != "" {
		pem, err := bounded.ReadFile(c.CACert, maxPEM)
		if err != nil {
			return nil, fmt.Errorf("cannot read the CA certificate: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cannot use CA certificate %s: no PEM certificate is in it", c.CACert)
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("cannot use a client certificate without its key, or a key without its certificate\nset both --cert and --key")
	}
	if c.Cert != "" {
		pair, err := c.Certificate()
		if err != nil {
			return nil, fmt.Errorf("cannot load the client certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			now, err := c.Certificate()
			if err != nil { // the certificate from the start may still be valid
				return &pair, nil //nolint:nilerror // etcd says what it thinks of that one
			}
			return &now, nil
		}
	}
	return t, nil
}

// maxPEM limits a file of certificates or keys, in bytes.
const maxPEM = 1 << 20

// Certificate reads the client's certificate and key. If both are in one file, it reads the file once: the file could
// change between two reads.
func (c Config) Certificate() (tls.Certificate, error) {
	if c.Cert != c.Key {
		cert, err := bounded.ReadFile(c.Cert, maxPEM)
		if err != nil {
			return tls.Certificate{}, err
		}
		key, err := bounded.ReadFile(c.Key, maxPEM)
		if err != nil {
			return tls.Certificate{}, err
		}
		return tls.X509KeyPair(cert, key)
	}
	both, err := bounded.ReadFile(c.Cert, maxPEM)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(both, both)
}

// userOf returns the user that etcd derives from a connection: the common name of its certificate, "" without one.
func userOf(t *tls.Config) string {
	if t == nil || len(t.Certificates) == 0 || t.Certificates[0].Leaf == nil {
		return ""
	}
	return t.Certificates[0].Leaf.Subject.CommonName
}
