package access_test

import (
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// After a restore, a node whose machine etcd refuses looked converged for 20 minutes, and a machine of a name that the environment of the backup does
// not call for was shown nowhere. A machine that was removed or replaced on purpose must say
// nothing, as long as it runs, and no certificate may write more than the one key of its own node.
func TestLockoutsAreOfMachinesThatMayBelong(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	joinedAt := time.Now().Add(-time.Hour).UTC()
	if err := specs.In(st).PutSpec(ctx, &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "controller", Cardinality: 4}}}, 0); err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		if _, err := server.ClientOf(etcdtest.Serve).Put(ctx, "/pulley/v1/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	name := func(node, incarnation string) pki.Name {
		return pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: node, Incarnation: incarnation}
	}
	const own, other = "0123456789abcdef", "fedcba9876543210"
	live := name("controller2", own)
	fleettest.Joined(t, server, "controller2", live.String())
	at := joinedAt.Format(time.RFC3339)
	put("identities/dev/controller1", `{"v":1,"node":"controller1","user":"pulley/node/dev/controller1/`+own+`","joined":"`+at+`"}`)
	put("identities/dev/controller3", `{"v":1,"node":"controller3","removed":{"at":"`+at+`"}}`)
	for _, c := range []struct {
		say    string
		name   pki.Name
		issued time.Duration // after the join, or the removal
		noted  bool
	}{
		{"its record is older than its certificate", name("controller1", other), time.Minute, true},
		{"another machine replaced it", name("controller1", other), -time.Minute, false},
		{"its own user is gone", name("controller1", own), -time.Minute, true},
		{"its removal was restored", name("controller3", other), time.Minute, true},
		{"it was removed", name("controller3", other), -time.Minute, false},
		{"etcd forgot that it ever joined", name("controller4", other), 0, true},
		{"no environment calls for it", name("controller5", other), 0, true},
		{"its user was made a moment ago", live, 0, false},
		{"it is of another fleet", pki.Name{Prefix: "other", Kind: pki.KindNode, Environment: "dev", Subject: "controller1", Incarnation: other}, time.Minute, false},
		{"there is no such environment", pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "prod", Subject: "controller1", Incarnation: other}, time.Minute, false},
		{"it is an operator", pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: "controller1", Incarnation: other}, time.Minute, false},
	} {
		before := fleettest.Contents(t, server)
		for range 2 {
			if err := access.IdentitiesIn(st).NoteLockout(ctx, c.name, joinedAt.Add(c.issued), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		written := len(fleettest.Contents(t, server)) - len(before)
		f, err := fleet.In(st).State(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		one, err := fleet.In(st).One(ctx, fleettest.Dev, c.name.Subject)
		if err != nil {
			t.Fatal(err)
		}
		_, noted := f.Lockouts[c.name.Subject]
		if f.LockedOut(c.name.Subject) != nil != c.noted {
			t.Errorf("%s: of the fleet: %t", c.say, !c.noted)
		}
		if shown := one.Desired("controller", c.name.Subject).LockedOut != nil; noted != c.noted || shown != c.noted || written > 1 || !c.noted && written > 0 {
			t.Errorf("%s: noted %t, shown %t, %d keys", c.say, noted, shown, written)
		}
		if err := access.IdentitiesIn(st).ForgetLockouts(ctx, fleettest.Dev, time.Now()); err != nil {
			t.Fatal(err)
		}
	}

	// Its report ends it, also one of a clock that is ahead.
	l := model.Lockout{Last: time.Now()}
	for say, st := range map[string]model.Status{
		"before": {SeenAt: l.Last.Add(-time.Second)}, "ahead, before": {SeenAt: l.Last.Add(time.Hour), Before: l.Last.Add(-time.Minute)},
	} {
		if st.Ends(l) {
			t.Error(say)
		}
	}
	if after := (&model.Status{SeenAt: l.Last.Add(time.Second)}); !after.Ends(l) {
		t.Error("after")
	}
	if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller2", access.Removal{At: time.Now()}, records.Left); err != nil {
		t.Fatal(err)
	}
}
