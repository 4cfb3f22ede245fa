// Package pki owns identities: the fleet's certificate authorities, the certificates that they sign, the names in
// them, and the identity files of machines and operators. It must never decide who gets a certificate, and never
// access etcd. It must never write a private key anywhere but into the requested file.
package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pulley/internal/atomicfile"
)

// Files of a CA's folder. The current CA signs. The next CA is already trusted everywhere, before a rotation needs it.
// The previous CA signs nothing, and is trusted until it is retired.
const (
	currentCert  = "ca.pem"
	currentKey   = "ca.key"
	nextCert     = "next.pem"
	nextKey      = "next.key"
	previousCert = "previous.pem"
	retiredCerts = "retired.pem" // all former previous CAs, no longer trusted
)

// caLifetime is the time that a CA may sign.
const caLifetime = 10 * 365 * 24 * time.Hour

// Options locate a CA's key outside the CA's folder.
type Options struct {
	// SignCommand is a signing program with its arguments. It gets the digest on standard input, the hash's name in
	// PULLEY_SIGN_HASH and the pin of the signing CA in PULLEY_SIGN_CA. It prints the signature: ASN.1 for ECDSA, PKCS
	// #1 v1.5 for RSA. The folder must contain the CA's certificate as ca.pem, and the next one's as next.pem.
	SignCommand []string
	Now         func() time.Time // time.Now when nil
}

// CA is a fleet's certificate authority: a folder of files. It checks the files before each use, and changes of
// another process count at once. It is safe for concurrent use.
type CA struct {
	dir     string
	options Options

	mu     sync.Mutex
	stamps map[string]os.FileInfo // of the files at the last read; nil is missing
	is     material
}

// material is the content of the files.
type material struct {
	current, next, previous *x509.Certificate // next and previous may be nil
	key                     crypto.Signer     // of current
	nextKey                 crypto.Signer     // nil if it is not available
}

// OpenCA opens the CA in a folder and creates missing files, keys before certificates. It never overwrites a file.
// Several processes may open it at once.
func OpenCA(dir string, o Options) (*CA, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &CA{dir: dir, options: o}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Chmod(dir, 0o700) // it may exist with open permissions
	}
	if err == nil {
		err = c.locked(c.finish)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the CA in %s: %w", dir, err)
	}
	return c, nil
}

func (c *CA) path(name string) string { return filepath.Join(c.dir, name) }

// elsewhere reports whether the keys are outside the folder.
func (c *CA) elsewhere() bool { return len(c.options.SignCommand) > 0 }

// locked changes the folder under its lock, then reads it.
func (c *CA) locked(change func() error) error {
	unlock, err := lockFolder(c.dir)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err = change()
	if err == nil {
		err = c.read()
	}
	return errors.Join(err, unlock())
}

// finish completes the folder: each CA has its key and its certificate, even if an earlier process was interrupted.
func (c *CA) finish() error {
	current, err := readCertificate(c.path(currentCert))
	if err != nil {
		return err
	}
	if current == nil {
		if current, err = c.begin(); err != nil {
			return err
		}
	}
	next, err := readCertificate(c.path(nextCert))
	if err != nil {
		return err
	}
	if !c.elsewhere() {
		if err := c.moveKey(current); err != nil {
			return err
		}
	}
	if next == nil || sameKey(next.PublicKey, current) { // the second: a rotation was interrupted
		return c.makeNext(current)
	}
	return nil
}

// begin creates the current CA of a folder without one.
func (c *CA) begin() (*x509.Certificate, error) {
	for _, name := range []string{nextCert, previousCert} {
		if _, err := os.Lstat(c.path(name)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is missing, and %s exists\nrestore it from a backup: a new CA would trust no node of this fleet", currentCert, name)
		}
	}
	if c.elsewhere() {
		return nil, fmt.Errorf("%s is missing\na command signs: put the CA's certificate into the folder first", currentCert)
	}
	key, err := c.keyIn(currentKey)
	if err != nil {
		return nil, err
	}
	return c.selfSign(currentCert, key)
}

// keyIn returns the key of a file in the folder, which it creates if missing.
func (c *CA) keyIn(name string) (crypto.Signer, error) {
	key, err := readKey(c.path(name))
	if err != nil || key != nil {
		return key, err
	}
	if key, err = NewKey(); err == nil {
		err = SaveKey(c.path(name), key)
	}
	return key, err
}

// moveKey finishes a rotation that was interrupted between moving the certificate and moving its key.
func (c *CA) moveKey(current *x509.Certificate) error {
	key, err := readKey(c.path(nextKey))
	if err != nil || key == nil || !sameKey(key.Public(), current) {
		return err
	}
	if err := os.Rename(c.path(nextKey), c.path(currentKey)); err != nil {
		return err
	}
	return atomicfile.SyncFolder(c.dir)
}

// makeNext creates the next CA, if its key is in the folder.
func (c *CA) makeNext(current *x509.Certificate) error {
	if c.elsewhere() {
		return nil
	}
	key, err := c.keyIn(nextKey)
	if err != nil {
		return err
	}
	had, err := c.former()
	if err != nil || slices.ContainsFunc(append(had, current), func(cert *x509.Certificate) bool { return sameKey(key.Public(), cert) }) {
		return err
	}
	_, err = c.selfSign(nextCert, key)
	return err
}

// former returns the former CAs. None of their keys may ever be trusted again, because one may have been stolen.
func (c *CA) former() ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for _, name := range []string{previousCert, retiredCerts} {
		certs, _, err := readPEM(c.path(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		all = append(all, certs...)
	}
	return all, nil
}

func (c *CA) selfSign(name string, key crypto.Signer) (*x509.Certificate, error) {
	if err := checkKey(key.Public()); err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	id := sha1.Sum(public) // key ID as in RFC 5280; no security depends on it
	t := c.template(pkix.Name{CommonName: "pulley CA " + hex.EncodeToString(id[:4])}, c.options.Now(), caLifetime)
	t.IsCA, t.MaxPathLenZero = true, true
	t.KeyUsage, t.SubjectKeyId = x509.KeyUsageCertSign|x509.KeyUsageCRLSign, id[:]
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err == nil {
		err = atomicfile.Write(c.path(name), encodeCertificates(cert), 0o600)
	}
	return cert, err
}

// template returns the common fields of all certificates.
func (c *CA) template(subject pkix.Name, now time.Time, lifetime time.Duration) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // never fails; 127 bits are positive in 16 bytes
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: subject, BasicConstraintsValid: true,
		NotBefore: now.Add(-clockSkew).UTC(), NotAfter: now.Add(lifetime).UTC(),
	}
}
