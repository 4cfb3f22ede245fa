package puppetserver

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"

	"pulley/internal/pki"
	"pulley/internal/puppetserver/requests"
)

// Issue gets a certificate for a request that CheckCSR accepts, as PEM: it submits and signs it, and verifies the answer. It
// may be repeated with the same request. A name with another key has the code Taken: Clean frees it.
func (c *Client) Issue(ctx context.Context, name string, csr []byte, extensions map[string]string) ([]byte, error) {
	r, err := CheckCSR(csr, name, extensions)
	if err != nil {
		return nil, err
	}
	err = c.Request(ctx, name, csr)
	taken := (*Error)(nil)
	switch {
	case errors.As(err, &taken) && taken.Code == Taken && c.isOurs(ctx, taken, r.PublicKey): // an earlier attempt was interrupted
	case err != nil:
		return nil, err
	}
	if taken == nil || taken.State == Requested {
		var none *Error
		err := c.Sign(ctx, name)
		if bySelf := errors.As(err, &none) && none.Code == NoRequest; err != nil && !bySelf { // autosign: what the CA signed is verified below
			return nil, err
		}
	}
	cert, err := c.Certificate(ctx, name)
	if err != nil {
		return nil, err
	}
	return cert, c.Verify(cert, name, r.PublicKey, extensions)
}

// isOurs reports whether the name that is taken has our key. A revoked certificate never is.
func (c *Client) isOurs(ctx context.Context, taken *Error, public crypto.PublicKey) bool {
	switch taken.State {
	case Requested:
		b, err := c.get(ctx, taken.Doing, pathRequest+taken.Name, taken.Name)
		if err != nil {
			return false
		}
		block, _ := pem.Decode(b)
		if block == nil {
			return false
		}
		r, err := x509.ParseCertificateRequest(block.Bytes)
		return err == nil && equal(public, r.PublicKey)
	case Signed:
		b, err := c.Certificate(ctx, taken.Name)
		if err != nil {
			return false
		}
		certs, err := pki.ParseCertificates(b)
		return err == nil && equal(public, certs[0].PublicKey)
	}
	return false
}

func equal(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// Presigned is a certificate that was signed before its machine boots, with its key.
type Presigned struct {
	Key         crypto.Signer
	Certificate []byte // PEM
}

// Presign makes a key and gets a certificate for it. The name must be free: Clean frees it.
func (c *Client) Presign(ctx context.Context, name string, extensions map[string]string) (Presigned, error) {
	key, err := pki.NewKey()
	if err != nil {
		return Presigned{}, err
	}
	csr, err := NewCSR(key, name, extensions)
	if err != nil {
		return Presigned{}, err
	}
	cert, err := c.Issue(ctx, name, csr, extensions)
	if err != nil {
		return Presigned{}, err
	}
	return Presigned{Key: key, Certificate: cert}, nil
}

// Verify returns an error unless the certificate is of this name and key, with these extensions, valid now, and of our CA. It
// sends no request.
func (c *Client) Verify(cert []byte, name string, public crypto.PublicKey, extensions map[string]string) error {
	bad := func(text string) error {
		return &Error{Code: OtherCertificate, Doing: "get a certificate for " + name, URL: c.URL, Name: name, Text: text}
	}
	certs, err := pki.ParseCertificates(cert)
	if err != nil {
		return bad(err.Error())
	}
	want, err := requests.Encoded(extensions)
	if err != nil {
		return err
	}
	leaf := certs[0]
	switch {
	case !equal(public, leaf.PublicKey):
		return bad("it has another key")
	case leaf.Subject.CommonName != name:
		return bad("it is of " + leaf.Subject.CommonName)
	}
	roots := x509.NewCertPool()
	for _, ca := range c.caFile {
		roots.AddCert(ca)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: c.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return bad(err.Error())
	}
	for _, e := range want {
		found := false
		for _, has := range leaf.Extensions {
			found = found || has.Id.Equal(e.Id) && bytes.Equal(has.Value, e.Value)
		}
		if !found {
			return bad("its extension " + requests.NameOf(e.Id) + " is missing")
		}
	}
	return nil
}
