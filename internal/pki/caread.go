package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// stamp tells whether a file is another one than before: files of a CA are only ever replaced whole.
type stamp struct {
	modified time.Time
	size     int64
	file     os.FileInfo
}

func (s stamp) same(o stamp) bool {
	if s.file == nil || o.file == nil {
		return s.file == nil && o.file == nil
	}
	return s.modified.Equal(o.modified) && s.size == o.size && os.SameFile(s.file, o.file)
}

func (c *CA) look() (map[string]stamp, error) {
	files := []string{c.path(currentCert), c.path(nextCert), c.path(previousCert)}
	switch {
	case c.options.KeyFile != "":
		files = append(files, c.options.KeyFile)
	case len(c.options.SignCommand) == 0:
		files = append(files, c.path(currentKey), c.path(nextKey))
	}
	stamps := make(map[string]stamp, len(files))
	for _, file := range files {
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			stamps[file] = stamp{}
		case err != nil:
			return nil, err
		default:
			stamps[file] = stamp{info.ModTime(), info.Size(), info}
		}
	}
	return stamps, nil
}

// fresh is what the files say now. When they can't be read, what they said before still counts, beside the error.
func (c *CA) fresh() (material, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamps, err := c.look()
	if err == nil {
		for file, s := range stamps {
			if !s.same(c.stamps[file]) {
				err = c.read()
				break
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("cannot read the CA in %s: %w", c.dir, err)
	}
	return c.is, err
}

// read reads the files. Another process may be rotating: what does not fit together is looked at again.
func (c *CA) read() error {
	var err error
	for range 3 {
		var stamps map[string]stamp
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
			return material{}, fmt.Errorf("%s is no certificate of a CA", c.path(f.name))
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
	files := []string{c.path(currentKey), c.path(nextKey)}
	if c.options.KeyFile != "" {
		files = []string{c.options.KeyFile}
	}
	var keys []crypto.Signer
	for _, file := range files {
		more, err := readKeys(file)
		if err != nil {
			return err
		}
		keys = append(keys, more...)
	}
	for _, k := range keys {
		switch {
		case sameKey(k.Public(), m.current):
			m.key = k
		case m.next != nil && sameKey(k.Public(), m.next):
			m.nextKey = k
		}
	}
	if m.key == nil {
		return fmt.Errorf("the key of %s (%s) is not in %s\nsay where it is: `--ca-key FILE` or `--ca-sign COMMAND`", c.path(currentCert), Fingerprint(m.current), files[0])
	}
	return nil
}

// Part is which of a fleet's CAs one is.
type Part string

// The parts, with a sentence each: current signs; next is trusted already and signs after a rotation; previous signs no
// more and is trusted until it is retired.
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
	KeyAtHand   bool // it can be asked to sign, as far as one sees without asking
}

// Authorities are all that is trusted: previous if there is one, current, next if there is one.
func (c *CA) Authorities() []Authority {
	m, _ := c.fresh() // what can't be read now is trusted as before
	all := []Authority{{Part: PartPrevious, Certificate: m.previous}, {PartCurrent, m.current, "", m.key != nil}, {PartNext, m.next, "", m.nextKey != nil}}
	all = slices.DeleteFunc(all, func(a Authority) bool { return a.Certificate == nil })
	for i := range all {
		all[i].Fingerprint = Fingerprint(all[i].Certificate)
	}
	return all
}

// Bundle is the PEM of all CA certificates that are trusted.
func (c *CA) Bundle() []byte {
	var certs []*x509.Certificate
	for _, a := range c.Authorities() {
		certs = append(certs, a.Certificate)
	}
	return encodeCertificates(certs...)
}

// Fingerprints are the pins of the current CA and of the next one: what a new machine is told.
func (c *CA) Fingerprints() []string {
	var pins []string
	for _, a := range c.Authorities() {
		if a.Part != PartPrevious {
			pins = append(pins, a.Fingerprint)
		}
	}
	return pins
}

// NextSince is when the next CA was published, at the earliest; ok is false where there is none. Who got the bundle since
// then trusts it.
func (c *CA) NextSince() (since time.Time, ok bool) {
	m, err := c.fresh()
	if err != nil || m.next == nil {
		return time.Time{}, false
	}
	since = m.next.NotBefore.Add(clockSkew)
	if info, err := os.Stat(c.path(nextCert)); err == nil && info.ModTime().After(since) { // put there by hand, or from a backup
		since = info.ModTime()
	}
	return since, true
}
