// Package fleetca owns the CA folder of `pulley serve`. The folder contains the fleet's CA, and the certificates of
// the servers, of serve itself and of the first administrator. The package also owns the rules for a rotation of the
// CA.
//
// It must never replace a key or identity that it cannot read, and never let a rotation remove access silently.
package fleetca

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/etcd"
	"pulley/internal/pki"
)

// PKIName is the folder of certificates in a data folder. Besides the CA's own files it contains:
//
//	bundle.pem      the certificates of the trusted CAs; operators copy it
//	server.pem      key and certificate of the servers here, followed by the CA's certificate
//	serve.pem       identity of serve itself
//	admin.pem       identity of the first administrator, created once; it may be moved away
const PKIName = "pki"

// Lifetimes of certificates. Each certificate is replaced when a third of its lifetime is left.
const (
	serverLifetime = 90 * 24 * time.Hour
	serveLifetime  = 90 * 24 * time.Hour
	adminLifetime  = 365 * 24 * time.Hour
)

// Certificates manages serve's own certificates and CA. It is safe for concurrent use.
type Certificates struct {
	CA *pki.CA

	dir, prefix, hostname string
	own                   bool // it also creates serve's own identity and the administrator's
	now                   func() time.Time
	mu                    sync.Mutex
	hosts                 []string
	recorded              string // the administrator's key in the list of operators
}

// Open opens the folder of certificates in a data folder, and creates missing parts of the CA. Refresh creates the other
// certificates. If serve runs its own etcd, Refresh also creates the identity of serve and renews the first
// administrator's.
func Open(dataDir, prefix, hostname string, own bool, o pki.Options) (*Certificates, error) {
	dir := filepath.Join(dataDir, PKIName)
	if o.Now == nil {
		o.Now = time.Now
	}
	ca, err := pki.OpenCA(dir, o)
	if err != nil {
		return nil, err
	}
	if prefix = strings.Trim(prefix, "/"); prefix == "" {
		prefix = strings.Trim(etcd.DefaultPrefix, "/")
	}
	return &Certificates{CA: ca, dir: dir, prefix: prefix, hostname: subjectOf(hostname), own: own, now: o.Now}, nil
}

// subjectOf returns a machine's name as a part of a user's name.
func subjectOf(hostname string) string {
	if (pki.Name{Prefix: "x", Kind: pki.KindServe, Subject: hostname, Incarnation: pki.NewIncarnation()}).Check() != nil {
		return "serve"
	}
	return hostname
}

// Bundle returns the file of the trusted CAs' certificates.
func (c *Certificates) Bundle() string { return filepath.Join(c.dir, "bundle.pem") }

// Server returns the file of the servers' certificate and its key.
func (c *Certificates) Server() string { return filepath.Join(c.dir, "server.pem") }

// Identity returns the file of serve's own identity.
func (c *Certificates) Identity() string { return filepath.Join(c.dir, "serve.pem") }

func (c *Certificates) admin() string { return filepath.Join(c.dir, "admin.pem") }

// Admin returns the file of the first administrator's identity, or "" after it was moved away.
func (c *Certificates) Admin() string {
	if _, err := os.Lstat(c.admin()); err != nil {
		return ""
	}
	return c.admin()
}

// newAdmin returns the file of an administrator's identity that has no user in etcd yet.
func (c *Certificates) newAdmin() string { return filepath.Join(c.dir, "admin.new.pem") }

// User returns serve's own user in etcd, from its current identity.
func (c *Certificates) User() string {
	id, err := pki.LoadIdentity(c.Identity())
	if err != nil {
		return ""
	}
	return id.Leaf().Subject.CommonName
}

// Refresh replaces every certificate that is missing, due for renewal, of a former CA, or without one of hosts. One
// rename replaces each file; the next reader gets the new one.
func (c *Certificates) Refresh(hosts []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts = hosts
	err := errors.Join(c.refreshBundle(), c.refreshServer())
	if c.own {
		err = errors.Join(err, c.refreshIdentity(c.Identity(), pki.KindServe, c.hostname, serveLifetime), c.refreshAdmin())
	}
	return err
}

// Renew refreshes with the hosts of the last call.
func (c *Certificates) Renew() error {
	c.mu.Lock()
	hosts := c.hosts
	c.mu.Unlock()
	return c.Refresh(hosts)
}

func (c *Certificates) refreshBundle() error {
	bundle := c.CA.Bundle()
	if have, err := os.ReadFile(c.Bundle()); err == nil && bytes.Equal(have, bundle) {
		return nil
	}
	if err := atomicfile.Write(c.Bundle(), bundle, 0o644); err != nil {
		return fmt.Errorf("cannot write the CAs' certificates: %w", err)
	}
	return nil
}

func (c *Certificates) refreshServer() error {
	id, err := pki.LoadIdentity(c.Server())
	if err == nil && c.serves(id) {
		return nil
	}
	certs, key, err := c.CA.IssueServer(c.hosts, serverLifetime)
	if err == nil {
		err = atomicfile.Write(c.Server(), slices.Concat(key, certs), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot make the server's certificate: %w", err)
	}
	return nil
}

// serves reports whether a server's certificate can stay.
func (c *Certificates) serves(id pki.Identity) bool {
	for _, h := range c.hosts {
		if id.Leaf().VerifyHostname(h) != nil {
			return false
		}
	}
	return !c.due(id.Leaf()) && len(id.Certificates) > 1 && pki.Fingerprint(id.Certificates[1]) == c.CA.Fingerprints()[0]
}

// due reports whether a certificate must be replaced: a third of its life is left, it is of a clock that was ahead, or
// another CA than the current one signed it. The caller has checked the clock.
func (c *Certificates) due(leaf *x509.Certificate) bool {
	now := c.now()
	if left := leaf.NotAfter.Sub(now); left < leaf.NotAfter.Sub(leaf.NotBefore)/3 || now.Before(leaf.NotBefore) {
		return true
	}
	current := Part(c.CA, pki.PartCurrent)
	return current != nil && leaf.CheckSignatureFrom(current.Certificate) != nil
}

// refreshIdentity creates a missing identity with a new incarnation, and renews a due one under its name.
func (c *Certificates) refreshIdentity(file string, kind pki.Kind, subject string, lifetime time.Duration) error {
	name := pki.Name{Prefix: c.prefix, Kind: kind, Subject: subject, Incarnation: pki.NewIncarnation()}
	id, err := pki.LoadIdentity(file)
	if err == nil {
		had, err := id.Name()
		mine := err == nil && had.Prefix == c.prefix && had.Kind == kind && had.Subject == subject
		if mine && !c.due(id.Leaf()) {
			return nil
		}
		if mine {
			name = had
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err // a damaged identity is kept: only its owner knows its name
	}
	if err := c.Issue(file, name, lifetime); err != nil {
		return fmt.Errorf("cannot make the certificate of %s: %w", name, err)
	}
	return nil
}

// Issue issues an identity for a name and writes it to a file.
func (c *Certificates) Issue(file string, name pki.Name, lifetime time.Duration) error {
	key, err := pki.NewKey()
	if err != nil {
		return err
	}
	cert, err := c.CA.IssueClient(key.Public(), name, lifetime)
	if err != nil {
		return err
	}
	id, err := pki.NewIdentity(key, cert)
	if err != nil {
		return err
	}
	return id.Save(file)
}

// AskForCertificates makes a server request client certificates of the CA. They are optional: a joining machine has
// none. Each handshake reads the trusted CAs, because the CA may be rotated.
func (c *Certificates) AskForCertificates(t *tls.Config) {
	base := t.Clone()
	t.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		config := base.Clone()
		config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, x509.NewCertPool()
		config.ClientCAs.AppendCertsFromPEM(c.CA.Bundle())
		return config, nil
	}
}

// Hosts returns the addresses at which other machines may reach this machine, for a server that listens on all of
// them.
func Hosts(hostname string) []string {
	hosts := []string{hostname}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return hosts
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			hosts = append(hosts, n.IP.String())
		}
	}
	return hosts
}

// OpenExisting opens the CA in a data folder. It fails if there is none.
func OpenExisting(dataDir string, o pki.Options) (*pki.CA, error) {
	dir := filepath.Join(dataDir, PKIName)
	if _, err := os.Stat(filepath.Join(dir, "ca.pem")); err != nil {
		return nil, fmt.Errorf("cannot open the CA of %s: %w\nrun `pulley serve --auth`, which makes the CA; --data-dir names its data folder", dataDir, err)
	}
	return pki.OpenCA(dir, o)
}

// AdminFile returns the file of the administrator's identity in a data folder.
func AdminFile(dataDir string) string { return filepath.Join(dataDir, PKIName, "admin.pem") }

// Connection completes a connection to the etcd of this folder's fleet. Without certificates from the caller, it uses
// the folder's certificates and the endpoint of a serve on this machine.
func Connection(dataDir string, c etcd.Config, endpoint string) etcd.Config {
	if c.CACert != "" || c.Cert != "" || c.Key != "" {
		return c
	}
	dir := filepath.Join(dataDir, PKIName)
	c.CACert = filepath.Join(dir, "bundle.pem")
	for _, name := range []string{"admin.pem", "serve.pem"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			c.Cert, c.Key = filepath.Join(dir, name), filepath.Join(dir, name)
			break
		}
	}
	if len(c.Endpoints) == 0 {
		c.Endpoints = []string{endpoint}
	}
	return c
}
