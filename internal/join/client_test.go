package join

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pulley/internal/pki"
)

// answering answers each request with do, at an address with a certificate of the given CA.
func answering(t *testing.T, ca *pki.CA, do http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(do)
	certPEM, keyPEM, err := ca.IssueServer(nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func says(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func newCA(t *testing.T) *pki.CA {
	t.Helper()
	ca, err := pki.OpenCA(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func client(t *testing.T, ca *pki.CA, servers ...string) *Client {
	t.Helper()
	trust, err := pki.Pinned(ca.Fingerprints())
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClient(servers, trust, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A machine must be able to join while any server is up. It must stop at the first refusal: further attempts would
// look like an attack, and never end.
func TestClientTriesServersInTurn(t *testing.T) {
	ca := newCA(t)
	good := answering(t, ca, says(200, `{"node":"controller1"}`))
	refuses := answering(t, ca, says(403, `{"reason":"token_expired","params":{"at":"2026-11-22T12:00:00Z"}}`))
	busy := answering(t, ca, says(503, `{"reason":"too many join at this moment"}`, "Retry-After", "7"))
	dead := "https://127.0.0.1:1"
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, servers := range map[string][]string{
		"the first is dead":         {dead, good},
		"the first is busy":         {busy, good},
		"the first is no serve":     {answering(t, ca, says(404, "not found")), good},
		"the first answers badly":   {answering(t, ca, says(200, "<html>")), good},
		"the first talks too much":  {answering(t, ca, says(200, `{"node":"`+strings.Repeat("x", MaxBody)+`"}`)), good},
		"the first sends elsewhere": {answering(t, ca, says(307, "", "Location", good)), good},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := client(t, ca, servers...).Join(t.Context(), key, Request{Token: "t"})
			if err != nil || a.Node != "controller1" {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	var refused *RefusedError
	if _, err := client(t, ca, refuses, good).Join(t.Context(), key, Request{}); !errors.As(err, &refused) || refused.Reason != ExpiredToken || !strings.Contains(refused.Hint(), "pulley token create") {
		t.Errorf("a refusal is %v", err)
	}
	var unreachable *UnreachableError
	if err := client(t, ca, dead, busy).Register(t.Context(), Machine{}); !errors.As(err, &unreachable) || unreachable.After != 7*time.Second || strings.Count(err.Error(), "https://") != 2 {
		t.Errorf("without a server that answers: %v", err)
	}
	if err := client(t, ca, busy).Register(t.Context(), Machine{}); !errors.As(err, &unreachable) || !strings.HasPrefix(err.Error(), "pulley serve answers: too many join") {
		t.Errorf("a server that answered: %v", err)
	}
}

// A token must not be sent to an unverified server at the address.
func TestClientSendsNothingToUnpinnedServer(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	heard := false
	foreign := answering(t, other, func(http.ResponseWriter, *http.Request) { heard = true })
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	_, err = client(t, ca, foreign).Join(t.Context(), key, Request{Token: "secret"})
	var unreachable *UnreachableError
	if !errors.As(err, &unreachable) || !errors.Is(err, pki.ErrPin) || heard {
		t.Errorf("it was heard: %t; %v", heard, err)
	}
	for _, url := range []string{"http://127.0.0.1:1", "127.0.0.1:1", "https://", "https://u:p@h", "https://h/path", "https://h?x=1"} {
		if _, err := NewClient([]string{url}, nil, 0); err == nil {
			t.Errorf("%s is taken for a server", url)
		}
	}
	if _, err := NewClient(nil, nil, 0); err == nil {
		t.Error("no server at all is enough")
	}
}
