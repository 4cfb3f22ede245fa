package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/environments/settings"
	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/puppetserver"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// An operator must search for the cause at the CA, which is overloaded, and not at etcd.
func TestHangingPuppetCAIsNamed(t *testing.T) {
	w := newWorld(t, role("web", 1))
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spec, revision, err := specs.In(w.st).Spec(t.Context(), dev)
	if err != nil {
		t.Fatal(err)
	}
	spec.Puppet.Servers = map[string]settings.PuppetServer{"eu1": {Address: "127.0.0.1"}}
	spec.Puppet.CA.URL = "https://" + l.Addr().String()
	if err := specs.In(w.st).PutSpec(t.Context(), spec, revision); err != nil {
		t.Fatal(err)
	}
	s := w.serve(nil)
	s.Puppet, s.caTime = t.TempDir(), 500*time.Millisecond
	pki := etcdtest.NewPKI(t)
	for name, from := range map[string]string{puppetserver.CertFile: pki.ClientCert, puppetserver.KeyFile: pki.ClientKey, puppetserver.CAFile: pki.CA} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(s.Puppet, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Role: "web", Uses: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	node := w.joined(m, a, s)
	_, err = node.Puppet(t.Context(), join.PuppetRequest{Machine: node.is})
	var busy *join.UnreachableError
	if !errors.As(err, &busy) || busy.After <= 0 || strings.Contains(err.Error(), "etcd") || !strings.Contains(err.Error(), "Puppet") {
		t.Errorf("a CA that hangs: %v", err)
	}
}
