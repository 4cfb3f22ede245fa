package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"pulley/internal/cli"
	"pulley/internal/mirror"
	"pulley/internal/store"
)

// httpsGrace is how long requests that are under way may take when serve ends.
const httpsGrace = 10 * time.Second

// httpsServer is the listener towards nodes: the mirror of what is published.
type httpsServer struct {
	env         cli.Env
	listener    net.Listener
	certificate *mirror.Certificate
	server      *http.Server
	failed      chan error
}

// openHTTPS takes the address and reads the certificate, so that a mistake in either is told before etcd starts. It is
// nil, whose methods do nothing, when no address is given.
func (s serveOptions) openHTTPS(certDefault, keyDefault string) (*httpsServer, error) {
	cert, key := s.httpsCert, s.httpsKey
	if cert == "" && key == "" {
		cert, key = certDefault, keyDefault
	}
	switch {
	case s.listenHTTPS == "" && (s.httpsCert != "" || s.httpsKey != ""):
		return nil, cli.Usagef("--https-cert and --https-key are for --listen-https, which is missing")
	case s.listenHTTPS == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, cli.Usagef("cannot serve HTTPS without a certificate and its key: a mirror is never served in plain text\ngive --https-cert and --https-key")
	}
	certificate, err := mirror.LoadCertificate(cert, key, func(err error) { cli.Complain(s.env, program, err) })
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", s.listenHTTPS)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s for HTTPS: %w\ngive host:port, as in 0.0.0.0:8443; port 0 picks a free one", s.listenHTTPS, err)
	}
	return &httpsServer{s.env, listener, certificate, mirror.NewServer(nil, certificate), make(chan error, 1)}, nil
}

func certificateName(c *x509.Certificate) string {
	switch {
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.IPAddresses) > 0:
		return c.IPAddresses[0].String()
	}
	return c.Subject.CommonName
}

// serve answers from st, and says where.
func (h *httpsServer) serve(st *store.Store) {
	if h == nil {
		return
	}
	h.server.Handler = mirror.Handler(st, store.ErrNotFound)
	go func() {
		if err := h.server.ServeTLS(h.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			h.failed <- fmt.Errorf("HTTPS ended by itself: %w", err)
		}
	}()
	until := ""
	if pair, err := h.certificate.Current(); err == nil && pair.Leaf != nil {
		until = fmt.Sprintf(" with the certificate of %s, valid until %s", quoted(certificateName(pair.Leaf)), pair.Leaf.NotAfter.UTC().Format(time.DateOnly))
	}
	fmt.Fprintf(h.env.Stdout, "mirror of published content serves at https://%s%s\n", h.listener.Addr(), until)
}

// ended is when serving has ended by itself; never for nil.
func (h *httpsServer) ended() <-chan error {
	if h == nil {
		return nil
	}
	return h.failed
}

// close lets what is under way finish, for a while.
func (h *httpsServer) close() {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpsGrace)
	defer cancel()
	if err := h.server.Shutdown(ctx); err != nil {
		_ = h.server.Close()
	}
	_ = h.listener.Close() // for one that never served
}
