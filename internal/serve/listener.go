package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// NewServer returns a server for h with all limits for a listener on a network. The minimum version is TLS 1.2. Call
// ServeTLS without file names, because certificate provides them.
func NewServer(h http.Handler, certificate *Certificate, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h,
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate.Current() },
		},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       20 * time.Second,
		WriteTimeout:      2 * time.Minute, // 512 KiB at 35 kbit/s
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 64},
		ErrorLog:          slog.NewLogLogger(onlyPanics{log.Handler()}, slog.LevelError),
	}
}

// onlyPanics logs panics of handlers, with the stack at debug level only. It drops all other messages: a port scan would fill the log.
type onlyPanics struct{ slog.Handler }

func (o onlyPanics) Handle(ctx context.Context, r slog.Record) error {
	if !strings.Contains(r.Message[:min(len(r.Message), 200)], "panic serving") {
		return nil
	}
	text, stack, _ := strings.Cut(r.Message[:min(len(r.Message), 8<<10)], "\n")
	r.Message = "a request ended in a panic"
	r.AddAttrs(slog.String("panic", text))
	if o.Enabled(ctx, slog.LevelDebug) {
		r.AddAttrs(slog.String("stack", stack))
	}
	return o.Handler.Handle(ctx, r)
}

// Certificate is a certificate and its key, in two files. It reads the files again when they change, so a renewal needs
// no restart. While the files are unusable (for example, only one is replaced yet), the last valid pair is used.
type Certificate struct {
	certFile, keyFile string
	complain          func(error)

	mu      sync.Mutex
	pair    *tls.Certificate
	stamp   fileStamp // of the files of pair
	trouble string    // the last reported error
}

// fileStamp identifies one state of the two files.
type fileStamp struct {
	certTime, keyTime time.Time
	certSize, keySize int64
}

// LoadCertificate reads the two files and returns an error if they are unusable. It reports a later error once, through
// complain.
func LoadCertificate(certFile, keyFile string, complain func(error)) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, complain: complain}
	return c, c.load()
}

// Current returns the pair to use now.
func (c *Certificate) Current() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.load()
	switch {
	case err == nil:
		c.trouble = ""
	case c.trouble != err.Error():
		c.trouble = err.Error()
		c.complain(fmt.Errorf("%w\nthe last valid certificate stays in use", err))
	}
	return c.pair, nil
}

// load does nothing while the files are unchanged: it runs for each handshake.
func (c *Certificate) load() error {
	cert, certErr := os.Stat(c.certFile)
	key, keyErr := os.Stat(c.keyFile)
	if err := errors.Join(certErr, keyErr); err != nil {
		return fmt.Errorf("cannot read the HTTPS certificate: %w", err)
	}
	now := fileStamp{cert.ModTime(), key.ModTime(), cert.Size(), key.Size()}
	if c.pair != nil && now == c.stamp {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("cannot use the HTTPS certificate %s with the key %s: %w", c.certFile, c.keyFile, err)
	}
	c.pair, c.stamp = &pair, now
	return nil
}
