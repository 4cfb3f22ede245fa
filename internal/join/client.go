package join

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pulley/internal/pki"
	"pulley/internal/pki/connect"
)

// DefaultTimeout bounds one request to one server. A join may be slow at the server: etcd rebuilds its permissions.
const DefaultTimeout = 30 * time.Second

// tlsWithin bounds the TLS handshake with one server.
const tlsWithin = 10 * time.Second

// Client tries the servers of one fleet in turn until one answers.
type Client struct {
	servers []server
	timeout time.Duration
}

// server is one server, with a client that checks its certificate against its host.
type server struct {
	url  string
	http *http.Client
	tls  *tls.Config
}

// NewClient takes the URLs of servers (https://host:port) and the TLS configuration that authenticates them. That is
// pki.Pinned before the join, and the fleet's CA with the node's own certificate after it. A timeout of 0 is
// DefaultTimeout.
func NewClient(servers []string, t *tls.Config, timeout time.Duration) (*Client, error) {
	if len(servers) == 0 {
		return nil, errors.New("cannot reach pulley serve: no servers are given")
	}
	c := &Client{timeout: timeout}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	if t == nil {
		t = &tls.Config{}
	}
	for _, each := range servers {
		u, err := url.Parse(each)
		if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			return nil, fmt.Errorf("cannot use server %q: give https://host:port", each)
		}
		named := pki.Named(t, u.Hostname())
		c.servers = append(c.servers, server{"https://" + u.Host, httpClient(named), named})
	}
	return c, nil
}

// certificate returns this client's own certificate; nil for none.
func (s server) certificate() *x509.Certificate {
	own := s.tls.Certificates
	if len(own) == 0 {
		return nil
	}
	return own[0].Leaf
}

func httpClient(t *tls.Config) *http.Client {
	t.MinVersion = tls.VersionTLS13 // the proof depends on its keying material
	t.NextProtos = []string{"http/1.1"}
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: t, TLSHandshakeTimeout: tlsWithin,
			DisableKeepAlives: true, // each request has its own connection, which its proof is for
			TLSNextProto:      map[string]func(string, *tls.Conn) http.RoundTripper{},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // no other server gets a token
	}
}

// Join requests a certificate for key, and fills in r.CSR. After a lost answer, a repeated request with the same key
// costs no use of the token.
func (c *Client) Join(ctx context.Context, key crypto.Signer, r Request) (Answer, error) {
	csr, err := pki.CSR(key)
	if err != nil {
		return Answer{}, err
	}
	r.CSR = string(csr)
	request, err := json.Marshal(r)
	if err != nil {
		return Answer{}, fmt.Errorf("cannot encode the request: %w", err)
	}
	var a Answer
	err = c.post(ctx, PathJoin, func(connection *tls.ConnectionState) ([]byte, error) {
		statement, err := Statement(connection, request)
		if err != nil {
			return nil, err
		}
		proof, err := prove(key, statement)
		if err != nil {
			return nil, fmt.Errorf("cannot sign the request: %w", err)
		}
		return json.Marshal(Envelope{Request: request, Proof: proof})
	}, &a)
	return a, err
}

// Renew requests a certificate of the same name for a new key. m identifies the machine of a node, and lets the server
// detect a copy. It is empty for an operator.
func (c *Client) Renew(ctx context.Context, key crypto.Signer, m Machine) (Answer, error) {
	csr, err := pki.CSR(key)
	if err != nil {
		return Answer{}, err
	}
	var a Answer
	err = c.post(ctx, PathRenew, always(Renewal{CSR: string(csr), Machine: m}), &a)
	return a, err
}

// Register reports the hostname and addresses of a machine.
func (c *Client) Register(ctx context.Context, m Machine) error {
	return c.post(ctx, PathRegister, always(m), nil)
}

// Identities returns the identities that decrypt the secrets of the node's environment and role.
func (c *Client) Identities(ctx context.Context, m Machine) ([]string, error) {
	var a IdentitiesAnswer
	err := c.post(ctx, PathSecrets, always(m), &a)
	return a.Identities, err
}

// Turn asks whether the machine may be provisioned into its Puppet server now. It also keeps a turn that the machine has.
func (c *Client) Turn(ctx context.Context, m Machine) (TurnAnswer, error) {
	var a TurnAnswer
	err := c.post(ctx, PathTurn, always(m), &a)
	return a, err
}

// Sealing returns the recipient of an environment's or a role's secrets.
func (c *Client) Sealing(ctx context.Context, r SealingRequest) (SealingAnswer, error) {
	var a SealingAnswer
	err := c.post(ctx, PathSealing, always(r), &a)
	return a, err
}

// Reveal returns the plaintexts of secrets to an administrator.
func (c *Client) Reveal(ctx context.Context, r RevealRequest) ([][]byte, error) {
	var a RevealAnswer
	err := c.post(ctx, PathReveal, always(r), &a)
	if err == nil && len(a.Plaintexts) != len(r.Secrets) {
		err = errors.New("cannot read the answer of pulley serve: it lacks some secrets")
	}
	return a.Plaintexts, err
}

// LostAt returns nil if every server decrypts no identity of a role's secrets, or lacks some of them. The error names a server that decrypts all, or
// that cannot answer: several servers may have different keys.
func (c *Client) LostAt(ctx context.Context, environment, role string) error {
	for _, s := range c.servers {
		one := &Client{[]server{s}, c.timeout}
		_, err := one.Reveal(ctx, RevealRequest{Environment: environment, Role: role})
		var refused *RefusedError
		switch {
		case errors.As(err, &refused) && refused.Reason == IdentityLost:
		case err == nil:
			return fmt.Errorf("%s: %w", s.url, &RefusedError{NothingLost, Params{Environment: environment, Role: role}})
		default:
			return fmt.Errorf("%s: %w", s.url, err)
		}
	}
	return nil
}

// Leave removes the node from the fleet. Its certificate is invalid afterwards.
func (c *Client) Leave(ctx context.Context) error {
	return c.post(ctx, PathLeave, always(struct{}{}), nil)
}

// Progress reports a step; token is "" for a machine with a certificate. After a RefusedError the machine must not
// continue: another one has its name.
func (c *Client) Progress(ctx context.Context, token string, p Progress) error {
	return c.post(ctx, PathProgress, always(ProgressRequest{token, p}), nil)
}

// Reach connects to the first server that answers, and returns its URL. It sends no token, and changes nothing.
func (c *Client) Reach(ctx context.Context) (url string, err error) {
	err = c.each(ctx, func(ctx context.Context, s server) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, s.url, nil)
		if err != nil {
			return err
		}
		resp, err := s.http.Do(req)
		if err != nil {
			return err
		}
		url = s.url
		return resp.Body.Close()
	})
	return url, err
}

// always returns the same body for each connection.
func always(value any) func(*tls.ConnectionState) ([]byte, error) {
	return func(*tls.ConnectionState) ([]byte, error) { return json.Marshal(value) }
}

// post sends the body for its connection, and decodes the answer into a value unless that is nil.
func (c *Client) post(ctx context.Context, path string, body func(*tls.ConnectionState) ([]byte, error), into any) error {
	return c.each(ctx, func(ctx context.Context, s server) error {
		late := &lateBody{make: body}
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: late.got})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, late)
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		answer, err := s.do(req)
		if err != nil || into == nil {
			return err
		}
		if err := json.Unmarshal(answer, into); err != nil {
			return fmt.Errorf("cannot read the answer of pulley serve: %w", err)
		}
		return nil
	})
}

// each tries the servers in turn. A refusal ends it: all servers have the same etcd.
func (c *Client) each(ctx context.Context, try func(context.Context, server) error) error {
	failed := &UnreachableError{}
	for _, server := range c.servers {
		one, cancel := context.WithTimeout(ctx, c.timeout)
		err := try(one, server)
		cancel()
		var refused *RefusedError
		var busy *busyError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused):
			return refused
		case errors.As(err, &busy):
			failed.After, failed.TooOften = max(failed.After, busy.after), failed.TooOften || busy.often
		}
		if busy != nil {
			failed.Failures = append(failed.Failures, &connect.Failure{Code: connect.Busy, Server: connect.Serve, URL: server.url, Text: busy.says, Err: err})
			continue
		}
		target := connect.Target{Server: connect.Serve, URL: server.url, Own: server.certificate(), Timeout: c.timeout}
		why := target.Explain(withoutURL(err), time.Now())
		switch {
		case why.Code == connect.TLSTimeout:
			why.Within = tlsWithin
		case (why.Code == connect.ConnectionClosed || why.Code == connect.ServerPlain || why.Code == connect.Other) && target.IsEtcd():
			why.Code = connect.EtcdsPort
		}
		failed.Failures = append(failed.Failures, why)
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

// withoutURL removes the method and the URL that net/http adds to an error.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// busyError is an answer that requests a retry.
type busyError struct {
	says  string
	after time.Duration
	often bool // the request was one too many
}

func (e *busyError) Error() string { return e.says }

// do sends a request and returns the body of a successful answer.
func (s server) do(req *http.Request) ([]byte, error) {
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the answer: %w", err)
	}
	if len(body) > MaxBody {
		return nil, errors.New("the answer is too long")
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent {
		return body, nil
	}
	var refused RefusedError
	if json.Unmarshal(body, &refused) != nil || refused.Reason == "" {
		return nil, fmt.Errorf("the answer %s is not of pulley serve", resp.Status)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 {
		busy := &busyError{says: sentence(refused.Reason, refused.Params), often: resp.StatusCode == http.StatusTooManyRequests}
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && s <= 3600 {
			busy.after = time.Duration(s) * time.Second
		}
		return nil, busy
	}
	return nil, &refused
}

// lateBody is a request body that is built once its connection is known.
type lateBody struct {
	make       func(*tls.ConnectionState) ([]byte, error)
	connection *tls.ConnectionState
	reader     *bytes.Reader
}

func (b *lateBody) got(info httptrace.GotConnInfo) {
	if conn, ok := info.Conn.(*tls.Conn); ok {
		state := conn.ConnectionState()
		b.connection = &state
	}
}

func (b *lateBody) Read(p []byte) (int, error) {
	if b.reader == nil {
		if b.connection == nil {
			return 0, errors.New("cannot send a join request: the connection has no TLS")
		}
		made, err := b.make(b.connection)
		if err != nil {
			return 0, err
		}
		b.reader = bytes.NewReader(made)
	}
	return b.reader.Read(p)
}

// Close does nothing.
func (b *lateBody) Close() error { return nil }
