package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"strings"
)

// recipientScheme begins the URI of a recipient in its certificate.
const recipientScheme = "pulley-recipient"

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
