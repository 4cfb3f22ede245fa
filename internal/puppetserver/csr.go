package puppetserver

import (
	"crypto"
	"crypto/x509"
	"encoding/asn1"
	"fmt"

	"pulley/internal/pki"
	"pulley/internal/puppetserver/requests"
)

var (
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
)

// NewCSR is requests.New for a name that the CA takes.
func NewCSR(key crypto.Signer, name string, extensions map[string]string) ([]byte, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	return requests.New(key, name, extensions)
}

// CheckCSR returns the request if it is one of this name: the common name is exactly it, nothing else is in the subject, the
// extensions are exactly these, no other attribute is there, and the request is signed by its own key. Otherwise the error
// has the code BadRequest.
func CheckCSR(csr []byte, name string, extensions map[string]string) (*x509.CertificateRequest, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	want, err := requests.Encoded(extensions)
	if err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) (*x509.CertificateRequest, error) {
		return nil, &Error{Code: BadRequest, Doing: "sign the certificate of " + name, Name: name, Text: fmt.Sprintf(format, args...)}
	}
	r, err := pki.ParseCSR(csr)
	if err != nil {
		return bad("%v", err)
	}
	if len(r.Subject.Names) != 1 || !r.Subject.Names[0].Type.Equal(oidCommonName) || r.Subject.CommonName != name {
		return bad("its subject is %q", r.Subject.String())
	}
	attributes, err := attributesOf(r.RawTBSCertificateRequest)
	if err != nil {
		return bad("its attributes have an unknown form: %v", err)
	}
	for i, oid := range attributes {
		if !oid.Equal(oidExtensionRequest) || i > 0 {
			return bad("it has the attribute %s", oid)
		}
	}
	seen := 0
	for _, e := range r.Extensions {
		expected, known := want[e.Id.String()]
		switch {
		case !known:
			return bad("it has the extension %s", requests.NameOf(e.Id))
		case e.Critical || string(e.Value) != string(expected.Value):
			return bad("its extension %s has another value than the environment file", requests.NameOf(e.Id))
		}
		seen++
	}
	if seen != len(want) {
		return bad("it has %d of the %d extensions of the environment file", seen, len(want))
	}
	return r, nil
}

// attributesOf returns the types of a request's attributes. Package x509 skips those that it does not know.
func attributesOf(tbs []byte) ([]asn1.ObjectIdentifier, error) {
	var parsed struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []struct {
			Type   asn1.ObjectIdentifier
			Values asn1.RawValue
		} `asn1:"tag:0,optional,set"`
	}
	if rest, err := asn1.Unmarshal(tbs, &parsed); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("cannot read them: %w", err)
	}
	var types []asn1.ObjectIdentifier
	for _, a := range parsed.Attributes {
		types = append(types, a.Type)
	}
	return types, nil
}
