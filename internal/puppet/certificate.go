package puppet

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
)

// Certificate is where the files come from that Puppet code names by $settings::hostcert, hostprivkey and localcacert.
// The zero value means none.
type Certificate struct {
	Identity string // PEM with the node's certificates and its key
	CAs      string // PEM with the certificates of the CAs
	SSLDir   string // ssldir of a former puppet agent: its certificate, key and CA replace the node's own
}

// maxCertificate limits each file, in bytes.
const maxCertificate = 1 << 20

// placeCertificate puts the certificate, the key and the CAs below dir, under the names that Puppet's settings have for
// this certname. Their paths are the same in each run: services may use them. A file that does not exist is left out:
// without an identity, Puppet code finds none.
func (p *Puppet) placeCertificate(dir, certname string) error {
	cert, key, cas, err := p.Certificate.read(certname)
	if err != nil {
		return fmt.Errorf("cannot place the node's certificate for Puppet: %w", err)
	}
	for name, text := range map[string][]byte{"certs/" + certname + ".pem": cert, "private_keys/" + certname + ".pem": key, "certs/ca.pem": cas} {
		path := filepath.Join(dir, name)
		if old, err := bounded.ReadFile(path, maxCertificate); len(text) == 0 || err == nil && bytes.Equal(old, text) {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), atomicfile.WriteVolatile(path, text, 0o600)); err != nil {
			return fmt.Errorf("cannot place the node's certificate for Puppet: %w", err)
		}
	}
	return nil
}

func (c Certificate) read(certname string) (cert, key, cas []byte, err error) {
	if c.SSLDir != "" {
		return c.former(certname)
	}
	both, err := readPEM(c.Identity)
	if err != nil {
		return nil, nil, nil, err
	}
	for block, rest := pem.Decode(both); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			cert = append(cert, pem.EncodeToMemory(block)...)
		} else if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			key = append(key, pem.EncodeToMemory(block)...)
		}
	}
	cas, err = readPEM(c.CAs)
	return cert, key, cas, err
}

// former reads the files of a former puppet agent. Its certname may differ from the node's: then the folder has one
// certificate.
func (c Certificate) former(certname string) (cert, key, cas []byte, err error) {
	name := certname + ".pem"
	if _, err := os.Stat(filepath.Join(c.SSLDir, "certs", name)); err != nil {
		found, _ := filepath.Glob(filepath.Join(c.SSLDir, "private_keys", "*.pem"))
		if len(found) != 1 {
			return nil, nil, nil, fmt.Errorf("%s has neither a certificate of %s nor exactly one private key", c.SSLDir, certname)
		}
		name = filepath.Base(found[0])
	}
	var errs [3]error
	cert, errs[0] = readPEM(filepath.Join(c.SSLDir, "certs", name))
	key, errs[1] = readPEM(filepath.Join(c.SSLDir, "private_keys", name))
	cas, errs[2] = readPEM(filepath.Join(c.SSLDir, "certs", "ca.pem"))
	return cert, key, cas, errors.Join(errs[:]...)
}

// readPEM reads a file; nil for a missing one.
func readPEM(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := bounded.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bounded.Read(f, maxCertificate)
}
