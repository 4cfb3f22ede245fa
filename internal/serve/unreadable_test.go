package serve

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/observe"
)

// One environment that cannot be read stopped the certificates, users, first boots and holds of all others.
func TestUnreadableEnvironmentStopsNoOther(t *testing.T) {
	t.Parallel()
	st, server := backedUp(t)
	raw, ctx := server.Client(), t.Context()
	put := func(key, value string) {
		t.Helper()
		if _, err := raw.Put(ctx, "/pulley/v1/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, st, "puppet: {servers: {eu1: {address: 10.0.0.1}}, ca: {url: \"https://ca.example.com:8140\", how: presigned}}\nroles:\n  web: {cardinality: 4}\n")
	for key, value := range map[string]string{
		"spec": `{"v":99}`, "gate": "x", "desired/default": "x", "hosts/nodes/web1": "x", "holds/all": "x", "hosts/exports/web1": "x",
	} {
		put("environments/bad/"+key, value)
	}
	for _, kind := range []string{"status/", "facts/", "identities/", "precreated/", "cleanups/", "presigned/", "firstboots/", "machines/", "floods/", "retirements/", "recipients/"} {
		put(kind+"bad/web1", "x")
	}
	// Of this environment, too, two nodes cannot be read.
	put("identities/dev/web1", "x")
	put("precreated/dev/web2", `{"v":99}`)
	put("presigned/dev/web1", "x")
	log := &observe.Log{}
	tasks, err := NewTasks(TasksConfig{DB: st, Now: time.Now, Log: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	named := func(what string, err error, keys ...string) {
		t.Helper()
		for _, key := range keys {
			if err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s: the error does not name %s: %v", what, key, err)
			}
		}
	}
	named("users", tasks.precreate(ctx, true), "environments/bad/spec", "precreated/dev/web2")
	reserves, _, err := access.IdentitiesIn(st).Precreated(ctx, dev)
	if err != nil || len(reserves) != 2 || !reserves["web3"].Ready || !reserves["web4"].Ready {
		t.Errorf("users of dev: %v, %v", reserves, err)
	}
	// A key that its machine did not fetch is deleted.
	err = access.IdentitiesIn(st).Put(ctx, dev, access.Identity{Node: "web3", Role: "web", User: "u", Joined: time.Now().Add(-2 * unfetchedKept)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	put("presigned/dev/web3", `{"v":1,"key":"k"}`)
	presigning := &presigning{Tasks: tasks, failed: pauses{}}
	named("certificates", presigning.work(ctx), "environments/bad/spec")
	if made, err := access.IdentitiesIn(st).Presigned(ctx, dev, "web3"); err != nil || made != nil {
		t.Errorf("the key of web3 stays: %v", err)
	}
	put("floods/dev/web4", `{"v":1,"node":"web4","last":"2020-01-01T00:00:00Z"}`)
	if err := errors.Join(tasks.each(tasks.checkBoots)(ctx), tasks.each(tasks.forget)(ctx)); err != nil {
		t.Error(err)
	}
	if floods, _, err := fleet.In(st).Floods(ctx, dev); err != nil || len(floods) != 0 {
		t.Errorf("an old flood stays: %v", err)
	}
	put("environments/dev/holds/all", `{"v":1,"mode":"freeze","until":"2020-01-01T00:00:00Z"}`)
	if n, err := fleet.In(st).EndHolds(ctx, time.Now()); err != nil || n != 1 {
		t.Errorf("%d holds ended: %v", n, err)
	}
	put("cleanups/dev/web9", `{"v":1,"node":"web9","steps":[]}`)
	all, damaged, err := access.JoinsIn(st).Cleanups(ctx)
	if err != nil || len(all) != 1 || len(damaged) != 1 || !strings.Contains(damaged[0], "cleanups/bad/web1") {
		t.Errorf("cleanups: %v, %v, %v", all, damaged, err)
	}
	if other, err := access.JoinsIn(st).NamesakeAt(ctx, dev, "web9", "https://ca.example.com:8140"); err != nil || other != nil {
		t.Errorf("a namesake: %v, %v", other, err)
	}
	refs, err := specs.In(st).Named(ctx)
	if err != nil || len(refs) != 2 || refs[0] != (model.Ref{Environment: "bad"}) {
		t.Errorf("%v, %v", refs, err)
	}
}
