package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/testbed/etcdtest"
)

// A running server must use a renewed certificate without a restart. A partial renewal must not stop it.
func TestCertificateIsReadAgainWhenItChanges(t *testing.T) {
	first, second := etcdtest.NewPKI(t), etcdtest.NewPKI(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	age := time.Now().Add(-time.Hour)
	put := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if age = age.Add(time.Second); err == nil {
			err = os.Chtimes(to, age, age) // as if time passed between renewals
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put(first.ServerCert, cert)
	put(first.ServerKey, key)
	var complaints []error
	c, err := LoadCertificate(cert, key, func(err error) { complaints = append(complaints, err) })
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(http.NotFoundHandler(), c, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeTLS(l, "", "") }()
	works := func(p etcdtest.PKI) bool {
		t.Helper()
		pem, err := os.ReadFile(p.CA)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
		resp, err := client.Get("https://" + l.Addr().String()) //nolint:noctx // of this process
		if err != nil {
			return false
		}
		resp.Body.Close()
		return true
	}
	if !works(first) || works(second) {
		t.Error("it does not serve with the first certificate")
	}
	put(second.ServerCert, cert)
	for range 2 { // it complains only once
		if !works(first) {
			t.Error("half of a renewal ended it")
		}
	}
	if len(complaints) != 1 {
		t.Errorf("complaints: %v", complaints)
	}
	put(second.ServerKey, key)
	if works(first) || !works(second) {
		t.Error("the renewed certificate is not served")
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if !works(second) || len(complaints) != 2 {
		t.Errorf("without its file: %v", complaints)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != http.ErrServerClosed { //nolint:errorlint // as net/http returns it
		t.Error(err)
	}
	if _, err := LoadCertificate(cert, key, nil); err == nil {
		t.Error("a missing file is not reported at the start")
	}
}

// Every listener on a network must refuse old TLS and clients that never finish their headers.
func TestServerHasLimits(t *testing.T) {
	s := NewServer(http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
	if s.TLSConfig.MinVersion < tls.VersionTLS12 || s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.WriteTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 {
		t.Errorf("%+v", s)
	}
}

// A panic of a handler is a bug and must be logged, with its stack at debug level only. A port scan must not be logged.
func TestPanicsAreLoggedAndPortScansAreNot(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		var b bytes.Buffer
		log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level}))
		s := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("out of luck") }), nil, log)
		s.ErrorLog.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
		if b.Len() > 0 {
			t.Errorf("the log has %q", b.String())
		}
		server := httptest.NewUnstartedServer(s.Handler)
		server.Config.ErrorLog = s.ErrorLog
		server.Start()
		if resp, err := http.Get(server.URL); err == nil { //nolint:noctx // of this process
			resp.Body.Close()
			t.Error("it answered")
		}
		server.Close()
		if !strings.Contains(b.String(), "out of luck") || strings.Contains(b.String(), "listener_test.go") != (level == slog.LevelDebug) {
			t.Errorf("at level %s, the log has %q", level, b.String())
		}
	}
}
