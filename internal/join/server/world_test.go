package server

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

var dev = model.Ref{Environment: "dev"}

// world is an etcd with authentication, a CA, and serves on real TLS.
type world struct {
	t    *testing.T
	etcd *etcdtest.Auth
	st   *etcd.DB
	ca   *pki.CA
}

// destroy destroys an environment.
func (w *world) destroy(ref model.Ref) {
	w.t.Helper()
	a, err := records.In(w.st).BeginApply(w.t.Context(), ref, "ann")
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = a.Destroy(w.t.Context(), true)
	if err := errors.Join(err, a.Close()); err != nil {
		w.t.Fatal(err)
	}
}

// serve is one server of joins behind a listener.
type serve struct {
	*Server
	url      string
	log      *observe.Log
	counters *prometheus.Registry
}

func newWorld(t *testing.T, roles ...environments.Role) *world {
	t.Helper()
	ca, err := pki.OpenCA(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	etcd := etcdtest.StartAuth(t, etcdtest.AuthOptions{Trusted: ca.Bundle()})
	w := &world{t, etcd, etcd.Admin(), ca}
	for _, name := range []string{"dev", "prod"} {
		if err := specs.In(w.st).PutSpec(t.Context(), &environments.Environment{Name: name, Roles: roles}, 0); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) serve(change func(*Config)) *serve {
	w.t.Helper()
	s := &serve{log: &observe.Log{}, counters: prometheus.NewRegistry()}
	c := Config{
		Now:  time.Now,
		Left: records.Left,
		DB:   w.etcd.Admin(), CA: w.ca, Log: s.log.Logger(), Metrics: s.counters,
		Endpoints: []string{w.etcd.Endpoint},
	}
	if change != nil {
		change(&c)
	}
	s.Server = New(c)
	certPEM, keyPEM, err := w.ca.IssueServer(nil, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		w.t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(w.ca.Bundle())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients},
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	w.t.Cleanup(func() { _ = server.Close() })
	s.url = "https://" + listener.Addr().String()
	return s
}

// machine is a machine without a name yet.
type machine struct {
	*join.Client
	key crypto.Signer
	is  join.Machine
}

func (w *world) machine(id string, servers ...*serve) machine {
	w.t.Helper()
	t, err := pki.Pinned(w.ca.Fingerprints())
	if err != nil {
		w.t.Fatal(err)
	}
	return machine{w.client(t, servers...), w.key(), join.Machine{ID: id, Hostname: id, Addresses: []string{"10.0.0.9"}}}
}

func (w *world) key() crypto.Signer {
	w.t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	return key
}

func (w *world) client(t *tls.Config, servers ...*serve) *join.Client {
	w.t.Helper()
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.url)
	}
	c, err := join.NewClient(urls, t, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (m machine) join(ctx context.Context, token, node string) (join.Answer, error) {
	return m.Join(ctx, m.key, join.Request{Token: token, Node: node, Machine: m.is})
}

// joined is a machine with its certificate.
func (w *world) joined(m machine, a join.Answer, servers ...*serve) machine {
	w.t.Helper()
	i, err := pki.NewIdentity(m.key, []byte(a.Certificate))
	if err != nil {
		w.t.Fatal(err)
	}
	t, err := i.TLS([]byte(a.CA))
	if err != nil {
		w.t.Fatal(err)
	}
	return machine{w.client(t, servers...), m.key, m.is}
}

func (w *world) token(t access.Token) string {
	w.t.Helper()
	if t.Environment == "" && t.Operator == "" {
		t.Environment = "dev"
	}
	if t.Created.IsZero() {
		t.Created = time.Now()
	}
	if t.Expires.IsZero() {
		t.Expires = t.Created.Add(time.Hour)
	}
	text, _, err := access.TokensIn(w.st).Create(w.t.Context(), t)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

// all returns all contents of etcd except the counters of refusals.
func (w *world) all() []string {
	w.t.Helper()
	return slices.DeleteFunc(w.etcd.Everything(), func(line string) bool { return strings.HasPrefix(line, "key /pulley/v1/refusals ") })
}

// count returns a counter's value for a label, "" for one without.
func (s *serve) count(t *testing.T, name, label string) int {
	t.Helper()
	families, err := s.counters.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == label {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}
