package access_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/pki"
	"pulley/internal/testbed/etcdtest"
)

// Otherwise etcd refuses a process that outlives its certificate although a new certificate exists.
func TestRenewedCertificateCountsWithoutANewClient(t *testing.T) {
	a := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	file := filepath.Join(t.TempDir(), "identity.pem")
	become := func(user string) etcd.Config {
		t.Helper()
		c := a.Config(user)
		var both []byte
		for _, f := range []string{c.Key, c.Cert} {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, b...)
		}
		if err := os.WriteFile(file, both, 0o600); err != nil {
			t.Fatal(err)
		}
		c.Cert, c.Key = file, file
		return c
	}
	s, err := etcd.Open(become("pulley/node/dev/unknown/00000000000000bb"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := access.In(s).Users(t.Context()); err == nil {
		t.Fatal("a certificate that etcd knows no user for is let in")
	}
	become(etcdtest.Serve)
	a.Down()
	a.Up()
	if _, err := access.In(s).Users(t.Context()); err != nil {
		t.Error(err)
	}
}

// A node that does not notice the servers' new CA would follow a rotation months late.
func TestServerIssuerFollowsARotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := pki.OpenCA(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := etcdtest.PKI{CA: filepath.Join(dir, "bundle.pem"), ServerCert: filepath.Join(dir, "server.pem"), ServerKey: filepath.Join(dir, "server.pem")}
	issue := func() {
		t.Helper()
		certs, key, err := ca.IssueServer(nil, time.Hour)
		if err == nil {
			err = os.WriteFile(p.ServerCert, append(key, certs...), 0o600)
		}
		if err == nil {
			err = os.WriteFile(p.CA, ca.Bundle(), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	issue()
	me := filepath.Join(dir, "me.pem")
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.IssueClient(key.Public(), pki.Name{Prefix: "pulley", Kind: pki.KindServe, Subject: "test", Incarnation: pki.NewIncarnation()}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.NewIdentity(key, cert)
	if err == nil {
		err = id.Save(me)
	}
	if err != nil {
		t.Fatal(err)
	}
	server := etcdtest.StartTLS(t, p)
	see := func() []byte {
		t.Helper()
		s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, CACert: p.CA, Cert: me, Key: me})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got := s.ServerIssuer(); got != nil {
			t.Errorf("before the first call it says %x", got)
		}
		if _, err := access.In(s).AuthEnabled(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s.ServerIssuer()
	}
	first, next := ca.Authorities()[0].Certificate.SubjectKeyId, ca.Authorities()[1].Certificate.SubjectKeyId
	if got := see(); !bytes.Equal(got, first) {
		t.Errorf("it is %x, and it says %x", first, got)
	}
	if err := ca.Rotate(false); err != nil {
		t.Fatal(err)
	}
	issue() // etcd reads its certificate for each connection, and trusted the next CA from its start
	if got := see(); !bytes.Equal(got, next) {
		t.Errorf("after the rotation it is %x, and it says %x", next, got)
	}
}
