package member

import (
	"errors"
	"testing"

	"pulley/internal/access"
	"pulley/internal/access/fleetca"
	"pulley/internal/etcd"
	"pulley/internal/pki"
)

// Nodes in a cluster that does not trust their CA would be cut off. Nodes in a cluster without authentication would be
// administrators.
func TestJoiningClusterNeedsAuthAndTrust(t *testing.T) {
	t.Parallel()
	s := startSecure(t, secureConfig(t, t.TempDir()))
	st := connect(t, s.Connection)
	if err := s.Certificates.MayJoin(t.Context(), st, s.Connection); err != nil {
		t.Errorf("all is as it should be: %v", err)
	}

	viewer := pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: "eve", Incarnation: pki.NewIncarnation()}
	if err := access.In(st).EnsureOperator(t.Context(), viewer.String(), access.RoleViewer); err != nil {
		t.Fatal(err)
	}
	as := s.Connection
	as.Cert = identity(t, s.Certificates, viewer)
	as.Key = as.Cert
	if err := s.Certificates.MayJoin(t.Context(), connect(t, as), as); obstacle(err) != fleetca.NotRoot {
		t.Errorf("as a viewer: %v", err)
	}

	foreign, err := fleetca.Open(t.TempDir(), "", "server1", false, pki.Options{})
	if err == nil {
		err = foreign.Refresh(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	quick := s.Connection
	quick.Timeout = 1e9
	if err := foreign.MayJoin(t.Context(), st, quick); obstacle(err) != fleetca.CANotTrusted {
		t.Errorf("with a CA that etcd does not know: %v", err)
	}

	c := secureConfig(t, t.TempDir()).EtcdConfig
	plain, err := StartEtcd(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := foreign.MayJoin(t.Context(), plain.DB("", 0), etcd.Config{Endpoints: []string{plain.Endpoint()}}); obstacle(err) != fleetca.AuthOff {
		t.Errorf("with an etcd without authentication: %v", err)
	}
}

// obstacle returns the code of an error of MayJoin; "" for none.
func obstacle(err error) fleetca.Obstacle {
	var e *fleetca.JoinError
	if errors.As(err, &e) {
		return e.Obstacle
	}
	return ""
}
