package fleetca_test

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/access/fleetca"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// A rotation that overlooks a node removes its access. A rotation that waits for removed nodes never happens.
func TestCensusFindsWhoBlocksRotation(t *testing.T) {
	t.Parallel()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  compute:\n    cardinality: 9\n    flavor: bare-metal\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := specs.In(s).PutSpec(t.Context(), e, 0); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.OpenCA(filepath.Join(t.TempDir(), "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	since, _ := ca.NextSince()
	before, now := since.Add(-time.Hour), since.Add(time.Hour)
	end := now.Add(24 * time.Hour)
	pins := ca.Fingerprints()
	for _, i := range []access.Identity{
		{Node: "compute1", User: "u1", CA: pins[0], Issued: before, Until: end},
		{Node: "compute2", User: "u2", CA: pins[0], Issued: since, Until: end},
		{Node: "compute3", User: "u3", CA: pins[0], Issued: before, Until: now},
		{Node: "compute4", CA: pins[0], Issued: before, Until: end, Removed: &access.Removal{At: now}},
		{Node: "compute5", User: "u5", CA: "sha256:gone", Issued: now, Until: end},
	} {
		if err := access.IdentitiesIn(s).Put(t.Context(), model.Ref{Environment: "dev"}, i, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []access.OperatorIdentity{
		{Name: "ann", User: "ann", As: access.RoleViewer, CA: pins[0], Issued: before, Until: end},
		{Name: "bob", User: "bob", As: access.RoleViewer, CA: pins[0], Issued: before, Until: end, Revoked: &access.Revoked{At: now}},
	} {
		if err := access.IdentitiesIn(s).PutOperator(t.Context(), o, 0); err != nil {
			t.Fatal(err)
		}
	}
	n, err := fleetca.Count(t.Context(), s, ca, filepath.Join(t.TempDir(), "admin.pem"), now)
	if err != nil {
		t.Fatal(err)
	}
	want := []fleetca.Blocker{{Code: fleetca.OldCertificates, Names: []string{"node compute1 of dev", "operator ann"}}}
	if got := n.BeforeRotating(ca); !reflect.DeepEqual(got, want) {
		t.Errorf("before rotating: %+v, want %+v", got, want)
	}
	if n.Nodes[pins[0]] != 2 || n.Operators[pins[0]] != 1 || len(n.Holders["sha256:gone"]) != 1 {
		t.Errorf("with the current CA: %v, %v; with another one: %v", n.Nodes, n.Operators, n.Holders["sha256:gone"])
	}
	if err := ca.Rotate(false); err != nil {
		t.Fatal(err)
	}
	want = []fleetca.Blocker{{Code: fleetca.StillHeld, Names: []string{"node compute1 of dev", "node compute2 of dev", "operator ann"}}}
	if got := n.BeforeRetiring(ca); !reflect.DeepEqual(got, want) || !strings.Contains(got[0].Sentence(), "3 certificates are of the previous CA: node compute1") {
		t.Errorf("before retiring: %+v, want %+v", got, want)
	}
	if got := (fleetca.Census{Problem: etcd.ErrNotFound}).BeforeRetiring(ca); len(got) != 1 || got[0].Code != fleetca.CensusFailed {
		t.Errorf("before retiring without etcd: %+v", got)
	}
}
