package store_test

import (
	"testing"

	"pulley/environments"
	"pulley/internal/model"
	"pulley/internal/store"
)

// A member of a role that has not joined yet takes the role's target. A permit for the target of all nodes would not let it
// go back.
func TestPermitFollowsTheRoleOfAMember(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	ctx := t.Context()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1, members: [old.example]}\n"))
	if err == nil {
		err = st.Environments.PutSpec(ctx, e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	for scope, target := range map[store.Scope]model.Target{
		{}: published(t, st, "2.0.0", "b"), {Role: "web"}: published(t, st, "1.0.0", "a"), {Node: "old.example"}: published(t, st, "2.0.0", "b"),
	} {
		if _, err := st.Targets.Promote(ctx, dev, desires(t, st, dev), scope, store.Promoted, target, me); err != nil {
			t.Fatal(err)
		}
	}
	if lower, err := st.Targets.Lowers(ctx, dev, desires(t, st, dev), store.Scope{Node: "old.example"}, model.Target{}, me.At); err != nil || !lower {
		t.Errorf("a node that takes 1.0.0 of its role after 2.0.0 needs no permit: %t, %v", lower, err)
	}
}
