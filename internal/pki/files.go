package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
)

// maxFileBytes is far more than any file of certificates and keys needs.
const maxFileBytes = 1 << 20

// lockName is the lock of a CA's folder.
const lockName = "lock"

// lockTimeout bounds the wait for another process that changes the same folder.
const lockTimeout = 10 * time.Second

// lockFolder prevents concurrent changes of the CA by other processes and by this one.
func lockFolder(dir string) (unlock func() error, err error) {
	f, err := atomicfile.OpenLock(filepath.Join(dir, lockName))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(errors.New("another process has been changing it for too long"), f.Close())
		case <-tick.C:
		}
	}
}

// ReadFolder reads all files of a CA's folder, as no change by another process leaves them half done. A missing folder
// has no files.
func ReadFolder(dir string) (files map[string][]byte, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	unlock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	paths, err := filepath.Glob(filepath.Join(dir, "[^.]*")) // without temporary files
	files = map[string][]byte{}
	for i := 0; err == nil && i < len(paths); i++ {
		if name := filepath.Base(paths[i]); name != lockName {
			files[name], err = bounded.ReadFile(paths[i], maxFileBytes)
		}
	}
	return files, err
}

const (
	typeCertificate = "CERTIFICATE"
	typeKey         = "PRIVATE KEY"
)

func encodeCertificates(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&b, &pem.Block{Type: typeCertificate, Bytes: c.Raw}) // a write to a buffer never fails
	}
	return b.Bytes()
}

// ParseKey reads the only key of a PEM text.
func ParseKey(b []byte) (crypto.Signer, error) {
	_, keys, err := parsePEM(b)
	if err == nil && len(keys) != 1 {
		err = fmt.Errorf("it contains %d PEM keys, not one", len(keys))
	}
	if err != nil {
		return nil, err
	}
	return keys[0], nil
}

// EncodeKey returns a key as PEM, in PKCS #8.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}), nil
}

// ParseCertificates reads every certificate of a PEM text, and ignores keys. A text without certificates is an error.
func ParseCertificates(b []byte) ([]*x509.Certificate, error) {
	certs, _, err := parsePEM(b)
	if err == nil && len(certs) == 0 {
		err = errors.New("no PEM certificate is in it")
	}
	return certs, err
}

// parsePEM reads the certificates and the keys of a text, each in their order.
func parsePEM(b []byte) (certs []*x509.Certificate, keys []crypto.Signer, err error) {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case typeCertificate:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			certs = append(certs, c)
		case typeKey, "EC PRIVATE KEY", "RSA PRIVATE KEY":
			k, err := parseKey(block)
			if err != nil {
				return nil, nil, err
			}
			keys = append(keys, k)
		}
	}
	return certs, keys, nil
}

func parseKey(block *pem.Block) (crypto.Signer, error) {
	var key any
	var err error
	switch block.Type {
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return nil, errors.New("its key cannot be read: it must be a PEM key without a passphrase")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("its key cannot sign")
	}
	return signer, nil
}

// readFile reads a file of keys or certificates. A link to a missing file is no missing file: a new key must not replace it.
func readFile(path string) ([]byte, error) { return bounded.ReadFile(path, maxFileBytes) }

// readPEM reads the certificates and the keys of a file.
func readPEM(path string) (certs []*x509.Certificate, keys []crypto.Signer, err error) {
	b, err := readFile(path)
	if err != nil {
		return nil, nil, err
	}
	if certs, keys, err = parsePEM(b); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return certs, keys, nil
}

// readCertificate reads a file of one certificate. It returns nil if the file does not exist.
func readCertificate(path string) (*x509.Certificate, error) {
	certs, _, err := readPEM(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && len(certs) != 1:
		err = fmt.Errorf("%s: it contains %d PEM certificates, not one", path, len(certs))
	}
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}

// readKey is LoadKey, but returns nil if the file does not exist.
func readKey(path string) (crypto.Signer, error) {
	key, err := LoadKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return key, err
}

// sameKey reports whether a public key is that of a certificate.
func sameKey(public crypto.PublicKey, cert *x509.Certificate) bool {
	k, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(public)
}

// Kept returns the line in a file of the folder, and with create makes a missing file. Only a file that is really missing is fs.ErrNotExist.
// Any other failure is another error, and replaces nothing: the file may be on a volume that is not mounted. valid checks the line.
func (c *CA) Kept(name string, valid func(string) error, create func() (string, error)) (line string, err error) {
	if line, err = c.kept(name, valid); create == nil || !errors.Is(err, fs.ErrNotExist) {
		return line, err
	}
	unlock, err := lockFolder(c.dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if line, err = c.kept(name, valid); !errors.Is(err, fs.ErrNotExist) { // of another process
		return line, err
	}
	if line, err = create(); err == nil {
		err = atomicfile.Write(c.path(name), []byte(line+"\n"), 0o600)
	}
	return line, err
}

func (c *CA) kept(name string, valid func(string) error) (string, error) {
	b, err := readFile(c.path(name))
	line := strings.TrimSpace(string(b))
	if err == nil {
		if valid(line) != nil {
			err = fmt.Errorf("%s is empty or damaged", c.path(name))
		}
	} else if _, ca := os.Stat(c.path(currentCert)); errors.Is(err, fs.ErrNotExist) && ca != nil {
		err = fmt.Errorf("%s and %s are missing: the volume of the folder may not be mounted", c.path(name), currentCert)
	}
	return line, err
}
