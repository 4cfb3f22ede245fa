package serve

import (
	"slices"
	"testing"
	"time"

	"pulley/internal/pki"
	"pulley/internal/store"
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
		st.Identities.PutOperator(ctx, store.OperatorIdentity{Name: "ann", As: store.RoleViewer, User: ann, Replaces: before, Until: end}, 0),
		st.Identities.PutOperator(ctx, store.OperatorIdentity{Name: "eve", As: store.RoleViewer, Revoked: &store.Revoked{At: time.Now()}}, 0),
		st.Identities.Put(ctx, dev, store.Identity{Node: "compute1", Role: "compute", User: node, Replaces: former, Until: end}, 0),
		st.Access.EnsureOperator(ctx, ann, store.RoleViewer), st.Access.EnsureOperator(ctx, before, store.RoleViewer),
		st.Access.EnsureOperator(ctx, revoked, store.RoleViewer), st.Access.EnsureOperator(ctx, never, store.RoleViewer),
		st.Access.EnsureEnvironment(ctx, "dev"), st.Access.EnsureNode(ctx, "dev", "compute1", node), st.Access.EnsureNode(ctx, "dev", "compute1", former),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	admin, _, err := st.Identities.Operator(ctx, "admin")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{ann, node, admin.User, s.Certificates.User(), "root"}
	slices.Sort(want)
	startTasks(t, s)
	observe.Eventually(t, "the users are those with an owner", func() bool {
		users, err := st.Access.Users(ctx)
		return err == nil && slices.Equal(users, want)
	})
}

// An outdated entry in the list of operators blocks the next rotation: the administrator's renewal must be recorded.
func TestRenewalOfAdministratorIsRecorded(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	st := dialled(t, s.Connection)
	before, _, err := st.Identities.Operator(t.Context(), "admin")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Certificates.CA.Rotate(false); err != nil {
		t.Fatal(err)
	}
	pin := s.Certificates.CA.Fingerprints()[0]
	startTasks(t, s)
	observe.Eventually(t, "it has a certificate of the CA that signs now", func() bool {
		o, _, err := st.Identities.Operator(t.Context(), "admin")
		return err == nil && o.CA == pin && o.Key != before.Key && o.User == before.User
	})
}
