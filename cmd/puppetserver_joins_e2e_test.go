//go:build e2e

package cmd_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	etcdclient "go.etcd.io/etcd/client/v3"

	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/puppetserver"
	"pulley/internal/testbed/puppetservertest"
)

// puppetSites are the Puppet servers of this package's tests.
var puppetSites = func() *puppetservertest.Shared {
	var shared puppetservertest.Shared
	atEnd = append(atEnd, shared.Close)
	return &shared
}()

// serverFleet is a fleet with a Puppet server. Its serve may sign certificates at the server's CA.
type serverFleet struct {
	*bootFleet
	site        *puppetservertest.Site
	ca          *puppetserver.Client
	credentials string // folder
}

func newServerFleet(t *testing.T) *serverFleet {
	t.Helper()
	site := puppetSites.Site(t)
	site.First.Up(t)
	dir := site.Issue(t, puppetservertest.Client{Name: puppetservertest.Allowed}).Dir
	own, err := puppetserver.LoadCredentials(dir)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := puppetserver.New(site.First.URL(), own, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	f := &serverFleet{newFleet(t, "--puppet-credentials", dir), site, ca, dir}
	f.forgetNodes()
	return f
}

// forgetNodes cleans the certificates of nodes of earlier tests: a node of the same name would have them revoked.
func (f *serverFleet) forgetNodes() {
	f.t.Helper()
	all, err := f.ca.List(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, of := range all {
		var refused *puppetserver.Error
		if _, err := f.ca.Clean(f.t.Context(), of.Name); err != nil && !(errors.As(err, &refused) && refused.Code == puppetserver.Infrastructure) {
			f.t.Fatal(err)
		}
	}
}

// environment stores an environment: the lines are those below the key puppet beside servers.
func (f *serverFleet) environment(name, rest string) {
	f.t.Helper()
	f.write(name+".yaml", rest)
	f.must("pulley", "env", "apply", name+".yaml")
}

// joined is a machine that joined, and asks for its certificate by itself.
type joined struct {
	*join.Client
	machine join.Machine
}

func (f *serverFleet) join(t *testing.T, environment, node string) joined {
	t.Helper()
	return f.joinWith(t, f.token(environment, node), environment, node)
}

// token returns a token that lets one machine join as the node.
func (f *serverFleet) token(environment, node string) string {
	f.t.Helper()
	return strings.TrimSpace(f.quietly("pulley", "token", "create", "-e", environment, "--node", node))
}

func (f *serverFleet) joinWith(t *testing.T, token, environment, node string) joined {
	t.Helper()
	m, err := f.joinAs(t, token, machineIDOf(environment+node), node)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// joinAs joins a machine by its machine id.
func (f *serverFleet) joinAs(t *testing.T, token, id, node string) (joined, error) {
	t.Helper()
	trust, err := pki.Pinned([]string{f.pin})
	if err != nil {
		return joined{}, err
	}
	first, err := join.NewClient([]string{f.server}, trust, 0)
	if err != nil {
		return joined{}, err
	}
	key, err := pki.NewKey()
	if err != nil {
		return joined{}, err
	}
	m := join.Machine{ID: id, Hostname: node}
	a, err := first.Join(t.Context(), key, join.Request{Token: token, Node: node, Machine: m})
	if err != nil {
		return joined{}, err
	}
	identity, err := pki.NewIdentity(key, []byte(a.Certificate))
	if err != nil {
		return joined{}, err
	}
	if trust, err = identity.TLS([]byte(a.CA)); err != nil {
		return joined{}, err
	}
	c, err := join.NewClient([]string{f.server}, trust, 0)
	return joined{c, m}, err
}

func (m joined) asks(t *testing.T, r join.PuppetRequest) join.PuppetAnswer {
	t.Helper()
	r.Machine = m.machine
	a, err := m.Puppet(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func csrOf(t *testing.T, key crypto.Signer, name string, extensions map[string]string) string {
	t.Helper()
	csr, err := puppetserver.NewCSR(key, name, extensions)
	if err != nil {
		t.Fatal(err)
	}
	return string(csr)
}

func keyFor(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Nobody signs a certificate of Puppet's CA by hand. So serve itself must refuse every request that is not exactly the node's, must
// not sign twice when an answer is lost, and must not leave a former machine's certificate valid.
func TestPuppetCertificates(t *testing.T) {
	f := newServerFleet(t)
	spec := fmt.Sprintf("trusted: {pp_environment: dev}\npuppet:\n  servers: {eu1: {address: %q}}\n  ca: {url: %q, how: %%s}\nroles:\n  probe: {cardinality: 9, flavor: bare-metal, trusted: {pp_role: web}}\n", f.site.First.Address, f.site.First.URL())
	f.environment("dev", fmt.Sprintf(spec, "csr"))
	f.environment("made", fmt.Sprintf(spec, "presigned"))
	extensions := map[string]string{"pp_environment": "dev", "pp_role": "web"}

	t.Run("csr", func(t *testing.T) {
		former := keyFor(t)
		old, err := f.ca.Issue(t.Context(), "probe1", []byte(csrOf(t, former, "probe1", nil)), nil)
		if err != nil {
			t.Fatal(err)
		}
		m := f.join(t, "dev", "probe1")
		if a := m.asks(t, join.PuppetRequest{}); a.Certname != "probe1" || a.Certificate != "" || fmt.Sprint(a.Extensions) != fmt.Sprint(extensions) {
			t.Fatalf("what to request: %+v", a)
		}
		if a := m.asks(t, join.PuppetRequest{Certificate: string(old)}); !a.Valid {
			t.Error("the CA's certificate is not confirmed")
		}
		key := keyFor(t)
		for name, csr := range map[string]string{
			"of another name":         csrOf(t, key, "probe2", extensions),
			"without extensions":      csrOf(t, key, "probe1", nil),
			"of another role":         csrOf(t, key, "probe1", map[string]string{"pp_environment": "dev", "pp_role": "db"}),
			"that is none":            "x",
			"with further extensions": csrOf(t, key, "probe1", map[string]string{"pp_environment": "dev", "pp_role": "web", "pp_zone": "a"}),
		} {
			_, err := m.Puppet(t.Context(), join.PuppetRequest{Machine: m.machine, CSR: csr})
			var refused *join.RefusedError
			if !errors.As(err, &refused) || refused.Reason != join.PuppetCARefused {
				t.Errorf("a request %s: %v", name, err)
			}
		}
		first := m.asks(t, join.PuppetRequest{CSR: csrOf(t, key, "probe1", extensions)})
		again := m.asks(t, join.PuppetRequest{CSR: csrOf(t, key, "probe1", extensions)})
		if first.Certificate == "" || first.Certificate != again.Certificate || first.Key != "" {
			t.Errorf("a repeated request gets another certificate:\n%+v\n%+v", first, again)
		}
		if a := m.asks(t, join.PuppetRequest{Certificate: first.Certificate}); !a.Valid {
			t.Error("the node's certificate is not confirmed")
		}
		if a := m.asks(t, join.PuppetRequest{Certificate: string(old)}); a.Valid {
			t.Error("the certificate of the former machine is confirmed")
		}
		if !onCRL(t, first.CRL, first.CA, old) && !onCRL(t, again.CRL, again.CA, old) {
			t.Error("the certificate of the former machine is not revoked")
		}
	})
	t.Run("presigned", func(t *testing.T) {
		m := f.join(t, "made", "probe2")
		first, again := m.asks(t, join.PuppetRequest{}), m.asks(t, join.PuppetRequest{})
		if first.Key == "" || first.Certificate == "" || first.Key != again.Key || first.Certificate != again.Certificate {
			t.Errorf("a repeated request gets another certificate:\n%+v\n%+v", first, again)
		}
		key, err := pki.ParseKey([]byte(first.Key))
		if err == nil {
			_, err = pki.NewIdentity(key, []byte(first.Certificate))
		}
		if err != nil {
			t.Error(err)
		}
		stored := f.everything()
		if !strings.Contains(stored, "/presigned/made/probe2") || strings.Contains(stored, keyLine(first.Key)) {
			t.Error("etcd has no record of the key, or has it in plain text")
		}
		if a := m.asks(t, join.PuppetRequest{Certificate: first.Certificate}); !a.Valid {
			t.Error("the certificate is not confirmed")
		}
		if strings.Contains(f.everything(), "/presigned/made/probe2") {
			t.Error("etcd keeps the key although its node has it")
		}
	})
	t.Run("two machines", func(t *testing.T) {
		first := f.join(t, "dev", "probe7")
		key := keyFor(t)
		old := first.asks(t, join.PuppetRequest{CSR: csrOf(t, key, "probe7", extensions)})
		var refused *join.RefusedError
		if _, err := f.joinAs(t, f.token("dev", "probe7"), machineIDOf("other"), "probe7"); !errors.As(err, &refused) || refused.Reason != join.LockedByAnother {
			t.Errorf("a second machine in the first boot of the first: %v", err)
		}
		f.must("pulley", "nodes", "unlock", "probe7", "-e", "dev", "-m", "replaced", "--yes")
		second, err := f.joinAs(t, f.token("dev", "probe7"), machineIDOf("other"), "probe7")
		if err != nil {
			t.Fatal(err)
		}
		for what, r := range map[string]join.PuppetRequest{"repeats its request": {CSR: csrOf(t, key, "probe7", extensions)}, "confirms its certificate": {Certificate: old.Certificate}} {
			r.Machine = first.machine
			if a, err := first.Puppet(t.Context(), r); err == nil {
				t.Errorf("the replaced machine %s: %+v", what, a)
			}
		}
		now := second.asks(t, join.PuppetRequest{CSR: csrOf(t, keyFor(t), "probe7", extensions)})
		if now.Certificate == "" || now.Certificate == old.Certificate || !onCRL(t, now.CRL, now.CA, []byte(old.Certificate)) {
			t.Errorf("both machines have a valid certificate: %+v", now)
		}
	})
	t.Run("of another environment", func(t *testing.T) {
		m := f.join(t, "made", "probe1")
		_, err := m.Puppet(t.Context(), join.PuppetRequest{Machine: m.machine})
		var refused *join.RefusedError
		if !errors.As(err, &refused) || refused.Reason != join.CertnameTaken || refused.Params.Claimed != "dev" {
			t.Errorf("a node takes the certificate of another environment's: %v", err)
		}
		f.must("pulley", "nodes", "remove", "probe1", "-e", "made", "--yes")
		for deadline := time.Now().Add(time.Minute); strings.Contains(f.everything(), "/cleanups/made/probe1"); {
			if time.Now().After(deadline) {
				t.Fatal("the removal never ends")
			}
			<-time.After(200 * time.Millisecond) // between two looks
		}
		if s, err := f.ca.Status(t.Context(), "probe1"); err != nil || s.State != puppetserver.Signed {
			t.Errorf("the removal of a node took the certificate of another environment's: %+v, %v", s, err)
		}
	})
	t.Run("with a key that has a certificate", func(t *testing.T) { // of a time in which the node had other extensions
		key := keyFor(t)
		old, err := f.ca.Issue(t.Context(), "probe8", []byte(csrOf(t, key, "probe8", nil)), nil)
		if err != nil {
			t.Fatal(err)
		}
		m := f.join(t, "dev", "probe8")
		a := m.asks(t, join.PuppetRequest{CSR: csrOf(t, key, "probe8", extensions)})
		if a.Certificate == "" || a.Certificate == string(old) || !onCRL(t, a.CRL, a.CA, old) {
			t.Errorf("the old certificate is handed out again, or stays valid:\n%+v", a)
		}
	})
	t.Run("of removed nodes, with a damaged file", func(t *testing.T) {
		nodes := []string{"probe5", "probe6"}
		for _, node := range nodes {
			m := f.join(t, "dev", node)
			m.asks(t, join.PuppetRequest{CSR: csrOf(t, keyFor(t), node, extensions)})
		}
		file := filepath.Join(f.site.Dir, "ca", "signed", "probe5.pem")
		whole, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.WriteFile(file, whole, 0o644) }) // others list all certificates
		for _, node := range nodes {
			f.quietly("pulley", "nodes", "remove", node, "-e", "dev", "-m", "sold", "--yes")
		}
		eventually(t, "one name that the CA cannot read keeps the certificates of other removed nodes", func() bool {
			return !strings.Contains(f.everything(), "/cleanups/dev/probe6")
		})
		if !strings.Contains(f.everything(), "/cleanups/dev/probe5") {
			t.Error("the removal of a node with a damaged file at the CA is forgotten")
		}
	})
	t.Run("while the former machine is removed", func(t *testing.T) {
		t.Parallel()
		ca := f.proxied(t)
		f.environment("raced", fmt.Sprintf("puppet:\n  servers: {eu1: {address: %q}}\n  ca: {url: %q}\nroles:\n  probe: {cardinality: 9, flavor: bare-metal}\n", f.site.First.Address, ca.URL))
		former := f.join(t, "raced", "probe4")
		old := former.asks(t, join.PuppetRequest{CSR: csrOf(t, keyFor(t), "probe4", nil)}).Certificate
		f.quietly("pulley", "nodes", "remove", "probe4", "-e", "raced", "-m", "replaced", "--yes")
		select { // serve has seen that the node is removed, and its revocation is on the way
		case <-ca.held:
		case <-time.After(patience):
			t.Fatal("serve does not clean the certificate of a removed node")
		}
		m, csr := f.join(t, "raced", "probe4"), csrOf(t, keyFor(t), "probe4", nil)
		_, err := m.Puppet(t.Context(), join.PuppetRequest{Machine: m.machine, CSR: csr})
		var unreachable *join.UnreachableError
		if !errors.As(err, &unreachable) || unreachable.After <= 0 {
			t.Errorf("the new machine has to wait, and got: %v", err)
		}
		close(ca.release)
		var got join.PuppetAnswer
		eventually(t, "the new machine gets no certificate", func() bool {
			got, err = m.Puppet(t.Context(), join.PuppetRequest{Machine: m.machine, CSR: csr})
			return err == nil
		})
		eventually(t, "serve does not end the removal", func() bool { return !strings.Contains(f.everything(), "/cleanups/raced/probe4") })
		if now, err := f.ca.Certificate(t.Context(), "probe4"); err != nil || string(now) != got.Certificate || got.Certificate == old {
			t.Errorf("the CA has another certificate than the new machine: %v", err)
		}
		if a := m.asks(t, join.PuppetRequest{Certificate: got.Certificate}); !a.Valid {
			t.Error("the certificate of the new machine is not valid")
		}
	})
	t.Run("before the machine boots", func(t *testing.T) {
		t.Parallel()
		ca := f.proxied(t)
		close(ca.release)
		f.environment("early", fmt.Sprintf("puppet:\n  servers: {eu1: {address: %q}}\n  ca: {url: %q, how: presigned}\nroles:\n  probe: {cardinality: 9, flavor: bare-metal}\n", f.site.First.Address, ca.URL))
		alive, err := f.ca.Certificate(t.Context(), "probe2")
		if err != nil {
			t.Fatal(err)
		}
		f.token("made", "probe2") // its machine is alive
		comes, given := f.token("early", "probe5"), f.token("early", "probe6")
		signed := func(node string) bool {
			return strings.Contains(f.value("/pulley/v1/presigned/early/"+node), "BEGIN CERTIFICATE")
		}
		eventually(t, "no certificate is signed before its machine boots", func() bool { return signed("probe5") && signed("probe6") })

		f.quietly("pulley", "token", "revoke", strings.Split(given, "_")[1], "--yes")
		eventually(t, "the certificate of a machine that does not come is not cleaned", func() bool {
			_, err := f.ca.Status(t.Context(), "probe6")
			var failed *puppetserver.Error
			return errors.As(err, &failed) && failed.Code == puppetserver.UnknownName
		})
		if signed("probe6") {
			t.Error("etcd keeps the key of a machine that does not come")
		}

		ca.Close() // the machine boots while the CA is away
		f.token("early", "probe7")
		m := f.joinWith(t, comes, "early", "probe5")
		got := m.asks(t, join.PuppetRequest{})
		key, err := pki.ParseKey([]byte(got.Key))
		if err == nil {
			_, err = pki.NewIdentity(key, []byte(got.Certificate))
		}
		if err != nil {
			t.Fatal(err)
		}
		if now, err := f.ca.Certificate(t.Context(), "probe5"); err != nil || string(now) != got.Certificate || onCRL(t, got.CRL, got.CA, now) {
			t.Errorf("the CA has another certificate than the machine: %v", err)
		}
		if stored := f.everything(); strings.Contains(stored, keyLine(got.Key)) {
			t.Error("etcd has the key in plain text")
		}
		if a := m.asks(t, join.PuppetRequest{Certificate: got.Certificate}); !a.Valid {
			t.Error("the certificate is not confirmed")
		}
		if f.value("/pulley/v1/presigned/early/probe5") != "" {
			t.Error("etcd keeps the key although its node has it")
		}
		eventually(t, "doctor does not name a certificate that is not signed", func() bool {
			out, _ := f.command(nil, "pulley", "doctor")
			return strings.Contains(string(out), "did not sign the certificates of machines that are to boot: probe7")
		})
		if now, err := f.ca.Certificate(t.Context(), "probe2"); err != nil || string(now) != string(alive) || f.value("/pulley/v1/presigned/made/probe2") != "" {
			t.Errorf("a token for a machine that is alive made another certificate: %v", err)
		}
	})
	t.Run("away", func(t *testing.T) {
		f.environment("away", "puppet:\n  servers: {eu1: {address: 127.0.0.1}}\n  ca: {url: 'https://127.0.0.1:1'}\nroles:\n  probe: {cardinality: 9, flavor: bare-metal}\n")
		m := f.join(t, "away", "probe3")
		_, err := m.Puppet(t.Context(), join.PuppetRequest{Machine: m.machine})
		var unreachable *join.UnreachableError
		if !errors.As(err, &unreachable) || unreachable.After <= 0 || !strings.Contains(err.Error(), "127.0.0.1:1") {
			t.Errorf("a CA that does not answer must be tried again, and be named: %v", err)
		}
	})
}

// proxied is the CA behind a proxy, which holds a request on its way, or goes away.
type proxied struct {
	*httptest.Server
	held    chan struct{} // closed when the first revocation has arrived
	release chan struct{} // closed to let it pass
}

func (f *serverFleet) proxied(t *testing.T) *proxied {
	t.Helper()
	ssl := filepath.Dir(f.site.First.CRLFile())
	cert, err := tls.LoadX509KeyPair(filepath.Join(ssl, "certs", f.site.First.Name+".pem"), filepath.Join(ssl, "private_keys", f.site.First.Name+".pem"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := puppetserver.LoadCredentials(f.credentials)
	if err != nil {
		t.Fatal(err)
	}
	config, err := own.Identity.TLS(own.CA)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(f.site.First.URL())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(f.site.First.Address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxied{held: make(chan struct{}), release: make(chan struct{})}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport = &http.Transport{TLSClientConfig: config}
	var seen atomic.Bool
	p.Server = &httptest.Server{Listener: listener, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if bytes.Contains(body, []byte(`"revoked"`)) && seen.CompareAndSwap(false, true) {
			close(p.held)
			<-p.release
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	})}}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// onCRL reports whether a revocation list has a certificate.
func onCRL(t *testing.T, crl, bundle string, certificate []byte) bool {
	t.Helper()
	cas, err := pki.ParseCertificates([]byte(bundle))
	if err != nil {
		t.Fatal(err)
	}
	list, err := puppetserver.ParseCRL([]byte(crl), cas)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certificate)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list.RevokedCertificateEntries {
		if one.SerialNumber.Cmp(leaf.SerialNumber) == 0 {
			return true
		}
	}
	return false
}

// keyLine returns a line of a key that no other text has.
func keyLine(key string) string { return strings.Split(key, "\n")[1] }

// value returns the value of a key of etcd; "" for none.
func (f *serverFleet) value(key string) string {
	f.t.Helper()
	resp, err := f.admin().Get(f.t.Context(), key)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		return string(kv.Value)
	}
	return ""
}

// everything returns all keys of etcd with their values.
func (f *serverFleet) everything() string {
	f.t.Helper()
	c := f.admin()
	resp, err := c.Get(f.t.Context(), "/", etcdclient.WithPrefix())
	if err != nil {
		f.t.Fatal(err)
	}
	var all strings.Builder
	for _, kv := range resp.Kvs {
		fmt.Fprintf(&all, "%s %s\n", kv.Key, kv.Value)
	}
	return all.String()
}
