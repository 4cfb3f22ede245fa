package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"pulley/internal/atomicfile"
)

// recipientScheme begins the URI of a recipient in its certificate.
const recipientScheme = "pulley-recipient"

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

// IssueRecipient certifies that secrets for a scope of an environment may be encrypted to a recipient. No server and no
// client accepts the certificate: it has another use, and nobody has its key.
func (c *CA) IssueRecipient(environment, scope, recipient string) ([]byte, error) {
	key, err := NewKey()
	var cert *x509.Certificate
	if err == nil {
		cert, _, err = c.issue(key.Public(), "pulley recipient", caLifetime, &x509.Certificate{
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection}, URIs: []*url.URL{recipientURI(environment, scope, recipient)},
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot certify the recipient of %s in %s: %w", scope, environment, err)
	}
	return encodeCertificates(cert), nil
}

func recipientURI(environment, scope, recipient string) *url.URL {
	return &url.URL{Scheme: recipientScheme, Host: "v1", Path: "/" + strings.Join([]string{url.PathEscape(environment), url.PathEscape(scope), recipient}, "/")}
}

// CheckRecipient returns an error unless certificate is that of IssueRecipient, by a CA of the bundle.
func CheckRecipient(bundle, certificate []byte, environment, scope, recipient string) error {
	fail := func(problem string) error {
		return fmt.Errorf("cannot trust the recipient of %s in %s: %s", scope, environment, problem)
	}
	cas, err := ParseCertificates(bundle)
	if err != nil {
		return err
	}
	certs, err := ParseCertificates(certificate)
	if err != nil || len(certs) != 1 {
		return fail("it has no certificate")
	}
	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AddCert(ca)
	}
	_, err = certs[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection}})
	if err != nil {
		return fail(err.Error())
	}
	want := recipientURI(environment, scope, recipient).String()
	if certs[0].Subject.String() != (pkix.Name{CommonName: "pulley recipient"}).String() || len(certs[0].URIs) != 1 || certs[0].URIs[0].String() != want {
		return fail("its certificate is for another one")
	}
	return nil
}
