// Package puppetservertest owns real Puppet servers for tests: Debian's puppetserver in private folders, with a CA of its own, on
// addresses of loopback unless a test has others. A second server of the same CA runs beside the first one, and Debian's puppetdb where a
// test starts it. All of it ends with the test's process.
//
// A server needs 20 to 40 s and 600 MiB. The tests of a package share one site, and a server starts when the first test
// calls Up. It must never be part of a program.
package puppetservertest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// The names of the servers, and of the certificate that auth.conf allows by name to use the CA.
const (
	FirstName  = "puppet1.test"
	SecondName = "puppet2.test"
	Allowed    = "pulley.test"
)

// Port is Puppet's default: agents need no setting for it.
const Port = "8140"

// Site is a CA with two servers. Both are down until Up.
type Site struct {
	Dir    string
	First  *Server // has the CA
	Second *Server // its CA is the first server
	CAFile string  // certificates of the CA: the issuing one and its root

	issuer *x509.Certificate
	key    crypto.Signer
}

// Shared is one site for the tests of a package. TestMain calls Close.
type Shared struct {
	mu   sync.Mutex
	site *Site
	err  error
}

// Site returns the site. Tests that stop a server or change auth.conf must not run in parallel with others.
func (s *Shared) Site(t testing.TB) *Site {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.site == nil && s.err == nil {
		var dir string
		if dir, s.err = os.MkdirTemp("", "pulley-puppetserver-"); s.err == nil {
			s.site, s.err = create(dir, nil)
		}
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.site
}

// Close ends the servers and deletes their folders.
func (s *Shared) Close() error {
	if s.site == nil {
		return nil
	}
	s.site.First.Kill()
	s.site.Second.Kill()
	return os.RemoveAll(s.site.Dir)
}

// New makes a site for one test. The servers listen on these two addresses, or else on free ones of loopback.
func New(t testing.TB, addresses ...string) *Site {
	t.Helper()
	s, err := create(t.TempDir(), addresses)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.First.Kill)
	t.Cleanup(s.Second.Kill)
	return s
}

// create makes the CA and the certificates of both servers, with Puppet's own tool.
func create(dir string, addresses []string) (*Site, error) {
	if _, err := exec.LookPath("puppetserver"); err != nil {
		return nil, errors.New("there is no Puppet server here: apt-get install puppetserver")
	}
	s := &Site{Dir: dir}
	var err error
	for len(addresses) < 2 && err == nil {
		var free string
		free, err = freeAddress(Port)
		addresses = append(addresses, free)
	}
	if err == nil {
		s.First, err = s.server(FirstName, addresses[0])
	}
	if err == nil {
		s.Second, err = s.server(SecondName, addresses[1])
	}
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(s.First.confdir(), "puppet.conf")
	if err := s.ca("setup", "--config", conf, "--certname", FirstName, "--subject-alt-names", s.First.names()); err != nil {
		return nil, err
	}
	if err := s.ca("generate", "--config", conf, "--certname", SecondName, "--subject-alt-names", s.Second.names(), "--ca-client", "--force"); err != nil {
		return nil, err
	}
	for _, f := range []string{"certs/ca.pem", "crl.pem", "certs/" + SecondName + ".pem", "private_keys/" + SecondName + ".pem"} {
		if err := copyFile(filepath.Join(s.First.ssldir(), f), filepath.Join(s.Second.ssldir(), f)); err != nil {
			return nil, err
		}
	}
	s.CAFile = filepath.Join(s.First.ssldir(), "certs/ca.pem")
	return s, s.loadCA()
}

// ca runs a verb of the CA's tool that needs no server.
func (s *Site) ca(args ...string) error {
	var out bytes.Buffer
	c := exec.Command("puppetserver", append([]string{"ca"}, args...)...)
	c.Env = append(os.Environ(), "HOME="+s.Dir)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return fmt.Errorf("cannot run puppetserver ca %s: %w\n%s", args[0], err, out.Bytes())
	}
	return nil
}

func (s *Site) cadir() string { return filepath.Join(s.Dir, "ca") }

// loadCA reads certificate and key of the CA, for Issue.
func (s *Site) loadCA() error {
	cert, err := os.ReadFile(filepath.Join(s.cadir(), "ca_crt.pem"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(s.cadir(), "ca_key.pem"))
	if err != nil {
		return err
	}
	block, _ := pem.Decode(cert)
	keyBlock, _ := pem.Decode(key)
	if block == nil || keyBlock == nil {
		return errors.New("cannot read the CA of puppetserver: no PEM")
	}
	if s.issuer, err = x509.ParseCertificate(block.Bytes); err != nil {
		return err
	}
	s.key, err = x509.ParsePKCS1PrivateKey(keyBlock.Bytes)
	return err
}

// Credentials are files of a client: a certificate, its key, and the CA's certificates. They are in one folder, as `pulley serve` reads
// them.
type Credentials struct{ Dir, Cert, Key, CA string }

// Client is a certificate to issue.
type Client struct {
	Name    string
	Until   time.Time // zero: in a day
	CLIAuth bool      // with the extension pp_cli_auth, which auth.conf allows to use the CA
	Foreign bool      // of another CA that has the same name
	At      []string  // IP addresses of a server
	Names   []string  // alternative names, as servers have them
}

// oidCLIAuth is Puppet's extension pp_cli_auth.
var oidCLIAuth = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34380, 1, 3, 39}

// Issue issues a client's certificate with the CA's key. It needs no server, and the CA's list does not contain it. auth.conf
// allows the name Allowed to use the CA.
func (s *Site) Issue(t testing.TB, c Client) Credentials {
	t.Helper()
	issuer, caKey := s.issuer, s.key
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if c.Foreign {
		if caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
		issuer = &x509.Certificate{Subject: issuer.Subject, RawSubject: issuer.RawSubject, PublicKey: caKey.Public(), SubjectKeyId: []byte{1}}
	}
	if c.Until.IsZero() {
		c.Until = time.Now().Add(24 * time.Hour)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: c.Name}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: c.Until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	template.DNSNames = c.Names
	for _, address := range c.At {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	if c.CLIAuth {
		value, err := asn1.MarshalWithParams("true", "utf8")
		if err != nil {
			t.Fatal(err)
		}
		template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: oidCLIAuth, Value: value})
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := Credentials{dir, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")}
	if err := copyFile(s.CAFile, files.CA); err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: cert}, files.Key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Put writes a file of an environment on both servers. A compilation sees it at once.
func (s *Site) Put(t testing.TB, environment, path, content string) {
	t.Helper()
	s.First.Put(t, environment, path, content)
	s.Second.Put(t, environment, path, content)
}

// Up starts both servers at the same time, unless they run.
func (s *Site) Up(t testing.TB) {
	t.Helper()
	failed := make(chan error, 1)
	go func() { failed <- s.Second.up() }()
	if err := errors.Join(s.First.up(), <-failed); err != nil {
		t.Fatal(err)
	}
}

// CopyCRL gives the second server the CA's present revocation list, as operators do: by a file.
func (s *Site) CopyCRL(t testing.TB) {
	t.Helper()
	if err := copyFile(filepath.Join(s.cadir(), "ca_crl.pem"), s.Second.CRLFile()); err != nil {
		t.Fatal(err)
	}
}

// freeAddress returns an address of loopback where a port is free.
func freeAddress(port string) (string, error) {
	var err error
	for range 50 {
		var l net.Listener
		address := net.IPv4(127, byte(1+mathrand.IntN(250)), byte(mathrand.IntN(250)), byte(2+mathrand.IntN(250))).String()
		if l, err = net.Listen("tcp", net.JoinHostPort(address, port)); err == nil {
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("cannot find a free address: %w", err)
}

// copyFile replaces the file to.
func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	return err
}
