package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/pki"
)

func asUnreachable(err error, into **join.UnreachableError) bool { return errors.As(err, into) }

// raw posts a body unchanged.
func (w *world) raw(s *serve, path string, body []byte) *join.RefusedError {
	w.t.Helper()
	trust, err := pki.Pinned(w.ca.Fingerprints())
	if err != nil {
		w.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: pki.Named(trust, "127.0.0.1"), DisableKeepAlives: true}}
	resp, err := client.Post(s.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var refused join.RefusedError
	if err := json.Unmarshal(answer, &refused); err != nil || resp.StatusCode != http.StatusForbidden {
		w.t.Fatalf("it answers %s: %s", resp.Status, answer)
	}
	return &refused
}

// capture returns what a machine sends to a man in the middle whose certificate it trusts.
func (w *world) capture(m machine, token string) []byte {
	w.t.Helper()
	var taken []byte
	between := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		taken, _ = io.ReadAll(r.Body)
		rw.WriteHeader(http.StatusBadGateway)
	}))
	certPEM, keyPEM, err := w.ca.IssueServer(nil, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		w.t.Fatal(err)
	}
	between.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	between.StartTLS()
	defer between.Close()
	client := w.client(w.pinned(), &serve{url: between.URL})
	if _, err := (machine{client, m.key, m.is}).join(w.t.Context(), token, "controller1"); err == nil || len(taken) == 0 {
		w.t.Fatalf("nothing was captured: %v", err)
	}
	return taken
}

func (w *world) pinned() *tls.Config {
	w.t.Helper()
	trust, err := pki.Pinned(w.ca.Fingerprints())
	if err != nil {
		w.t.Fatal(err)
	}
	return trust
}

// A refused machine must get nothing, be reported, and leave nothing behind. Each request is refused for its reason,
// logged, and counted in metrics and in etcd. Etcd's keys, users and roles stay unchanged.
func TestRefusedJoinLeavesNothingBehind(t *testing.T) {
	w := newWorld(t, role("controller", 3), role("compute", 3))
	s := w.serve(nil)
	good := w.token(access.Token{Role: "controller"})
	short := w.token(access.Token{Role: "controller", Expires: time.Now().Add(-time.Second)})
	spent := w.token(access.Token{Role: "controller", Uses: 1})
	if _, err := w.machine("first", s).join(t.Context(), spent, "controller3"); err != nil {
		t.Fatal(err)
	}
	revoked := w.token(access.Token{Role: "controller"})
	if _, err := access.TokensIn(w.st).Revoke(t.Context(), revoked[4:12], access.Revoked{At: time.Now(), By: "ann"}); err != nil {
		t.Fatal(err)
	}
	exact := w.token(access.Token{Node: "controller2"})
	flip := func(token string) string {
		last := "0"
		if strings.HasSuffix(token, last) {
			last = "1"
		}
		return token[:len(token)-1] + last
	}
	m := machine{w.machine("", s).Client, w.key(), join.Machine{ID: "bad", Hostname: "bad"}}
	refused := func(r join.Request) func() error {
		return func() error {
			r.Machine = m.is
			_, err := m.Join(t.Context(), m.key, r)
			return err
		}
	}
	ofAnn := w.token(access.Token{Operator: "ann", As: access.RoleAdmin})
	replayed := w.capture(m, good)
	before := w.all()
	cases := map[string]struct {
		do   func() error
		want join.Reason
	}{
		"expired":           {refused(join.Request{Token: short, Node: "controller1"}), join.ExpiredToken},
		"used up":           {refused(join.Request{Token: spent, Node: "controller1"}), join.UsedUpToken},
		"used up, claiming": {refused(join.Request{Token: spent}), join.UsedUpToken},
		"revoked":           {refused(join.Request{Token: revoked, Node: "controller1"}), join.RevokedToken},
		"forged":            {refused(join.Request{Token: flip(good), Node: "controller1"}), join.ForgedToken},
		"unknown":           {refused(join.Request{Token: "plt_00000000_" + good[13:], Node: "controller1"}), join.UnknownToken},
		"no token":          {refused(join.Request{Token: "plt_x", Node: "controller1"}), join.MalformedToken},
		"wrong role":        {refused(join.Request{Token: good, Node: "compute1"}), join.WrongRole},
		"wrong role, given": {refused(join.Request{Token: good, Role: "compute"}), join.WrongRole},
		"wrong environment": {refused(join.Request{Token: good, Environment: "prod", Node: "controller1"}), join.WrongEnvironment},
		"an operator's":     {refused(join.Request{Token: ofAnn, Node: "controller1"}), join.OperatorToken},
		"wrong node":        {refused(join.Request{Token: exact, Node: "controller1"}), join.WrongNode},
		"not called for":    {refused(join.Request{Token: good, Node: "controller4"}), join.NotCalledFor},
		"name of another": {func() error {
			return w.raw(s, join.PathJoin, w.asking(m, good, "CN=pulley/node/dev/controller3/0123456789abcdef"))
		}, join.CSRHasName},
		"weak key":                          {func() error { return w.raw(s, join.PathJoin, w.weak(m, good)) }, join.BadCSR},
		"replayed":                          {func() error { return w.raw(s, join.PathJoin, replayed) }, join.NotThisTransport},
		"no JSON":                           {func() error { return w.raw(s, join.PathJoin, []byte("{")) }, join.BadRequest},
		"too long":                          {func() error { return w.raw(s, join.PathJoin, bytes.Repeat([]byte(" "), join.MaxBody+1)) }, join.BadRequest},
		"renewing without a certificate":    {func() error { _, err := m.Renew(t.Context(), m.key, m.is); return err }, join.NoCertificate},
		"leaving without a certificate":     {func() error { return m.Leave(t.Context()) }, join.NoCertificate},
		"registering without a certificate": {func() error { return m.Register(t.Context(), m.is) }, join.NoCertificate},
		"progress, forged": {func() error {
			return m.Progress(t.Context(), flip(good), join.Progress{Machine: "bad", Step: "lock", State: "started"})
		}, join.ForgedToken},
		"progress of a role": {func() error {
			return m.Progress(t.Context(), good, join.Progress{Machine: "bad", Node: "compute1", Step: "lock", State: "started"})
		}, join.WrongRole},
		"progress, no state": {func() error {
			return m.Progress(t.Context(), good, join.Progress{Machine: "bad", Step: "lock", State: "odd"})
		}, join.BadRequest},
		"progress of nothing": {func() error { return m.Progress(t.Context(), good, join.Progress{State: "done"}) }, join.BadRequest},
	}
	wanted := map[string]int{}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := c.do()
			want(t, err, c.want)
			named := []join.Reason{join.ExpiredToken, join.RevokedToken, join.UsedUpToken, join.WrongRole, join.WrongNode, join.NotCalledFor}
			var refused *join.RefusedError
			if errors.As(err, &refused) && slices.Contains(named, c.want) && !strings.HasPrefix(name, "progress") && !strings.Contains(refused.Hint(), " -e dev") {
				t.Errorf("the remedy names no environment: %s", refused.Hint())
			}
		})
		wanted[string(c.want)]++
	}
	// The client sends nothing to a server of another CA.
	other, err := pki.OpenCA(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	trust, err := pki.Pinned(other.Fingerprints())
	if err != nil {
		t.Fatal(err)
	}
	foreign := machine{w.client(trust, s), m.key, m.is}
	if _, err := foreign.join(t.Context(), good, "controller1"); !errors.Is(err, pki.ErrPin) {
		t.Errorf("a server that is not the pinned one: %v", err)
	}

	same(t, before, w.all())
	for reason, n := range wanted {
		if got := s.count(t, "pulley_join_refusals_total", reason); got != n {
			t.Errorf("%q was counted %d times, want %d", reason, got, n)
		}
		if got := strings.Count(strings.ReplaceAll(s.log.String(), "\n", " "), "reason="+reason+" "); got != n {
			t.Errorf("%q was logged %d times, want %d:\n%s", reason, got, n, s.log)
		}
	}
	if strings.Contains(s.log.String(), good[13:]) {
		t.Error("a secret is in the log")
	}
	if _, err := m.join(t.Context(), good, "controller1"); err != nil {
		t.Errorf("who may join does not get in any more: %v", err)
	}
}

// asking returns a valid request except for the subject in its CSR. It is not bound to a connection.
func (w *world) asking(m machine, token, subject string) []byte {
	w.t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: strings.TrimPrefix(subject, "CN=")}}, m.key)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.envelope(m, token, der)
}

func (w *world) weak(m machine, token string) []byte {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.envelope(m, token, der)
}

func (w *world) envelope(m machine, token string, der []byte) []byte {
	w.t.Helper()
	request, err := json.Marshal(join.Request{Token: token, Node: "controller1", Machine: m.is, CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))})
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := json.Marshal(join.Envelope{Request: request, Proof: []byte("none")})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}
