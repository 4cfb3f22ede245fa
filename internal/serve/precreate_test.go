package serve

import (
	"slices"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/pki"
	"pulley/internal/testbed/observe"
)

// A crash of serve during a login or a join must not leave a stolen certificate valid.
func TestOrphanedUsersAreDeleted(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st, ctx := dialled(t, s.Connection), t.Context()
	user := func(kind pki.Kind, subject string) string {
		n := pki.Name{Prefix: "pulley", Kind: kind, Subject: subject, Incarnation: pki.NewIncarnation()}
		if kind == pki.KindNode {
			n.Environment = "dev"
		}
		return n.String()
	}
	end := time.Now().Add(time.Hour)
	ann, before, revoked, never := user(pki.KindOperator, "ann"), user(pki.KindOperator, "ann"), user(pki.KindOperator, "eve"), user(pki.KindOperator, "bob")
	node, former := user(pki.KindNode, "compute1"), user(pki.KindNode, "compute1")
	apply(t, st, "roles:\n  compute:\n    cardinality: 1\n    flavor: bare-metal\n")
	for _, err := range []error{
		access.IdentitiesIn(st).PutOperator(ctx, access.OperatorIdentity{Name: "ann", As: access.RoleViewer, User: ann, Replaces: before, Until: end}, 0),
		access.IdentitiesIn(st).PutOperator(ctx, access.OperatorIdentity{Name: "eve", As: access.RoleViewer, Revoked: &access.Revoked{At: time.Now()}}, 0),
		access.IdentitiesIn(st).Put(ctx, dev, access.Identity{Node: "compute1", Role: "compute", User: node, Replaces: former, Until: end}, 0),
		access.In(st).EnsureOperator(ctx, ann, access.RoleViewer), access.In(st).EnsureOperator(ctx, before, access.RoleViewer),
		access.In(st).EnsureOperator(ctx, revoked, access.RoleViewer), access.In(st).EnsureOperator(ctx, never, access.RoleViewer),
		access.In(st).EnsureEnvironment(ctx, "dev"), access.In(st).EnsureNode(ctx, "dev", "compute1", node), access.In(st).EnsureNode(ctx, "dev", "compute1", former),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	admin, _, err := access.IdentitiesIn(st).Operator(ctx, "admin")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{ann, node, admin.User, s.Certificates.User(), "root"}
	slices.Sort(want)
	startTasks(t, s)
	observe.Eventually(t, "the users are those with an owner", func() bool {
		users, err := access.In(st).Users(ctx)
		return err == nil && slices.Equal(users, want)
	})
}

// An outdated entry in the list of operators blocks the next rotation: the administrator's renewal must be recorded.
func TestRenewalOfAdministratorIsRecorded(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st := dialled(t, s.Connection)
	before, _, err := access.IdentitiesIn(st).Operator(t.Context(), "admin")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Certificates.CA.Rotate(false); err != nil {
		t.Fatal(err)
	}
	pin := s.Certificates.CA.Fingerprints()[0]
	startTasks(t, s)
	observe.Eventually(t, "it has a certificate of the CA that signs now", func() bool {
		o, _, err := access.IdentitiesIn(st).Operator(t.Context(), "admin")
		return err == nil && o.CA == pin && o.Key != before.Key && o.User == before.User
	})
}
