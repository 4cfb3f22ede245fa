package mirror

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/release/content"
	"pulley/internal/stablehash"
)

const (
	maxRedirects   = 3
	maxDeltas      = 1024 // per call; package content requests far fewer
	parallelDeltas = 8
)

// Client reads from mirrors, which are file servers with the names of this package. It is a Source and safe for
// concurrent use.
type Client struct {
	mirrors []*server
	http    *http.Client
	timeout time.Duration
}

type server struct {
	base    string // without a trailing slash
	shown   string // the same without a password, for errors
	breaker breaker
}

// New creates a client. It tries the mirrors in order (see StartAt), each request for at most timeout. Plain http is
// allowed only for this machine. Without tlsConfig, the CAs of the system apply.
func New(urls []string, tlsConfig *tls.Config, timeout time.Duration) (*Client, error) {
	if len(urls) == 0 {
		return nil, errors.New("cannot use mirrors: none is given")
	}
	if timeout <= 0 {
		return nil, fmt.Errorf("cannot use mirrors: %s is not a valid timeout", timeout)
	}
	c := &Client{timeout: timeout}
	for _, u := range urls {
		base, err := parseBase(u)
		if err != nil {
			return nil, fmt.Errorf("cannot use mirror %s: %w", shown(u), err)
		}
		c.mirrors = append(c.mirrors, &server{base: base, shown: shown(base)})
	}
	c.http = &http.Client{
		CheckRedirect: checkRedirect,
		Transport: &http.Transport{
			TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true,
			DialContext:            (&net.Dialer{Timeout: timeout}).DialContext,
			IdleConnTimeout:        time.Minute, // other timeouts follow from the deadline of a request
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: parallelDeltas,
			DisableCompression: true, // decompressed data would have no size limit
		},
	}
	return c, nil
}

// StartAt puts another mirror first, selected by a stable hash of name. Nodes with different names use different
// mirrors. Call it before the first request.
func (c *Client) StartAt(name string) {
	first := int(stablehash.Sum("mirror", name) % uint64(len(c.mirrors)))
	c.mirrors = append(c.mirrors[first:len(c.mirrors):len(c.mirrors)], c.mirrors[:first]...)
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Object reads an object. If the bytes from a mirror do not match the hash, the client tries the next mirror.
func (c *Client) Object(ctx context.Context, hash string) ([]byte, error) {
	name, err := ObjectName(hash)
	if err != nil {
		return nil, fmt.Errorf("cannot read an object from a mirror: %w", err)
	}
	return c.read(ctx, name, func(b []byte) error {
		if content.HashOf(b) != hash {
			return errLying
		}
		return nil
	})
}

var errLying = errors.New("its bytes are not those that were published")

// Deltas reads the deltas of a line at positions from through to, several at a time.
func (c *Client) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	if from > to || to-from >= maxDeltas {
		return nil, fmt.Errorf("cannot read deltas %d to %d of %.80q from a mirror: give 1 to %d of them", from, to, line, maxDeltas)
	}
	names := make([]string, to-from+1)
	for i := range names {
		var err error
		if names[i], err = DeltaName(line, from+int64(i)); err != nil {
			return nil, fmt.Errorf("cannot read deltas from a mirror: %w", err)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	deltas := make([][]byte, len(names))
	next := make(chan int)
	var readers sync.WaitGroup
	for range min(parallelDeltas, len(names)) {
		readers.Go(func() {
			for i := range next {
				var err error
				if deltas[i], err = c.read(ctx, names[i], nil); err != nil {
					cancel(err) // Deltas returns the first error; cancel stops the other requests
				}
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	readers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return deltas, nil
}

// read requests name from one mirror after another until the result passes check.
func (c *Client) read(ctx context.Context, name string, check func([]byte) error) ([]byte, error) {
	var all []error
	for _, m := range c.mirrors {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.breaker.open() {
			all = append(all, fmt.Errorf("cannot read from %s: the mirror is skipped for a while after failures", m.shown))
			continue
		}
		b, err := c.readFrom(ctx, m, name, check)
		if err == nil {
			m.breaker.succeeded()
			return b, nil
		}
		if ctx.Err() == nil && !errors.Is(err, ErrAbsent) {
			m.breaker.failed()
		}
		all = append(all, err)
	}
	return nil, errors.Join(all...)
}

func (c *Client) readFrom(ctx context.Context, m *server, name string, check func([]byte) error) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	b, err := c.get(ctx, m.base+"/"+name)
	if err == nil && check != nil {
		err = check(b)
	}
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // its text would repeat the address
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no complete answer within %s", c.timeout)
		}
		return nil, fmt.Errorf("cannot read %s from mirror %s: %w", name, m.shown, err)
	}
	return b, nil
}

func (c *Client) get(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "pulley-agent")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return nil, ErrAbsent
	default:
		return nil, fmt.Errorf("it answers %s", resp.Status)
	}
	if resp.ContentLength > content.MaxStored {
		return nil, &bounded.TooLargeError{Limit: content.MaxStored}
	}
	return bounded.Read(resp.Body, content.MaxStored)
}

// parseBase parses the URL of a mirror and refuses an invalid one.
func parseBase(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", errors.New("it is not a URL")
	case u.Host == "" || u.Hostname() == "":
		return "", errors.New("it has no host\ngive a URL like https://pulley.example.com:8443")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return "", errors.New("a base URL has no ? and no #")
	case !mayTalk(u):
		return "", errors.New("plain http is for this machine only\ngive an https URL")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// mayTalk reports whether requests to u are allowed: https, or this machine.
func mayTalk(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())
}

func checkRedirect(to *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	case to.URL.Scheme != "https" && via[len(via)-1].URL.Scheme == "https":
		return errors.New("it redirects from https to plain " + to.URL.Scheme)
	case !mayTalk(to.URL):
		return errors.New("it redirects to plain " + to.URL.Scheme + " on another machine")
	}
	return nil
}

// shown returns a URL for errors, without a password.
func shown(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Sprintf("%.200q", s)
	}
	return u.Redacted()
}
