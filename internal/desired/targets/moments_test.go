package targets_test

import (
	"errors"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A serve that took a changed environment for one that went back in time would pause it for nothing; one that missed it would let old orders continue.
func TestMomentsThatGoBack(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx, client := fleettest.Open(t, server, ""), t.Context(), server.Client()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1}\n"))
	if err == nil {
		err = specs.In(st).PutSpec(ctx, e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	refs := []model.Ref{fleettest.Dev, {Environment: "other"}}
	change := func() {
		t.Helper()
		d := fleettest.Desires(t, st, fleettest.Dev)
		if _, err := targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{Role: "web"}, targets.Promoted, model.Target{}, fleettest.Me); err != nil {
			t.Fatal(err)
		}
	}
	last := targets.Moment{}
	look := func() (behind []string) {
		t.Helper()
		now, err := targets.In(st).Moment(ctx, refs, last)
		if err != nil {
			t.Fatal(err)
		}
		behind, last = now.Behind(last), now
		return behind
	}
	const history, gate = "/pulley/v1/environments/dev/history/000000000002", "/pulley/v1/environments/dev/gate"
	for name, c := range map[string]struct {
		do     func() error
		behind int
	}{
		"nothing":        {func() error { return nil }, 0},
		"another change": {func() error { change(); return nil }, 0},
		"a lower epoch":  {func() error { _, err := client.Put(ctx, gate, `{"v":1,"epoch":1,"state":"open"}`); return err }, 1},
		"another history": {func() error {
			_, err := client.Put(ctx, history, `{"v":1,"epoch":2,"kind":"promote","by":"bob"}`)
			return err
		}, 1},
		"made again": {func() error {
			_, err := client.Delete(ctx, gate)
			_, other := client.Put(ctx, gate, `{"v":1,"epoch":1,"state":"open"}`)
			return errors.Join(err, other)
		}, 0},
		"an unreadable change": {func() error {
			_, err := client.Put(ctx, "/pulley/v1/environments/dev/history/000000000003", "damaged")
			_, other := client.Put(ctx, gate, `{"v":1,"epoch":3,"state":"open"}`)
			look()
			_, third := client.Delete(ctx, "/pulley/v1/environments/dev/history/000000000003") // by doctor
			return errors.Join(err, other, third)
		}, 0},
		"unreadable": {func() error { _, err := client.Put(ctx, gate, "damaged"); return err }, 0},
	} {
		if _, err := client.Delete(ctx, "/pulley/v1/environments/dev/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		if err := specs.In(st).PutSpec(ctx, e, 0); err != nil {
			t.Fatal(err)
		}
		change()
		change()
		look()
		if behind := look(); len(behind) > 0 {
			t.Errorf("%s: before it, %v", name, behind)
		}
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if behind := look(); len(behind) != c.behind {
			t.Errorf("%s: %v are behind", name, behind)
		}
	}
	if _, err := client.Delete(ctx, gate); err != nil {
		t.Fatal(err)
	}
	change()
	look()
	for name, lose := range map[string]func(*targets.Acts){ // that etcd had then, and does not have at that revision now
		"an abort":     func(a *targets.Acts) { a.Gate++ },
		"a hold":       func(a *targets.Acts) { a.Hold, a.Holds = last.Revision, 1 },
		"another gate": func(a *targets.Acts) { a.Gate-- },
	} {
		was := last
		r := was.Reached["dev"]
		lose(&r.Acts)
		was.Reached = map[string]targets.Reach{"dev": r}
		if now, err := targets.In(st).Moment(ctx, refs, was); err != nil || len(now.Behind(was)) != 1 {
			t.Errorf("%s is lost: %v are behind: %v", name, now.Behind(was), err)
		}
	}
	last.Revision += 1_000_000
	if _, err := client.Delete(ctx, gate); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, gate, `{"v":1,"epoch":1,"state":"open"}`); err != nil {
		t.Fatal(err)
	}
	if behind := look(); len(behind) != 1 {
		t.Errorf("a lower revision: %v are behind", behind)
	}
}

// Changes while serve reads many environments are no step back.
func TestMomentOfManyEnvironments(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, client := fleettest.Open(t, server, ""), server.Client()
	var refs []model.Ref
	for i := range 30 {
		refs = append(refs, model.Ref{Environment: fmt.Sprintf("e%02d", i)})
	}
	epoch := 0
	set := func() {
		epoch++
		for _, ref := range []model.Ref{refs[0], refs[29]} {
			if _, err := client.Put(t.Context(), "/pulley/v1/environments/"+ref.Environment+"/gate", fmt.Sprintf(`{"v":1,"epoch":%d,"state":"open"}`, epoch)); err != nil {
				t.Error(err)
			}
		}
	}
	set()
	writes := 0
	etcdtest.BeforeCalls(st, func(call int32) {
		if call > 1 {
			writes++
			set()
		}
	})
	var last targets.Moment
	for range 3 {
		now, err := targets.In(st).Moment(t.Context(), refs, last)
		if err != nil {
			t.Fatal(err)
		}
		if behind := now.Behind(last); len(behind) > 0 || len(now.Reached) != 2 {
			t.Errorf("%v of %v are behind", behind, now.Reached)
		}
		last = now
	}
	if writes < 5 {
		t.Errorf("%d writes", writes)
	}
}
