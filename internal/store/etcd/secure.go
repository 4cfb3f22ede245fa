package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// peer remembers whose certificate etcd showed last.
type peer struct{ issuer atomic.Pointer[[]byte] }

// ServerIssuer is the authority key id of the certificate that etcd showed last: whose CA signed it. Nil before the first
// connection, and where there is no TLS.
func (s *DB) ServerIssuer() []byte {
	if s == nil || s.peer == nil {
		return nil
	}
	if issuer := s.peer.issuer.Load(); issuer != nil {
		return *issuer
	}
	return nil
}

// TLS is how to connect; nil for plain text.
func (c Config) TLS() (*tls.Config, error) { return c.tls(&peer{}) }

// tls is how to connect; nil for plain text. The client's certificate is read again for every connection, so that one that
// was renewed counts without a new client.
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
		pem, err := os.ReadFile(c.CACert)
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
			if err != nil { // the one that was good at the start may be good still
				return &pair, nil //nolint:nilerror // etcd says what it thinks of that one
			}
			return &now, nil
		}
	}
	return t, nil
}

// Certificate reads the client's certificate and key. Where they are one file it is read once: between two reads it could be
// another one.
func (c Config) Certificate() (tls.Certificate, error) {
	if c.Cert != c.Key {
		return tls.LoadX509KeyPair(c.Cert, c.Key)
	}
	both, err := os.ReadFile(c.Cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(both, both)
}

// identityOf is whom etcd takes a connection for: the common name of its certificate.
func identityOf(t *tls.Config) string {
	if t == nil || len(t.Certificates) == 0 || t.Certificates[0].Leaf == nil {
		return "a client without a certificate"
	}
	return "the certificate of " + strconv.Quote(t.Certificates[0].Leaf.Subject.CommonName)
}
