package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"pulley/internal/atomicfile"
)

// Rotate makes the next CA sign. The current CA becomes previous and stays trusted until it is retired. Rotate creates
// a new next CA if it can get a key. It refuses while an earlier previous CA is trusted. With force it retires that CA
// at once. The caller must check that all clients and servers trust the next CA.
func (c *CA) Rotate(force bool) error {
	err := c.locked(func() error {
		if err := c.finish(); err != nil {
			return err
		}
		if err := c.read(); err != nil {
			return err
		}
		if err := c.mayRotate(c.is, force); err != nil {
			return err
		}
		return c.rotate(c.is)
	})
	if err != nil {
		return fmt.Errorf("cannot rotate the CA in %s: %w", c.dir, err)
	}
	return nil
}

// MayRotate returns the error with which Rotate would refuse.
func (c *CA) MayRotate(force bool) error {
	m, err := c.fresh()
	if err == nil {
		err = c.mayRotate(m, force)
	}
	if err != nil {
		return fmt.Errorf("cannot rotate the CA in %s: %w", c.dir, err)
	}
	return nil
}

func (c *CA) mayRotate(m material, force bool) error {
	switch {
	case m.next == nil:
		return errors.New("there is no next CA\nput the next CA's certificate beside ca.pem as next.pem, and restart `pulley serve`")
	case m.nextKey == nil:
		return fmt.Errorf("the key of the next CA (%s) is not available", Fingerprint(m.next))
	case m.previous != nil && !force:
		return fmt.Errorf("the previous CA (%s) is still trusted\nrun `pulley ca retire` once `pulley ca show` lists no certificate of it", Fingerprint(m.previous))
	case !c.options.Now().Before(m.next.NotAfter):
		return fmt.Errorf("the next CA expired at %s", m.next.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// rotate writes in an order that is safe against interruption: no trusted CA is missing at any point, and finish
// resumes.
func (c *CA) rotate(m material) error {
	if err := c.retire(); err != nil { // forced
		return err
	}
	err := atomicfile.Write(c.path(previousCert), encodeCertificates(m.current), 0o600)
	if err == nil {
		err = atomicfile.Write(c.path(currentCert), encodeCertificates(m.next), 0o600)
	}
	if err == nil && c.elsewhere() {
		err = c.drop(nextCert)
	}
	if err != nil {
		return err
	}
	return c.finish()
}

// Retire ends the trust in the previous CA. Without a previous CA it does nothing.
func (c *CA) Retire() error {
	if err := c.locked(c.retire); err != nil {
		return fmt.Errorf("cannot retire the previous CA in %s: %w", c.dir, err)
	}
	return nil
}

// retire records the previous CA before it deletes it.
func (c *CA) retire() error {
	previous, err := readCertificate(c.path(previousCert))
	if err != nil || previous == nil {
		return err
	}
	had, err := c.former() // the previous one comes first
	if err == nil {
		err = atomicfile.Write(c.path(retiredCerts), encodeCertificates(had...), 0o600)
	}
	if err != nil {
		return err
	}
	return c.drop(previousCert)
}

func (c *CA) drop(name string) error {
	if err := os.Remove(c.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.SyncFolder(c.dir)
}

// Probe returns a nameless certificate of the next CA. It tests whether a server already trusts that CA. It is valid
// for a minute.
func (c *CA) Probe() (tls.Certificate, error) {
	m, err := c.fresh()
	if err == nil && m.next == nil {
		err = errors.New("there is no next CA")
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := NewKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	t := c.template(pkix.Name{CommonName: "pulley: does anybody trust the next CA?"}, c.options.Now(), time.Minute)
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	leaf, _, err := sign(t, m.next, key.Public(), m.nextKey)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cannot sign with the next CA: %w", err)
	}
	return Identity{Key: key, Certificates: []*x509.Certificate{leaf}}.Certificate(), nil
}
