package puppettest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server is a fake Puppet server with a CA of its own, for the fake `puppet agent`. Its environments are folders with the same
// manifests as those of releases: the directives in them, and not Puppet code, make the catalog.
type Server struct {
	Dir     string // environments/<environment>/manifests/site.pp
	Address string // HOST:PORT, on loopback

	ca     *x509.Certificate
	caKey  crypto.Signer
	serial int64

	mu      sync.Mutex
	http    *http.Server // nil: it is down
	listen  net.Listener
	revoked map[string]bool // serial numbers
}

// NewServer returns a server that is down. Its files are in dir.
func NewServer(dir string) (*Server, error) {
	s := &Server{Dir: dir, revoked: map[string]bool{}}
	var err error
	if s.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	s.ca = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Fake Puppet CA"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, s.ca, s.ca, s.caKey.Public(), s.caKey)
	if err == nil {
		s.ca, err = x509.ParseCertificate(der)
	}
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.Address = l.Addr().String()
	return s, l.Close()
}

// HostPort returns the server's address.
func (s *Server) HostPort() string { return s.Address }

// Certificate is a certificate that a CA issues.
type Certificate struct {
	Name  string
	Until time.Time // zero: in a day
	Other bool      // of another CA
}

// Issue writes certificate, key and CA into an ssldir of Puppet.
func (s *Server) Issue(ssldir string, c Certificate) error {
	cert, key, err := s.issue(c, nil)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"certs/" + c.Name + ".pem": cert, "private_keys/" + c.Name + ".pem": key, "certs/ca.pem": pemOf("CERTIFICATE", s.ca.Raw),
	} {
		path := filepath.Join(ssldir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func (s *Server) issue(c Certificate, names []string) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	s.serial++
	serial := s.serial
	s.mu.Unlock()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(100 + serial), Subject: pkix.Name{CommonName: c.Name}, DNSNames: names, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: c.Until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if c.Until.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	signer := s.caKey
	if c.Other {
		if signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, nil, err
		}
	}
	parent := *s.ca
	parent.PublicKey = signer.Public()
	der, err := x509.CreateCertificate(rand.Reader, template, &parent, own.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(own)
	return pemOf("CERTIFICATE", der), pemOf("PRIVATE KEY", keyDER), err
}

// Revoke makes the server refuse the certificates of a name that are in an ssldir.
func (s *Server) Revoke(ssldir, name string) error {
	text, err := os.ReadFile(filepath.Join(ssldir, "certs", name+".pem"))
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%s has no certificate", name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked[cert.SerialNumber.String()] = true
	return nil
}

// Put writes the manifest of an environment.
func (s *Server) Put(environment, manifest string) error {
	path := filepath.Join(s.Dir, "environments", environment, "manifests", "site.pp")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(manifest), 0o644)
}

// Up starts the server at its address, unless it is up.
func (s *Server) Up() error {
	s.mu.Lock()
	running := s.http != nil
	s.mu.Unlock()
	if running {
		return nil
	}
	cert, key, err := s.issue(Certificate{Name: "puppet.test"}, []string{"puppet", "puppet.test"})
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	clients.AddCert(s.ca)
	l, err := net.Listen("tcp", s.Address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(s.answer), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
		VerifyConnection: func(c tls.ConnectionState) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(c.PeerCertificates) > 0 && s.revoked[c.PeerCertificates[0].SerialNumber.String()] {
				return fmt.Errorf("the certificate is revoked")
			}
			return nil
		}}
	s.mu.Lock()
	s.http, s.listen = server, l
	s.mu.Unlock()
	go func() { _ = server.ServeTLS(l, "", "") }()
	return nil
}

// Down ends the server and its connections.
func (s *Server) Down() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		return nil
	}
	_ = s.listen.Close() // Serve may not have begun
	err := s.http.Close()
	s.http = nil
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// answer serves the status, and the manifests of environments to clients with a certificate.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	environment, is := strings.CutPrefix(r.URL.Path, "/fake/")
	switch {
	case r.URL.Path == "/status/v1/simple":
		fmt.Fprint(w, "running")
	case !is || len(r.TLS.PeerCertificates) == 0 || strings.Contains(environment, "/"):
		http.Error(w, "Forbidden request", http.StatusForbidden)
	default:
		text, err := os.ReadFile(filepath.Join(s.Dir, "environments", environment, "manifests", "site.pp"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(text)
	}
}

// StartServer starts a server for a test.
func StartServer(t testing.TB) *Server {
	t.Helper()
	s, err := NewServer(t.TempDir())
	if err == nil {
		err = s.Up()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Down() })
	return s
}
