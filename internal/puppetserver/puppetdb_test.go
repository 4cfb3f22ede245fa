package puppetserver

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pulley/internal/pki"
)

// A node that is gone must not stay in PuppetDB's queries. Debian has no PuppetDB: this server accepts exactly the documented command
// (https://www.puppet.com/docs/puppetdb/8/commands.html, "deactivate node", version 3), over TLS with a client certificate.
func TestDeactivateSendsTheDocumentedCommand(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 26, 12, 0, 0, 123e6, time.UTC)
	answer := func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"uuid":"9c7b2f3e-2f6f-4f0a-9a51-0d2f4b7f8a11"}`)
	}
	var got map[string]any
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.String() != "/pdb/cmd/v1" || r.Header.Get("Content-Type") != "application/json" ||
			len(r.TLS.PeerCertificates) == 0 || json.Unmarshal(b, &got) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer(w)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	own := ownCredentials(t)
	server.TLS.Certificates = []tls.Certificate{own.Identity.Certificate()}
	server.StartTLS()
	defer server.Close()
	c, err := NewNamed(server.URL, "puppetdb.example", own, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Deactivate(t.Context(), "web1.example.com", at); err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(got)
	if want := `{"command":"deactivate node","payload":{"certname":"web1.example.com","producer_timestamp":"2026-11-26T12:00:00.123Z"},"version":3}`; string(text) != want {
		t.Errorf("the command is %s", text)
	}
	for _, bad := range []struct {
		answer func(http.ResponseWriter)
		want   Code
	}{
		{func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") }, Unreadable},
		{func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) }, NoRight},
		{func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }, ServerFailed},
	} {
		answer = bad.answer
		err := c.Deactivate(t.Context(), "web1", at)
		if e, ok := err.(*Error); !ok || e.Code != bad.want || !strings.Contains(err.Error(), "deactivate web1 in PuppetDB") { //nolint:errorlint // it is returned bare
			t.Errorf("%v, want %s", err, bad.want)
		}
	}
	if c, err := NewPuppetDB("https://puppetdb.example", own, time.Now); err != nil || c.URL != "https://puppetdb.example:8081" {
		t.Errorf("%+v, %v", c, err)
	}
}

// ownCredentials are a certificate that is its own CA, for both sides.
func ownCredentials(t *testing.T) Credentials {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "puppetdb.example"}, DNSNames: []string{"puppetdb.example"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	identity, err := pki.NewIdentity(key, text)
	if err != nil {
		t.Fatal(err)
	}
	return Credentials{Identity: identity, CA: text}
}
