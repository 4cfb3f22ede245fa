package server

import (
	"slices"
	"testing"

	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/secrets"
)

// A stolen identity must read the secrets of its own role and environment only: serve gives no other, and etcd refuses
// the recipients.
func TestIdentitiesAreOfTheNodesRole(t *testing.T) {
	w := newWorld(t, role("controller", 2), role("compute", 2))
	var given []access.Identity
	s := w.serve(func(c *Config) {
		c.OnSecrets = func(_ model.Ref, i access.Identity, _ string) { given = append(given, i) }
	})
	ann := w.operator("ann", access.RoleOperator, s)
	seal := func(role string) string {
		t.Helper()
		a, err := ann.Sealing(t.Context(), join.SealingRequest{Environment: "dev", Role: role})
		if err != nil {
			t.Fatal(err)
		}
		if err := pki.CheckRecipient(w.ca.Bundle(), []byte(a.Certificate), "dev", targets.RecipientScope(role), a.Recipient); err != nil {
			t.Error(err)
		}
		text, err := secrets.Seal(a.Recipient, secrets.Place{Environment: "dev", Layer: hieradata.Environment, Key: "k"}, "of "+role)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	of := map[string]string{"": seal(""), "controller": seal("controller"), "compute": seal("compute")}

	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Role: "controller", Uses: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(given) != 1 || given[0].Node != "controller1" || given[0].Machine != "m1" || given[0].Token == "" {
		t.Errorf("announced: %+v", given)
	}
	node := w.joined(m, a, s)
	later, err := node.Identities(t.Context(), node.is)
	if err != nil || !slices.Equal(later, a.Identities) {
		t.Errorf("the join gave %d identities, and a later request %d (%v)", len(a.Identities), len(later), err)
	}
	for role, text := range of {
		_, err := secrets.Open(later, secrets.Place{Environment: "dev", Layer: hieradata.Environment, Key: "k"}, text)
		if (err == nil) != (role != "compute") {
			t.Errorf("a controller decrypts a secret of role %q: %v", role, err)
		}
	}
	_, err = node.Sealing(t.Context(), join.SealingRequest{Environment: "dev", Role: "compute"})
	want(t, err, join.NotAnOperator)
	_, err = node.Identities(t.Context(), join.Machine{ID: "m2"})
	want(t, err, join.WrongMachine)
	_, err = w.operator("vic", access.RoleViewer, s).Sealing(t.Context(), join.SealingRequest{Environment: "dev"})
	want(t, err, join.NotAnOperator)
	_, err = ann.Identities(t.Context(), join.Machine{ID: "m1"})
	want(t, err, join.WrongKind)
	_, err = ann.Sealing(t.Context(), join.SealingRequest{Environment: "dev", Role: "nobody"})
	want(t, err, join.NoRole)

	i, err := pki.NewIdentity(m.key, []byte(a.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/node.pem"
	if err := i.Save(file); err != nil {
		t.Fatal(err)
	}
	own, err := etcd.Open(etcd.Config{Endpoints: a.Endpoints, CACert: w.etcd.PKI.CA, Cert: file, Key: file})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if r, err := targets.In(own).Recipients(t.Context(), model.Ref{Environment: "dev"}, "controller"); err == nil {
		t.Errorf("etcd lets a node read %d recipients", len(r.Recipients))
	}
}

// operator is a client of an operator with a certificate.
func (w *world) operator(name string, as access.OperatorRole, servers ...*serve) *join.Client {
	w.t.Helper()
	m := w.machine("", servers...)
	m.is = join.Machine{}
	a, err := m.join(w.t.Context(), w.token(access.Token{Operator: name, As: as, Uses: 1}), "")
	if err != nil {
		w.t.Fatal(err)
	}
	return w.joined(m, a, servers...).Client
}
