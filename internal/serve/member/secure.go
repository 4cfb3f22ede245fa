package member

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/access"
	"pulley/internal/access/fleetca"
	"pulley/internal/atomicfile"
	"pulley/internal/etcd"
	"pulley/internal/pki"
)

// securedName marks a data folder whose etcd authenticates its users. The file is written before authentication is
// turned on. After an interruption, no later start then serves the folder in plain text.
const securedName = "secured"

// IsSecured reports whether a data folder was ever served with authentication.
func IsSecured(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, securedName))
	return err == nil || !errors.Is(err, os.ErrNotExist)
}

// HasData reports whether a data folder contains an etcd, even if its files were lost.
func HasData(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, dataName))
	return err == nil || !errors.Is(err, os.ErrNotExist) || IsSecured(dir)
}

func errSecured(dir string) error {
	return fmt.Errorf("cannot serve %s without --auth: the folder was served with authentication before\n"+
		"start it with --auth, and without --cert, --key and --cacert: it has a CA of its own in %s", dir, filepath.Join(dir, fleetca.PKIName))
}

// SecureConfig configures a member with authentication and the certificates of a CA in its data folder.
type SecureConfig struct {
	EtcdConfig               // StartSecure sets its certificates
	Hosts      []string      // names and addresses for other machines
	Hostname   string        // of this machine: the name in serve's own identity
	Prefix     string        // of every key
	Timeout    time.Duration // of each call
	CA         pki.Options

	// Check runs over the member's data before any certificate is replaced and any user changes; nil accepts all.
	Check func(context.Context, *etcd.DB) error
}

// Secured is a running member with authentication.
type Secured struct {
	*Etcd
	Certificates *fleetca.Certificates
	Connection   etcd.Config // settings with which serve itself, an administrator, connects
	Admin        string      // the identity file of the first administrator; "" unless this start created it

	run   string // folder of sockets
	hosts []string

	operator string // etcd's role of operators
}

// StartSecure starts a member in two phases. In the first phase it listens only on a socket in a new private folder,
// for a temporary certificate. There it creates the users and turns authentication on. In the second phase it listens
// on its address. At no time can a certificate without a user do anything.
func StartSecure(ctx context.Context, c SecureConfig) (*Secured, error) {
	if err := errors.Join(c.Limits(), CheckListen(c.Listen, true)); err != nil {
		return nil, err
	}
	unlock, err := lockFolder(c.Dir)
	if err != nil {
		return nil, err
	}
	run, err := makeRun()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a folder for sockets: %w", err), unlock())
	}
	s := &Secured{run: run}
	release := func() error { return errors.Join(os.RemoveAll(run), unlock()) }
	if err := s.prepare(ctx, c); err != nil {
		return nil, errors.Join(err, release())
	}
	s.hosts = c.Hosts
	c.OperatorRole = s.operator
	c.Cert, c.Key, c.CACert = s.Certificates.Server(), s.Certificates.Server(), s.Certificates.Bundle()
	if s.Etcd, err = c.start(ctx, c.embedded(c.clientURL(true), s.peers()), release); err != nil {
		return nil, err
	}
	s.Connection = etcd.Config{
		Endpoints: []string{s.local()}, CACert: s.Certificates.Bundle(),
		Cert: s.Certificates.Identity(), Key: s.Certificates.Identity(), Prefix: c.Prefix, Timeout: c.Timeout,
	}
	return s, nil
}

// maxRun bounds the path of a folder for sockets: a socket's path has at most 108 bytes (unix(7)).
const maxRun = 90

// makeRun creates a folder that only this user can enter (0700).
func makeRun() (string, error) {
	dir := os.TempDir()
	if len(dir) > maxRun-len("/pulley-1234567890") {
		dir = "/tmp"
	}
	return os.MkdirTemp(dir, "pulley-")
}

// peers returns the address for peers, which the member never has. No other user on this machine can reach it.
func (s *Secured) peers() url.URL {
	return url.URL{Scheme: "unix", Host: filepath.Join(s.run, "peers")} // etcd takes the host for the socket's path
}

// local returns the member's URL for this machine.
func (s *Secured) local() string {
	host, port, _ := net.SplitHostPort(s.address().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "https://" + net.JoinHostPort(host, port)
}

// Endpoints returns the URLs for other machines.
func (s *Secured) Endpoints() []string {
	_, port, _ := net.SplitHostPort(s.address().String())
	var all []string
	for _, h := range s.hosts {
		all = append(all, "https://"+net.JoinHostPort(h, port))
	}
	if len(all) == 0 {
		all = []string{s.local()}
	}
	return all
}

// prepare creates the certificates and, in the first phase, the users.
func (s *Secured) prepare(ctx context.Context, c SecureConfig) error {
	err := keepsCA(c.Dir)
	if err != nil {
		return err
	}
	if s.Certificates, err = fleetca.Open(c.Dir, c.Prefix, c.Hostname, true, c.CA); err != nil {
		return err
	}
	if err := markSecured(c.Dir); err != nil {
		return err
	}
	return s.setUp(ctx, c)
}

func markSecured(dir string) error {
	note := "Etcd checks its users here: `pulley serve` never serves this folder in plain text again.\n"
	if err := atomicfile.Write(filepath.Join(dir, securedName), []byte(note), 0o600); err != nil {
		return fmt.Errorf("cannot mark the folder as authenticated: %w", err)
	}
	return nil
}

// keepsCA refuses a folder whose etcd has users but whose CA is missing: otherwise a new CA would replace it silently.
func keepsCA(dir string) error {
	pkiDir := filepath.Join(dir, fleetca.PKIName)
	_, data := os.Lstat(filepath.Join(dir, dataName))
	_, ca := os.Lstat(filepath.Join(pkiDir, "ca.pem"))
	if !IsSecured(dir) || errors.Is(data, fs.ErrNotExist) || !errors.Is(ca, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("cannot serve %s: the CA of its fleet, %s, is missing\nrestore %s from a backup: a new CA would trust no node and no operator of this fleet",
		dir, filepath.Join(pkiDir, "ca.pem"), pkiDir)
}

// hosts returns all names of the server's certificate. The CA adds this machine's own.
func (c SecureConfig) hosts() []string {
	host, _, _ := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return c.Hosts
	}
	return append([]string{host}, c.Hosts...)
}

// setUp runs the first phase.
func (s *Secured) setUp(ctx context.Context, c SecureConfig) error {
	return s.privately(ctx, c, func(ctx context.Context, st *etcd.DB) (err error) {
		s.operator = access.In(st).OperatorRole(access.RoleOperator)
		if c.Check != nil {
			err = c.Check(ctx, st)
		}
		if err == nil {
			err = s.Certificates.Refresh(c.hosts())
		}
		if err == nil {
			if s.Admin, err = s.Certificates.SetUpUsers(ctx, st); err != nil {
				err = fmt.Errorf("cannot set up etcd's users: %w", err)
			}
		}
		return err
	})
}

// throwaway writes the certificate of the first phase into a folder that only this user can read. The member and its
// only client, etcd's user root, share it. The member later trusts it no more, and its key exists for a moment.
func throwaway(dir string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return "", "", err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	return certFile, keyFile, errors.Join(
		os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
}
