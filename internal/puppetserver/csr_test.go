package puppetserver

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"pulley/internal/pki"
)

// A request that gives a node another name, a server's names or rights on the CA must never be signed.
func TestCheckCSRAcceptsOnlyItsName(t *testing.T) {
	t.Parallel()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text := func(s string) []byte {
		b, err := asn1.MarshalWithParams(s, "utf8")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	role := pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34380, 1, 1, 13}, Value: text("web")}
	with := func(id asn1.ObjectIdentifier, value string) pkix.Extension {
		return pkix.Extension{Id: id, Value: text(value)}
	}
	signed := func(key crypto.Signer, of x509.CertificateRequest) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &of, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	request := func(name string, extensions ...pkix.Extension) x509.CertificateRequest {
		return x509.CertificateRequest{Subject: pkix.Name{CommonName: name}, ExtraExtensions: extensions}
	}
	good := signed(key, request("web1", role))
	if _, err := CheckCSR(good, "web1", map[string]string{"pp_role": "web"}); err != nil {
		t.Fatal(err)
	}
	own, err := NewCSR(key, "web1", map[string]string{"pp_role": "web"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CheckCSR(own, "web1", map[string]string{"pp_role": "web"}); err != nil {
		t.Error(err)
	}
	damaged := func() []byte {
		block, _ := pem.Decode(good)
		block.Bytes[len(block.Bytes)-1] ^= 1
		return pem.EncodeToMemory(block)
	}
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	challenge := request("web1", role)
	challenge.Attributes = []pkix.AttributeTypeAndValueSET{{Type: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}, Value: [][]pkix.AttributeTypeAndValue{{{Type: asn1.ObjectIdentifier{1, 2}, Value: "x"}}}}} //nolint:staticcheck // an attribute that Puppet's agents can send
	two := request("web1", role)
	two.Subject.Organization = []string{"x"}
	twice := request("web1", role)
	twice.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: oidCommonName, Value: "web1"}, {Type: oidCommonName, Value: "admin"}}
	names := request("web1", role)
	names.DNSNames = []string{"puppet"}
	for what, c := range map[string]struct {
		csr  []byte
		want string
	}{
		"another name":              {signed(key, request("web2", role)), "its subject"},
		"mixed case":                {signed(key, request("Web1", role)), "its subject"},
		"more in the subject":       {signed(key, two), "its subject"},
		"two common names":          {signed(key, twice), "its subject"},
		"no name":                   {signed(key, request("", role)), "its subject"},
		"names of a server":         {signed(key, names), "the extension 2.5.29.17"},
		"pp_cli_auth":               {signed(key, request("web1", role, with(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34380, 1, 3, 39}, "true"))), "1.3.6.1.4.1.34380.1.3.39"},
		"pp_auth_role":              {signed(key, request("web1", role, with(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34380, 1, 3, 13}, "x"))), "1.3.6.1.4.1.34380.1.3.13"},
		"an extension of its own":   {signed(key, request("web1", role, with(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34380, 1, 1, 18}, "eu"))), "the extension pp_region"},
		"another role":              {signed(key, request("web1", with(role.Id, "db"))), "pp_role has another value"},
		"a critical extension":      {signed(key, request("web1", pkix.Extension{Id: role.Id, Value: role.Value, Critical: true})), "pp_role has another value"},
		"no extension":              {signed(key, request("web1")), "0 of the 1 extensions"},
		"an attribute":              {signed(key, challenge), "the attribute 1.2.840.113549.1.9.7"},
		"a damaged signature":       {damaged(), "not signed by its own key"},
		"a weak key":                {signed(weak, request("web1", role)), "P-224"},
		"no request":                {[]byte("junk"), "no PEM block"},
		"two extensions of a value": {signed(key, request("web1", role, role)), ""},
	} {
		_, err := CheckCSR(c.csr, "web1", map[string]string{"pp_role": "web"})
		var e *Error
		if !errors.As(err, &e) || e.Code != BadRequest || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := CheckCSR(good, "Web1", nil); err == nil {
		t.Error("a name in mixed case is accepted")
	}
	if _, err := NewCSR(key, "web1", map[string]string{"pp_cli_auth": "true"}); err == nil {
		t.Error("an authorization extension is requested")
	}
	if _, err := NewCSR(key, "web1", map[string]string{"pp_role": "a", "1.3.6.1.4.1.34380.1.1.13": "b"}); err == nil {
		t.Error("an extension is requested twice")
	}
}

// Every code has a sentence and, but for a few, a remedy.
func TestEveryCodeHasWords(t *testing.T) {
	t.Parallel()
	for _, code := range []Code{NoRight, NoService, UnknownName, NoRequest, NotSigned, Taken, InvalidName, BadRequest, Infrastructure, OtherCertificate, EnvironmentMissing, CompileFailed, ClassifierFailed, Refused, ServerFailed, Unreadable} {
		e := &Error{Code: code, Doing: "DO", URL: "https://ca:8140", Name: "web1", State: Signed, Method: "PUT", Path: "/puppet-ca/v1/certificate_status/web1", Status: 409, Text: "TEXT"}
		if !strings.HasPrefix(e.Error(), "cannot DO: ") || e.Cause() == "" || strings.Contains(e.Error()+e.Hint(), "\n") {
			t.Errorf("%s: %v", code, e)
		}
		if without := code == CompileFailed || code == Refused || code == Unreadable; (e.Hint() == "") != without {
			t.Errorf("%s: remedy %q", code, e.Hint())
		}
		if code == NoRight && !strings.Contains(e.Error(), "PUT on /puppet-ca/v1/certificate_status to") {
			t.Error(e)
		}
	}
}
