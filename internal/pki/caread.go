package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"
)

// unchanged reports whether a file is the same as before: files of a CA are only ever replaced by a rename. nil is a
// missing file.
func unchanged(before, now os.FileInfo) bool {
	if before == nil || now == nil {
		return before == nil && now == nil
	}
	return before.ModTime().Equal(now.ModTime()) && before.Size() == now.Size() && os.SameFile(before, now)
}

func (c *CA) look() (map[string]os.FileInfo, error) {
	files := []string{c.path(currentCert), c.path(nextCert), c.path(previousCert)}
	if !c.elsewhere() {
		files = append(files, c.path(currentKey), c.path(nextKey))
	}
	stamps := make(map[string]os.FileInfo, len(files))
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		stamps[file] = info
	}
	return stamps, nil
}

// fresh returns the current content of the files. If they are unreadable, it returns their last content and the error.
func (c *CA) fresh() (material, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamps, err := c.look()
	if err == nil {
		if !maps.EqualFunc(c.stamps, stamps, unchanged) {
			err = c.read()
		}
	}
	if err != nil {
		err = fmt.Errorf("cannot read the CA in %s: %w", c.dir, err)
	}
	return c.is, err
}

// read reads the files. Another process may be rotating: read repeats if the files do not match.
func (c *CA) read() error {
	var err error
	for range 3 {
		var stamps map[string]os.FileInfo
		var is material
		if stamps, err = c.look(); err != nil {
			continue
		}
		if is, err = c.readOnce(); err == nil {
			c.stamps, c.is = stamps, is
			return nil
		}
	}
	return err
}

func (c *CA) readOnce() (m material, err error) {
	for _, f := range []struct {
		name string
		to   **x509.Certificate
	}{{previousCert, &m.previous}, {currentCert, &m.current}, {nextCert, &m.next}} {
		cert, err := readCertificate(c.path(f.name))
		if err != nil {
			return material{}, err
		}
		if cert != nil && (!cert.IsCA || !cert.BasicConstraintsValid || cert.KeyUsage&x509.KeyUsageCertSign == 0) {
			return material{}, fmt.Errorf("%s is not a certificate of a CA", c.path(f.name))
		}
		*f.to = cert
	}
	if m.current == nil {
		return material{}, fmt.Errorf("%s is missing", c.path(currentCert))
	}
	if m.next != nil && sameKey(m.next.PublicKey, m.current) {
		m.next = nil
	}
	if m.previous != nil && sameKey(m.previous.PublicKey, m.current) {
		m.previous = nil
	}
	return m, c.findKeys(&m)
}

func (c *CA) findKeys(m *material) error {
	if argv := c.options.SignCommand; len(argv) > 0 {
		m.key = commandSigner{argv, m.current}
		if m.next != nil {
			m.nextKey = commandSigner{argv, m.next}
		}
		return nil
	}
	for _, name := range []string{currentKey, nextKey} {
		k, err := readKey(c.path(name))
		switch {
		case err != nil:
			return err
		case k == nil:
		case sameKey(k.Public(), m.current):
			m.key = k
		case m.next != nil && sameKey(k.Public(), m.next):
			m.nextKey = k
		}
	}
	if m.key == nil {
		return fmt.Errorf("the key of %s (%s) is not in %s\nrestore the file, or give the command that signs with the key: --ca-sign COMMAND", c.path(currentCert), Fingerprint(m.current), c.path(currentKey))
	}
	return nil
}

// Part is the role of one of a fleet's CAs.
type Part string

// The parts: current signs; next is already trusted and signs after a rotation; previous signs nothing and is trusted
// until it is retired.
const (
	PartCurrent  Part = "current"
	PartNext     Part = "next"
	PartPrevious Part = "previous"
)

// Authority is one of a fleet's CAs.
type Authority struct {
	Part        Part
	Certificate *x509.Certificate
	Fingerprint string
	KeyAtHand   bool // it can probably sign; not tested
}

// Authorities returns all trusted CAs: previous if any, current, next if any.
func (c *CA) Authorities() []Authority {
	m, _ := c.fresh() // unreadable files keep the earlier trust
	all := []Authority{{Part: PartPrevious, Certificate: m.previous}, {PartCurrent, m.current, "", m.key != nil}, {PartNext, m.next, "", m.nextKey != nil}}
	all = slices.DeleteFunc(all, func(a Authority) bool { return a.Certificate == nil })
	for i := range all {
		all[i].Fingerprint = Fingerprint(all[i].Certificate)
	}
	return all
}

// Bundle returns the PEM of all trusted CA certificates.
func (c *CA) Bundle() []byte {
	var certs []*x509.Certificate
	for _, a := range c.Authorities() {
		certs = append(certs, a.Certificate)
	}
	return encodeCertificates(certs...)
}

// Fingerprints returns the pins of the current CA and of the next one, for a new machine.
func (c *CA) Fingerprints() []string {
	var pins []string
	for _, a := range c.Authorities() {
		if a.Part != PartPrevious {
			pins = append(pins, a.Fingerprint)
		}
	}
	return pins
}

// NextSince returns the earliest possible publication time of the next CA. ok is false without one. A client whose
// bundle is newer trusts the next CA.
func (c *CA) NextSince() (since time.Time, ok bool) {
	m, err := c.fresh()
	if err != nil || m.next == nil {
		return time.Time{}, false
	}
	since = m.next.NotBefore.Add(clockSkew)
	if info, err := os.Stat(c.path(nextCert)); err == nil && info.ModTime().After(since) { // copied by hand, or from a backup
		since = info.ModTime()
	}
	return since, true
}
