package puppetserver

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"pulley/internal/pki"
)

const (
	pathCA       = "/puppet-ca/v1/"
	pathRequest  = pathCA + "certificate_request/"
	pathStatus   = pathCA + "certificate_status/"
	pathStatuses = pathCA + "certificate_statuses/"
	pathCert     = pathCA + "certificate/"
	pathCRL      = pathCA + "certificate_revocation_list/ca"
	authority    = "ca" // the CA's own certificate, in the place of a certname

	typeText, typeJSON = "text/plain", "application/json"
)

// maxCertname limits the bytes of a certname: a count in the pattern would make each start of the agent compile it for long.
const maxCertname = 253

// certname is what Puppet's CA signs, less what would be a path or another endpoint.
var certname = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]*$`)

// CheckName returns an error with the code InvalidName for a name that Puppet's CA does not sign: with upper-case letters,
// for example.
func CheckName(name string) error {
	if len(name) > maxCertname || !certname.MatchString(name) || name == authority {
		return &Error{Code: InvalidName, Doing: "use a name at Puppet's CA", Name: name}
	}
	return nil
}

// State is the state of a name at the CA.
type State string

// The states. A name that the CA does not know has none.
const (
	Requested State = "requested"
	Signed    State = "signed"
	Revoked   State = "revoked"
)

// Status is what the CA knows of a name.
type Status struct {
	Name        string
	State       State
	Fingerprint string            // SHA-256 of the certificate or the request, as Puppet prints it
	From, Until time.Time         // of a certificate
	Serial      string            // of a certificate
	Names       []string          // subject alternative names
	Extensions  map[string]string // authorization extensions
}

// infrastructure reports whether the certificate is that of a server, by its further names, or gives rights on Puppet servers.
func (s Status) infrastructure() bool {
	others := func(name string) bool { return name != "DNS:"+s.Name }
	return s.State != Requested && (len(s.Extensions) > 0 || slices.ContainsFunc(s.Names, others))
}

// statusTime is the form of Puppet's times.
const statusTime = "2006-01-02T15:04:05MST"

// UnmarshalJSON reads the form of the CA's API.
func (s *Status) UnmarshalJSON(b []byte) error {
	var wire struct {
		Name        string            `json:"name"`
		State       State             `json:"state"`
		Fingerprint string            `json:"fingerprint"`
		NotBefore   string            `json:"not_before"`
		NotAfter    string            `json:"not_after"`
		Serial      json.Number       `json:"serial_number"`
		Names       []string          `json:"subject_alt_names"`
		Extensions  map[string]string `json:"authorization_extensions"`
	}
	if err := json.Unmarshal(b, &wire); err != nil {
		return err
	}
	*s = Status{Name: wire.Name, State: wire.State, Fingerprint: wire.Fingerprint, Serial: wire.Serial.String(), Names: wire.Names, Extensions: wire.Extensions}
	switch {
	case s.Name == "":
		return errors.New("a certificate has no name")
	case s.State != Requested && s.State != Signed && s.State != Revoked:
		return fmt.Errorf("the state of %q is %q", s.Name, s.State)
	}
	for text, into := range map[string]*time.Time{wire.NotBefore: &s.From, wire.NotAfter: &s.Until} {
		if text == "" {
			continue
		}
		at, err := time.Parse(statusTime, text)
		if err != nil {
			return err
		}
		*into = at.UTC()
	}
	return nil
}

// List returns the names that the CA knows. It needs the right get on certificate_statuses.
func (c *Client) List(ctx context.Context) ([]Status, error) {
	r := request{doing: "list the certificates", method: http.MethodGet, path: pathStatuses + "all", accept: typeJSON}
	a, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, c.refused(r, a)
	}
	var all []Status
	if err := json.Unmarshal(a.body, &all); err != nil {
		return nil, c.unreadable(r, err)
	}
	return all, nil
}

// Status returns what the CA knows of a name; an error with the code UnknownName if it knows nothing. It needs the right get
// on certificate_status.
func (c *Client) Status(ctx context.Context, name string) (Status, error) {
	if err := CheckName(name); err != nil {
		return Status{}, err
	}
	r := request{doing: "read the state of " + name, method: http.MethodGet, path: pathStatus + name, accept: typeJSON}
	a, err := c.do(ctx, r)
	if err != nil {
		return Status{}, err
	}
	var s Status
	switch {
	case a.missing():
		return Status{}, c.of(r, UnknownName, name)
	case a.status != http.StatusOK:
		return Status{}, c.refused(r, a)
	}
	if err := json.Unmarshal(a.body, &s); err != nil {
		return Status{}, c.unreadable(r, err)
	}
	if s.Name != name {
		return Status{}, c.unreadable(r, fmt.Errorf("it is the state of %q", s.Name))
	}
	return s, nil
}

// of returns an error about a name.
func (c *Client) of(r request, code Code, name string) *Error {
	return &Error{Code: code, Doing: r.doing, URL: c.URL, Name: name}
}

// Request submits a certificate request, as PEM. If the CA knows the name already, the error has the code Taken and its
// state.
func (c *Client) Request(ctx context.Context, name string, csr []byte) error {
	if err := CheckName(name); err != nil {
		return err
	}
	r := request{doing: "request a certificate for " + name, method: http.MethodPut, path: pathRequest + name, contentType: typeText, body: csr}
	a, err := c.do(ctx, r)
	switch {
	case err != nil:
		return err
	case a.status == http.StatusOK:
		return nil
	case a.status == http.StatusBadRequest: // a name that exists, or a request that the CA rejects
		if s, err := c.Status(ctx, name); err == nil {
			e := c.of(r, Taken, name)
			e.State = s.State
			return e
		}
	}
	return c.refused(r, a)
}

// Sign signs the pending request of a name. It needs the right put on certificate_status.
func (c *Client) Sign(ctx context.Context, name string) error {
	return c.desire(ctx, request{doing: "sign the certificate of " + name}, name, Signed)
}

// Revoke revokes the certificate of a name; the name stays taken. It needs the rights get and put on certificate_status.
func (c *Client) Revoke(ctx context.Context, name string) error {
	r := request{doing: "revoke the certificate of " + name}
	if err := c.expendable(ctx, r, name); err != nil {
		return err
	}
	return c.desire(ctx, r, name, Revoked)
}

// desire changes the state of a name.
func (c *Client) desire(ctx context.Context, r request, name string, state State) error {
	if err := CheckName(name); err != nil {
		return err
	}
	r.method, r.path, r.contentType, r.body = http.MethodPut, pathStatus+name, typeJSON, []byte(`{"desired_state":"`+state+`"}`)
	a, err := c.do(ctx, r)
	switch {
	case err != nil:
		return err
	case a.status == http.StatusNoContent || a.status == http.StatusOK:
		return nil
	case a.missing():
		return c.of(r, UnknownName, name)
	case a.status == http.StatusConflict && state == Revoked:
		return c.of(r, NotSigned, name)
	case a.status == http.StatusConflict: // also a request with extensions that the CA rejects
		if s, err := c.Status(ctx, name); err == nil && s.State != Requested {
			return c.of(r, NoRequest, name)
		}
	}
	return c.refused(r, a)
}

// expendable returns an error for a certificate of Puppet's infrastructure: no node may take the name of a server, and have
// the server's certificate revoked.
func (c *Client) expendable(ctx context.Context, r request, name string) error {
	s, err := c.Status(ctx, name)
	if err == nil && c.mustKeep(s) {
		return c.of(r, Infrastructure, name)
	}
	return err
}

// mustKeep reports whether the certificate is one of Puppet's infrastructure, or Pulley's own.
func (c *Client) mustKeep(s Status) bool {
	return s.infrastructure() || s.Name == c.own.Name() || c.isServer != nil && c.isServer(s.Name)
}

// Clean revokes the certificate of a name and deletes it, and deletes a pending request. It returns the former state; ""
// if the CA knew nothing of the name. It may be repeated. It needs the rights get, put and delete on certificate_status.
func (c *Client) Clean(ctx context.Context, name string) (State, error) {
	r := request{doing: "clean " + name}
	s, err := c.Status(ctx, name)
	if failed := (*Error)(nil); errors.As(err, &failed) && failed.Code == UnknownName {
		return "", nil
	}
	switch {
	case err != nil:
		return "", err
	case c.mustKeep(s):
		return s.State, c.of(r, Infrastructure, name)
	case s.State == Signed:
		if err := c.desire(ctx, request{doing: r.doing}, name, Revoked); err != nil {
			return s.State, err
		}
	}
	return s.State, c.delete(ctx, r.doing, name)
}

// delete deletes what the CA has of a name. It may be repeated.
func (c *Client) delete(ctx context.Context, doing, name string) error {
	r := request{doing: doing, method: http.MethodDelete, path: pathStatus + name}
	a, err := c.do(ctx, r)
	switch {
	case err != nil:
		return err
	case a.status == http.StatusNoContent, a.status == http.StatusOK, a.missing():
		return nil
	}
	return c.refused(r, a)
}

// get fetches a PEM text of the CA. Everybody may.
func (c *Client) get(ctx context.Context, doing, path, name string) ([]byte, error) {
	r := request{doing: doing, method: http.MethodGet, path: path}
	a, err := c.do(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case a.missing():
		return nil, c.of(r, UnknownName, name)
	case a.status != http.StatusOK:
		return nil, c.refused(r, a)
	}
	return a.body, nil
}

// Certificate fetches the certificate of a name, as PEM.
func (c *Client) Certificate(ctx context.Context, name string) ([]byte, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	return c.get(ctx, "fetch the certificate of "+name, pathCert+name, name)
}

// CA fetches the certificates of the CA, as PEM.
func (c *Client) CA(ctx context.Context) ([]byte, error) {
	doing := "fetch the certificates of the CA"
	b, err := c.get(ctx, doing, pathCert+authority, authority)
	if err == nil {
		if _, problem := pki.ParseCertificates(b); problem != nil {
			err = c.unreadable(request{doing: doing}, problem)
		}
	}
	return b, err
}

// CRL fetches the revocation lists of the CA, as PEM, and returns that of the issuing CA parsed. Its signature was checked.
func (c *Client) CRL(ctx context.Context) ([]byte, *x509.RevocationList, error) {
	doing := "fetch the revocation list of the CA"
	b, err := c.get(ctx, doing, pathCRL, authority)
	if err != nil {
		return nil, nil, err
	}
	list, err := ParseCRL(b, c.caFile)
	if err != nil {
		return nil, nil, c.unreadable(request{doing: doing}, err)
	}
	return b, list, nil
}

// ParseCRL returns the list of the first CA's certificate from a PEM text of several lists, after it checked the signature.
// Puppet's issuing CA is the first of its bundle.
func ParseCRL(b []byte, cas []*x509.Certificate) (*x509.RevocationList, error) {
	if len(cas) == 0 {
		return nil, errors.New("no certificate of a CA is given")
	}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			continue
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(list.RawIssuer, cas[0].RawSubject) {
			continue
		}
		if err := list.CheckSignatureFrom(cas[0]); err != nil {
			return nil, err
		}
		return list, nil
	}
	return nil, fmt.Errorf("no revocation list of %q is in it", cas[0].Subject.CommonName)
}
