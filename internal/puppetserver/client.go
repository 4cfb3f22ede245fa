// Package puppetserver is a client of Puppet servers: of Puppet's CA, of the catalog endpoint and of the status service; and of
// PuppetDB. It knows each answer that puppetserver 7.9 and PuppetDB 7.12 give, and turns it into a code. words.go makes the sentences.
//
// It must never trust a server beyond the CA that was given, clean or revoke a certificate of Puppet's own infrastructure, or take
// a certificate for its own whose key it did not check.
package puppetserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/pki"
	"pulley/internal/pki/connect"
)

// DefaultPort is the port of Puppet servers.
const DefaultPort = "8140"

// The limits of one request. A catalog takes longest.
const (
	requestTimeout = 30 * time.Second
	compileTimeout = 5 * time.Minute
	dialTimeout    = 10 * time.Second
	maxAnswer      = 64 << 20 // a list of 50,000 certificates
	maxText        = 500      // bytes of an answer that an error shows
)

// The files of a folder with credentials.
const (
	CertFile = "cert.pem"
	KeyFile  = "key.pem"
	CAFile   = "ca.pem"
)

// Credentials are a client certificate of a Puppet CA, with its key, and the certificates of that CA.
type Credentials struct {
	Identity pki.Identity
	CA       []byte // PEM: the issuing certificate, and those above it

	others map[string]Credentials // at servers of another CA, by their host
}

// at returns the credentials at a host.
func (c Credentials) at(host string) Credentials {
	if other, has := c.others[host]; has {
		return other
	}
	return c
}

// LoadCredentials reads the files cert.pem, key.pem and ca.pem of a folder. A folder below it has those for the host of its name, which
// has another CA.
func LoadCredentials(dir string) (Credentials, error) {
	c, err := loadCredentials(dir)
	if err != nil {
		return c, err
	}
	below, err := filepath.Glob(filepath.Join(dir, "*", CertFile))
	for i := 0; err == nil && i < len(below); i++ {
		var other Credentials
		if other, err = loadCredentials(filepath.Dir(below[i])); err == nil {
			if c.others == nil {
				c.others = map[string]Credentials{}
			}
			c.others[filepath.Base(filepath.Dir(below[i]))] = other
		}
	}
	return c, err
}

func loadCredentials(dir string) (Credentials, error) {
	fail := func(err error) (Credentials, error) {
		return Credentials{}, fmt.Errorf("cannot read the credentials of the Puppet CA: %w\nput %s, %s and %s there: docs/puppet-server.md describes how to make them", err, CertFile, KeyFile, CAFile)
	}
	key, err := pki.LoadKey(filepath.Join(dir, KeyFile))
	if err != nil {
		return fail(err)
	}
	cert, err := bounded.ReadFile(filepath.Join(dir, CertFile), 1<<20)
	if err != nil {
		return fail(err)
	}
	c := Credentials{}
	if c.Identity, err = pki.NewIdentity(key, cert); err != nil {
		return fail(fmt.Errorf("%s: %w", filepath.Join(dir, CertFile), err))
	}
	if c.CA, err = bounded.ReadFile(filepath.Join(dir, CAFile), 1<<20); err != nil {
		return fail(err)
	}
	if _, err := pki.ParseCertificates(c.CA); err != nil {
		return fail(fmt.Errorf("%s: %w", filepath.Join(dir, CAFile), err))
	}
	return c, nil
}

// Name returns the certname of the credentials.
func (c Credentials) Name() string { return c.Identity.Leaf().Subject.CommonName }

// Client is a client of one server.
type Client struct {
	URL string

	server connect.Server
	own    Credentials
	caFile []*x509.Certificate
	http   *http.Client
	now    func() time.Time

	isServer func(certname string) bool // by the environment file; nil: unknown
}

// habitual is the name that agents use for their server. The certificates of servers have it, and often no IP address.
const habitual = "puppet"

// New returns a client of the server at a URL like https://puppet.example.com:8140. Without a port, the port is 8140. The server's
// certificate must be for the host of the URL; for an IP address, it may also be for puppet.
func New(address string, own Credentials, now func() time.Time) (*Client, error) {
	return NewNamed(address, "", own, now)
}

// NewNamed is New for a server whose certificate has another name than its URL; "" is New.
func NewNamed(address, name string, own Credentials, now func() time.Time) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("cannot use Puppet server %q: give https://host:%s", address, DefaultPort)
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), DefaultPort)
	}
	own = own.at(u.Hostname())
	cas, err := pki.ParseCertificates(own.CA)
	if err != nil {
		return nil, fmt.Errorf("cannot use the CA certificates: %w", err)
	}
	config, err := own.Identity.TLS(own.CA)
	if err != nil {
		return nil, err
	}
	names := []string{u.Hostname()}
	switch {
	case name != "":
		names = []string{name}
	case net.ParseIP(u.Hostname()) != nil:
		names = append(names, habitual)
	}
	config.MinVersion = tls.VersionTLS12 // puppetserver on Java 8 knows no later version
	config.InsecureSkipVerify = true     // VerifyConnection verifies
	config.VerifyConnection = func(s tls.ConnectionState) error { return verifyServer(s, config.RootCAs, names, now()) }
	return &Client{URL: "https://" + host, server: connect.Puppet, own: own, caFile: cas, now: now, http: httpClient(config)}, nil
}

func httpClient(config *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout, MaxIdleConns: 2, IdleConnTimeout: time.Minute,
			DialContext:  (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// as returns a client of the same server with another certificate.
func (c *Client) as(of pki.Identity) *Client {
	config := c.http.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.Certificates = []tls.Certificate{of.Certificate()}
	other := *c
	other.own.Identity, other.http = of, httpClient(config)
	return &other
}

// verifyServer returns an error unless the server has a certificate of our CA for one of the names.
func verifyServer(s tls.ConnectionState, roots *x509.CertPool, names []string, now time.Time) error {
	others := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		others.AddCert(c)
	}
	leaf := s.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err == nil {
		for _, name := range names {
			if err = leaf.VerifyHostname(name); err == nil {
				return nil
			}
		}
	}
	return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// answer is the answer to one request.
type answer struct {
	status int
	body   []byte
	header http.Header
	at     time.Time // when it arrived, by this machine's clock
}

// text is what the server wrote, in one line.
func (a answer) text() string {
	var said struct {
		Message string `json:"message"`
		Error   string `json:"error"` // of PuppetDB
	}
	if json.Unmarshal(a.body, &said) == nil && said.Message+said.Error != "" {
		return clip.Line(said.Message+said.Error, maxText)
	}
	return clip.Line(strings.TrimSpace(string(a.body)), maxText)
}

// missing reports whether a service answered that something does not exist. Where the service itself does not exist, the web
// server answers 404 too, in several forms; it lacks this header.
func (a answer) missing() bool {
	return a.status == http.StatusNotFound && a.header.Get("X-Puppet-Version") != ""
}

// request is one request. doing is what it does, for errors: "sign the certificate of web1".
type request struct {
	doing, method, path, accept, contentType string
	body                                     []byte
	timeout                                  time.Duration
}

// do sends a request and returns the answer, whatever its status. An *Error with the code Unreachable wraps a
// *connect.Failure.
func (c *Client) do(ctx context.Context, r request) (answer, error) {
	if r.timeout == 0 {
		r.timeout = requestTimeout
	}
	within, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(within, r.method, c.URL+r.path, bytes.NewReader(r.body))
	if err != nil {
		return answer{}, fmt.Errorf("cannot %s: %w", r.doing, err)
	}
	for name, value := range map[string]string{"Accept": r.accept, "Content-Type": r.contentType} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, c.unreachable(ctx, r, err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header, at: c.now()}
	if a.body, err = bounded.Read(resp.Body, maxAnswer); err != nil {
		return answer{}, c.unreachable(ctx, r, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return a, nil
}

func (c *Client) unreachable(ctx context.Context, r request, err error) error {
	if ctx.Err() != nil { // the caller's end, not the server's
		return fmt.Errorf("cannot %s: %w", r.doing, ctx.Err())
	}
	own := c.own.Identity.Leaf()
	target := connect.Target{Server: c.server, URL: c.URL, CA: CAFile, Own: own, Timeout: r.timeout}
	return &Error{Code: Unreachable, Doing: r.doing, URL: c.URL, err: target.Explain(err, c.now())}
}

// refused returns the error for an answer that no caller has a code for.
func (c *Client) refused(r request, a answer) *Error {
	e := &Error{Code: Refused, Doing: r.doing, Server: c.server, URL: c.URL, Name: c.own.Name(), Status: a.status, Text: a.text()}
	switch {
	case a.status == http.StatusForbidden:
		e.Code, e.Method, e.Path = NoRight, r.method, r.path
	case a.status == http.StatusNotFound && !a.missing():
		e.Code = NoService
	case a.status >= 500:
		e.Code = ServerFailed
	}
	return e
}

// unreadable returns the error for an answer that does not have its form.
func (c *Client) unreadable(r request, err error) *Error {
	return &Error{Code: Unreadable, Doing: r.doing, URL: c.URL, Text: clip.Line(err.Error(), maxText), err: err}
}
