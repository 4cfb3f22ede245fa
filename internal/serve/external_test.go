package serve

import (
	"strings"
	"testing"

	"pulley/internal/pki"
	"pulley/internal/store"
)

// Nodes that join a cluster which does not know their CA, or checks nobody, would be cut off, or be administrators.
func TestWhatJoiningAClusterOfYoursNeeds(t *testing.T) {
	t.Parallel()
	s := startSecure(t, secureConfig(t, t.TempDir()))
	st := connect(t, s.Connection)
	if err := s.Certificates.MayJoin(t.Context(), st, s.Connection); err != nil {
		t.Errorf("all is as it should be: %v", err)
	}

	viewer := pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: "eve", Incarnation: pki.NewIncarnation()}
	if err := st.EnsureOperator(t.Context(), viewer.String(), store.RoleViewer); err != nil {
		t.Fatal(err)
	}
	as := s.Connection
	as.Cert = identity(t, s.Certificates, viewer)
	as.Key = as.Cert
	if err := s.Certificates.MayJoin(t.Context(), connect(t, as), as); err == nil || !strings.Contains(err.Error(), "etcd's role root") {
		t.Errorf("as a viewer: %v", err)
	}

	foreign, err := OpenCertificates(t.TempDir(), "", "server1", pki.Options{})
	if err == nil {
		err = foreign.Refresh(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	quick := s.Connection
	quick.Timeout = 1e9
	if err := foreign.MayJoin(t.Context(), st, quick); err == nil || !strings.Contains(err.Error(), "does not trust the CA in") {
		t.Errorf("with a CA that etcd does not know: %v", err)
	}

	c := secureConfig(t, t.TempDir()).EtcdConfig
	plain, err := StartEtcd(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := foreign.MayJoin(t.Context(), plain.Store("", 0), store.Config{Endpoints: []string{plain.Endpoint()}}); err == nil || !strings.Contains(err.Error(), "does not check its users") {
		t.Errorf("with an etcd that checks nobody: %v", err)
	}
}
