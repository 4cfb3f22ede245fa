package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"pulley/internal/fleetca"
	"time"

	"pulley/internal/cli"
	"pulley/internal/mirror"
)

// httpsGrace is how long requests that are under way may take when serve ends.
const httpsGrace = 10 * time.Second

// httpsServer is the listener towards nodes: the mirror of what is published, and with a CA also joining.
type httpsServer struct {
	env         cli.Env
	listener    net.Listener
	certificate *mirror.Certificate // nil until the CA has made one
	server      *http.Server        // nil until it serves
	failed      chan error
}

// openHTTPS takes the address and reads the certificate, so that a mistake in either is told before etcd starts. It is
// nil, whose methods do nothing, when no address is given. With a CA the certificate is of it, and may come later.
func (s serveOptions) openHTTPS(certDefault, keyDefault string, ca bool) (*httpsServer, error) {
	cert, key := s.httpsCert, s.httpsKey
	own := cert != "" || key != ""
	if !own {
		cert, key = certDefault, keyDefault
	}
	later := !own && ca && certDefault == ""
	switch {
	case own && ca:
		return nil, cli.Usagef("machines that join know serve by the fingerprint of its CA: leave out --https-cert and --https-key")
	case s.listenHTTPS == "" && own:
		return nil, cli.Usagef("--https-cert and --https-key are for --listen-https, which is missing")
	case s.listenHTTPS == "":
		return nil, nil
	case !later && (cert == "" || key == ""):
		return nil, cli.Usagef("cannot serve HTTPS without a certificate and its key: a mirror is never served in plain text\ngive --https-cert and --https-key")
	}
	h := &httpsServer{env: s.env, failed: make(chan error, 1)}
	var err error
	if !later {
		if h.certificate, err = h.load(cert, key); err != nil {
			return nil, err
		}
	}
	if h.listener, err = net.Listen("tcp", s.listenHTTPS); err != nil {
		return nil, fmt.Errorf("cannot listen on %s for HTTPS: %w\ngive host:port, as in 0.0.0.0:8443; port 0 picks a free one", s.listenHTTPS, err)
	}
	return h, nil
}

func (h *httpsServer) load(cert, key string) (*mirror.Certificate, error) {
	return mirror.LoadCertificate(cert, key, func(err error) { cli.Complain(h.env, program, err) })
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

// serve answers with handler, and says where and what. With certs, clients are asked for certificates of that CA.
func (h *httpsServer) serve(handler http.Handler, certs *fleetca.Certificates, what string) error {
	if h == nil {
		return nil
	}
	if h.certificate == nil {
		var err error
		if h.certificate, err = h.load(certs.Server(), certs.Server()); err != nil {
			return err
		}
	}
	h.server = mirror.NewServer(handler, h.certificate)
	if certs != nil {
		certs.AskForCertificates(h.server.TLSConfig)
	}
	go func() {
		if err := h.server.ServeTLS(h.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			h.failed <- fmt.Errorf("HTTPS ended by itself: %w", err)
		}
	}()
	until := ""
	if pair, err := h.certificate.Current(); err == nil && pair.Leaf != nil {
		until = fmt.Sprintf(" with the certificate of %s, valid until %s", quoted(certificateName(pair.Leaf)), pair.Leaf.NotAfter.UTC().Format(time.DateOnly))
	}
	fmt.Fprintf(h.env.Stdout, "%s at https://%s%s\n", what, h.listener.Addr(), until)
	return nil
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
	if h.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), httpsGrace)
		defer cancel()
		if err := h.server.Shutdown(ctx); err != nil {
			_ = h.server.Close()
		}
	}
	_ = h.listener.Close() // for one that never served
}
