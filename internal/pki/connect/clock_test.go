package connect_test

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pulley/internal/pki"
	"pulley/internal/pki/connect"
)

// An operator who reads "expired certificate" about a certificate that is valid renews it again and again; the clock
// of the other machine is wrong.
func TestExplainNamesTheClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		name           string
		server, client time.Duration // how far the clock of the CA that issued the certificate was ahead
		now            time.Duration // how far this machine's clock is ahead, for its own certificate
		want           string        // "" is no error about a clock
	}{
		{name: "right", want: ""},
		{name: "server's ended", server: -48 * time.Hour, want: "and the server's certificate ended at "},
		{name: "server's begins later", server: 48 * time.Hour, want: "and the server's certificate begins at "},
		{name: "own ended", client: -48 * time.Hour, want: "and this machine's certificate ended at "},
		{name: "server's clock", client: -48 * time.Hour, now: -48 * time.Hour, want: "one of the two clocks is wrong"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := func(ahead time.Duration) *pki.CA {
				t.Helper()
				ca, err := pki.OpenCA(dir, pki.Options{Now: func() time.Time { return now.Add(ahead) }})
				if err != nil {
					t.Fatal(err)
				}
				return ca
			}
			ca := at(-72 * time.Hour) // the CA is valid at all of these times
			chain, key, err := at(c.server).IssueServer(nil, 24*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			pair, err := tls.X509KeyPair(chain, key)
			if err != nil {
				t.Fatal(err)
			}
			own, err := pki.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			cert, err := at(c.client).IssueClient(own.Public(), pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: "ann", Incarnation: pki.NewIncarnation()}, 24*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			identity, err := pki.NewIdentity(own, cert)
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			clients := x509.NewCertPool()
			clients.AppendCertsFromPEM(ca.Bundle())
			server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
			server.StartTLS()
			defer server.Close()
			config, err := identity.TLS(ca.Bundle())
			if err != nil {
				t.Fatal(err)
			}
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 20 * time.Second}
			resp, err := client.Get(server.URL)
			if err == nil {
				_ = resp.Body.Close()
			}
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			target := connect.Target{Server: connect.Serve, URL: server.URL, Own: identity.Leaf()}
			if f := target.Explain(err, now.Add(c.now)); !f.Clock() || !strings.Contains(f.Cause(), c.want) {
				t.Errorf("%v is explained as %s: %v, want %q", err, f.Code, f, c.want)
			}
		})
	}
}
