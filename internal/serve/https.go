package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"pulley/internal/join"
	"pulley/internal/pki/connect"
	"pulley/internal/serve/limits"
)

// httpsGrace is the time for open requests when serve stops.
const httpsGrace = 10 * time.Second

// httpsServer is the web listener for nodes. The methods of a nil one do nothing.
type httpsServer struct {
	log         *slog.Logger
	warn        func(error)
	listener    net.Listener
	certificate *Certificate // nil until the CA has issued one
	server      *http.Server // nil until it serves
	connections *limits.Connections
	failed      chan error
}

// openHTTPS opens the listener and reads the certificate, before etcd starts. Without files the certificate is of
// serve's CA and comes later. It returns nil if no address is configured.
func openHTTPS(c Config, o *overloads, cert, key string) (*httpsServer, error) {
	if c.ListenHTTPS == "" {
		return nil, nil
	}
	h := &httpsServer{log: c.Log, warn: c.Warn, connections: o.https, failed: make(chan error, 1)}
	var err error
	if cert != "" {
		if h.certificate, err = LoadCertificate(cert, key, h.warn); err != nil {
			return nil, err
		}
	}
	if h.listener, err = net.Listen("tcp", c.ListenHTTPS); err != nil {
		return nil, fmt.Errorf("cannot listen on %s for HTTPS: %w\ngive --listen-https HOST:PORT, as in 0.0.0.0:8443; port 0 picks a free one", c.ListenHTTPS, err)
	}
	return h, nil
}

// serve answers with a handler, and completes ready. If machines join here, it requests client certificates of the CA.
func (h *httpsServer) serve(handler http.Handler, ready *Ready) error {
	if h == nil {
		return nil
	}
	certs := ready.Certificates
	if h.certificate == nil {
		var err error
		if h.certificate, err = LoadCertificate(certs.Server(), certs.Server(), h.warn); err != nil {
			return err
		}
	}
	h.server = NewServer(handler, h.certificate, h.log)
	h.server.ConnState = established
	if certs != nil {
		certs.AskForCertificates(h.server.TLSConfig)
	}
	go func() {
		if err := h.server.ServeTLS(h.connections.Listen(h.listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
			h.failed <- fmt.Errorf("the HTTPS listener stopped: %w", err)
		}
	}()
	ready.HTTPS = h.listener.Addr().String()
	if pair, err := h.certificate.Current(); err == nil && pair.Leaf != nil {
		ready.Certificate, ready.Until = certificateName(pair.Leaf), pair.Leaf.NotAfter
	}
	return nil
}

// established notes that a connection sent a request, after its handshake.
func established(c net.Conn, state http.ConnState) {
	if state != http.StateActive {
		return
	}
	if secure, ok := c.(*tls.Conn); ok {
		if counted, ok := secure.NetConn().(*limits.Conn); ok {
			counted.Established("")
		}
	}
}

// certificateName returns the name by which others reach the server: every certificate of Pulley's is also for localhost.
func certificateName(c *x509.Certificate) string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range names {
		if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return name
		}
	}
	if len(names) > 0 {
		return names[0]
	}
	return c.Subject.CommonName
}

// ended delivers the error that stopped the listener.
func (h *httpsServer) ended() <-chan error {
	if h == nil {
		return nil
	}
	return h.failed
}

// close waits for open requests, for a limited time.
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
	_ = h.listener.Close() // of a server that never served
}

// Web holds the handlers of serve's HTTPS listener. Each may be nil.
type Web struct {
	Join        http.Handler // all paths of package join
	Agents      http.Handler // /agent/
	Metrics     http.Handler // /metrics
	EtcdMetrics http.Handler // /metrics/etcd: those that etcd keeps in this process, by its own names
	Mirror      http.Handler // everything else
}

// ServeHTTP uses the path as it was sent. http.ServeMux would clean the path, and an invalid path could become a valid
// one.
func (w Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Server", connect.ServerName)
	asked := r.URL.EscapedPath()
	part := w.Mirror
	switch {
	case strings.HasPrefix(asked, path.Dir(join.PathJoin)+"/"):
		part = w.Join
	case strings.HasPrefix(asked, agentPath):
		part = w.Agents
	case asked == "/metrics":
		part = w.Metrics
	case asked == "/metrics/etcd":
		part = w.EtcdMetrics
	}
	if part == nil {
		http.NotFound(rw, r)
		return
	}
	part.ServeHTTP(rw, r)
}
