package node

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent/nodeconfig"
	"pulley/internal/desired/control"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// renewing is a node with a certificate of 90 days, and a server with configurable answers.
type renewing struct {
	t      *testing.T
	ca     *pki.CA
	now    time.Time
	name   pki.Name
	issues pki.Name // name in the certificates that the server issues
	node   *Node
	said   bytes.Buffer
	asked  int
	answer func(join.Answer) join.Answer
	server *httptest.Server
}

const renewingLife = 90 * 24 * time.Hour

func newRenewing(t *testing.T) *renewing {
	t.Helper()
	w := &renewing{t: t, now: time.Now(), name: pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: "compute1", Incarnation: pki.NewIncarnation()}}
	w.issues = w.name
	w.answer = func(a join.Answer) join.Answer { return a }
	var err error
	if w.ca, err = pki.OpenCA(filepath.Join(t.TempDir(), "pki"), pki.Options{}); err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	w.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	certs, key, err := w.ca.IssueServer(nil, renewingLife)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(w.ca.Bundle())
	w.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted}
	w.server.StartTLS()
	t.Cleanup(w.server.Close)

	c := nodeconfig.Under(t.TempDir())
	c.Identity = model.Identity{Node: "compute1", Environment: "dev"}
	c.Servers = []string{w.server.URL}
	c.Store.Cert = c.IdentityFile()
	w.node = &Node{Setup: Setup{Config: c}, store: &control.Client{}}
	if err := os.MkdirAll(filepath.Dir(c.IdentityFile()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.Root, "etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.Root, "etc/machine-id"), []byte("machine-of-compute1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := w.ca.IssueClient(own.Public(), w.name, renewingLife)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.NewIdentity(own, cert)
	if err == nil {
		err = id.Save(c.IdentityFile())
	}
	if err == nil {
		err = os.WriteFile(c.BundleFile(), w.ca.Bundle(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// serve renews any certificate of the CA.
func (w *renewing) serve(rw http.ResponseWriter, r *http.Request) {
	w.asked++
	var asked join.Renewal
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if err != nil || r.URL.Path != join.PathRenew || r.TLS.PeerCertificates[0].Subject.CommonName != w.name.String() {
		w.t.Errorf("asked for %s by %s: %v", r.URL.Path, r.TLS.PeerCertificates[0].Subject, err)
	}
	if asked.Machine.ID != "machine-of-compute1" || asked.Machine.Boot == "" { // a copy must not be renewed
		w.t.Errorf("it says that it is %+v", asked.Machine)
	}
	csr, err := pki.ParseCSR([]byte(asked.CSR))
	if err != nil {
		w.t.Error(err)
		return
	}
	cert, err := w.ca.IssueClient(csr.PublicKey, w.issues, 2*renewingLife)
	if err != nil {
		w.t.Error(err)
	}
	_ = json.NewEncoder(rw).Encode(w.answer(join.Answer{Node: "compute1", Certificate: string(cert), CA: string(w.ca.Bundle())}))
}

// tick runs the end of a tick at this time after the certificate's creation, and returns the log.
func (w *renewing) tick(after time.Duration) string {
	w.t.Helper()
	w.said.Reset()
	w.node.Now = func() time.Time { return w.now.Add(after) }
	w.node.Log = slog.New(slog.NewTextHandler(&w.said, nil))
	w.node.Warn = func(err error) { fmt.Fprintln(&w.said, err) }
	w.node.renew(w.t.Context())
	return w.said.String()
}

func (w *renewing) leaf() *x509.Certificate {
	w.t.Helper()
	id, err := pki.LoadIdentity(w.node.IdentityFile())
	if err != nil {
		w.t.Fatal(err)
	}
	return id.Leaf()
}

// A node whose certificate expires is lost. Unnecessary renewals overload serve.
func TestNodeRenewsWhenItIsDue(t *testing.T) {
	w := newRenewing(t)
	was := w.leaf()
	if said := w.tick(renewingLife / 2); said != "" || w.asked != 0 {
		t.Fatalf("with nothing due it asked %d times and said %q", w.asked, said)
	}
	if err := os.WriteFile(w.node.BundleFile(), append(w.ca.Bundle(), '\n'), 0o644); err != nil { // an old list
		t.Fatal(err)
	}
	if said := w.tick(renewingLife * 3 / 4); w.asked != 1 || !strings.Contains(said, "certificate was renewed") {
		t.Fatalf("it asked %d times and said %q", w.asked, said)
	}
	is := w.leaf()
	if is.Subject.CommonName != was.Subject.CommonName || bytes.Equal(is.RawSubjectPublicKeyInfo, was.RawSubjectPublicKeyInfo) || !is.NotAfter.After(was.NotAfter) {
		t.Errorf("the new certificate: %s, until %s", is.Subject, is.NotAfter)
	}
	if bundle, err := os.ReadFile(w.node.BundleFile()); err != nil || !bytes.Equal(bundle, w.ca.Bundle()) {
		t.Errorf("the list of CAs is the old one: %v", err)
	}
	if w.tick(renewingLife * 3 / 4); w.asked != 1 {
		t.Error("it renews what it has just renewed")
	}
}

// After an outage of serve, not every tick of every node may retry, and operators must learn of the failure in time.
func TestFailedRenewalIsReportedAndRetried(t *testing.T) {
	w := newRenewing(t)
	w.server.Close()
	due := renewingLife * 3 / 4
	said := w.tick(due)
	if !strings.HasPrefix(said, "cannot renew this node's certificate, which ends in 22d (") || !strings.Contains(said, "cannot connect to pulley serve at "+w.server.URL+": the port is closed (connection refused)") {
		t.Errorf("it says %q", said)
	}
	for after, again := range map[time.Duration]bool{5 * time.Minute: false, 59 * time.Minute: false, time.Hour: true, -time.Hour: true} {
		if err := os.WriteFile(filepath.Join(w.node.StateDir(), triedFile), []byte(w.now.Add(due).Format(time.RFC3339Nano)), 0o600); err != nil {
			t.Fatal(err)
		}
		if said := w.tick(due + after); (said != "") != again {
			t.Errorf("%s after a failure it says %q", after, said)
		}
	}
	if said := w.tick(renewingLife + 2*time.Hour); !strings.Contains(said, "it ended at") || !strings.Contains(said, "`pulley token create -e dev --node compute1`") {
		t.Errorf("of a certificate that ended it says %q", said)
	}
}

// A new certificate that would lock the node out must not replace a working one.
func TestRenewalRefusesForeignCertificates(t *testing.T) {
	other, err := pki.OpenCA(filepath.Join(t.TempDir(), "other"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		answer func(w *renewing, a join.Answer) join.Answer
		says   string
	}{
		"another key": {func(w *renewing, a join.Answer) join.Answer {
			cert, err := w.ca.IssueClient(w.leaf().PublicKey, w.name, time.Hour)
			if err != nil {
				t.Error(err)
			}
			a.Certificate = string(cert)
			return a
		}, "of another key"},
		"another name":   {nil, "and this node is"},
		"no certificate": {func(_ *renewing, a join.Answer) join.Answer { a.Certificate = ""; return a }, "no PEM certificate"},
		"no CA":          {func(_ *renewing, a join.Answer) join.Answer { a.CA = ""; return a }, "no PEM certificate"},
		"another CA": {func(_ *renewing, a join.Answer) join.Answer {
			a.CA = string(other.Bundle())
			return a
		}, "none of the CAs"},
	} {
		w := newRenewing(t)
		was := w.leaf()
		bundle, err := os.ReadFile(w.node.BundleFile())
		if err != nil {
			t.Fatal(err)
		}
		if c.answer != nil {
			w.answer = func(a join.Answer) join.Answer { return c.answer(w, a) }
		} else {
			w.issues.Incarnation = pki.NewIncarnation()
		}
		if said := w.tick(renewingLife * 3 / 4); !strings.Contains(said, c.says) {
			t.Errorf("%s: it says %q", what, said)
		}
		now, err := os.ReadFile(w.node.BundleFile())
		if err != nil || !bytes.Equal(now, bundle) || !w.leaf().Equal(was) {
			t.Errorf("%s: it was taken", what)
		}
	}
}
