package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/pki"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// A rotation, or the end of a CA, that overlooks one node shuts that node out; one that waits for nodes that are gone never
// happens.
func TestRotationWaitsForThoseItWouldShutOut(t *testing.T) {
	s, err := store.Open(store.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  compute:\n    cardinality: 9\n    flavor: bare-metal\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutSpec(t.Context(), e, 0); err != nil {
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
	for _, i := range []store.Identity{
		{Node: "compute1", User: "u1", CA: pins[0], Issued: before, Until: end},
		{Node: "compute2", User: "u2", CA: pins[0], Issued: since, Until: end},
		{Node: "compute3", User: "u3", CA: pins[0], Issued: before, Until: now},
		{Node: "compute4", CA: pins[0], Issued: before, Until: end, Removed: &store.Removal{At: now}},
		{Node: "compute5", User: "u5", CA: "sha256:gone", Issued: now, Until: end},
	} {
		if err := s.PutIdentity(t.Context(), environments.Ref{Environment: "dev"}, i, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []store.OperatorIdentity{
		{Name: "ann", User: "ann", As: store.RoleViewer, CA: pins[0], Issued: before, Until: end},
		{Name: "bob", User: "bob", As: store.RoleViewer, CA: pins[0], Issued: before, Until: end, Revoked: &store.Revoked{At: now}},
	} {
		if err := s.PutOperator(t.Context(), o, 0); err != nil {
			t.Fatal(err)
		}
	}
	n, err := count(t.Context(), s, ca, filepath.Join(t.TempDir(), "admin.pem"), now)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(n.late, ", "); got != "node compute1 of dev, operator ann" {
		t.Errorf("those who can't know the next CA: %s", got)
	}
	if got := n.beforeRotating(ca); len(got) != 1 || !strings.Contains(got[0], "2 identities have a certificate from before the next CA was made") {
		t.Errorf("before rotating: %q", got)
	}
	if n.nodes[pins[0]] != 2 || n.operators[pins[0]] != 1 {
		t.Errorf("with the current CA: %v, %v", n.nodes, n.operators)
	}
	if shown := show(ca, n); *shown.Others != 1 {
		t.Errorf("with none of the CAs: %d", *shown.Others)
	}
	if err := ca.Rotate(false); err != nil {
		t.Fatal(err)
	}
	if got := n.beforeRetiring(ca); len(got) != 1 || !strings.Contains(got[0], "3 identities have a certificate of it: node compute1 of dev, node compute2 of dev, operator ann;") {
		t.Errorf("before retiring: %q", got)
	}
	if got := (census{problem: store.ErrNotFound}).beforeRetiring(ca); len(got) != 1 {
		t.Errorf("before retiring, when nobody can be asked: %q", got)
	}
}
