package access_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// The certificate of a removed node must not stay valid at a Puppet server because nobody remembers it, and the certificate of
// the machine that got its name must not be revoked in its place.
func TestRemovalRecordsWhatPuppetServersHave(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	spec := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "web", Cardinality: 2}}, Puppet: settings.PuppetSettings{
		Servers:  map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1", Name: "puppet.example.com"}},
		CA:       settings.PuppetCA{URL: "https://10.0.0.1", Also: []string{"https://ca.example:8141"}},
		PuppetDB: "https://puppetdb.example:8081",
	}}
	if err := specs.In(st).PutSpec(ctx, spec, 0); err != nil {
		t.Fatal(err)
	}
	remove := func(node string) {
		t.Helper()
		if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: node, Role: "web"}); err != nil {
			t.Fatal(err)
		}
		if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, node, access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
			t.Fatal(err)
		}
	}
	remove("web1")
	remove("web2")
	all, _, err := access.JoinsIn(st).Cleanups(ctx)
	if err != nil || len(all) != 2 || all[0].Certname != "web1" || all[0].Environment != fleettest.Dev || len(all[0].Steps) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []access.CleanupStep{
		{Kind: access.CleanCertificate, URL: "https://10.0.0.1", Name: "puppet.example.com"},
		{Kind: access.CleanCertificate, URL: "https://ca.example:8141"}, {Kind: access.CleanPuppetDB, URL: "https://puppetdb.example:8081"},
	} {
		if all[0].Steps[i] != want {
			t.Errorf("step %d is %+v, want %+v", i, all[0].Steps[i], want)
		}
	}

	// What is left, and why, is stored. A later removal begins again, and an older attempt does not end it.
	first := all[0]
	first.Steps = first.Steps[2:]
	first.Steps[0].Problem = "it is away"
	if err := access.JoinsIn(st).PutCleanup(ctx, first); err != nil {
		t.Fatal(err)
	}
	if c, err := access.JoinsIn(st).Cleanup(ctx, fleettest.Dev, "web1"); err != nil || c == nil || len(c.Steps) != 1 || c.Steps[0].Problem != "it is away" {
		t.Errorf("%+v, %v", c, err)
	}
	remove("web1")
	first.Steps = nil
	if err := access.JoinsIn(st).PutCleanup(ctx, first); err != nil {
		t.Fatal(err)
	}
	again, err := access.JoinsIn(st).Cleanup(ctx, fleettest.Dev, "web1")
	if err != nil || again == nil || len(again.Steps) != 3 {
		t.Fatalf("%+v, %v", again, err)
	}
	again.Environment = fleettest.Dev

	// A node that is back.
	if h, err := access.JoinsIn(st).Holder(ctx, fleettest.Dev, "web1"); err != nil || h.Returned() || h.Awaited() {
		t.Errorf("%+v, %v", h, err)
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "web1", Role: "web"}); err != nil {
		t.Fatal(err)
	}
	if h, err := access.JoinsIn(st).Holder(ctx, fleettest.Dev, "web1"); err != nil || !h.Returned() {
		t.Errorf("%+v, %v", h, err)
	}
	again.Steps = nil
	if err := access.JoinsIn(st).PutCleanup(ctx, *again); err != nil {
		t.Fatal(err)
	}
	if all, _, err := access.JoinsIn(st).Cleanups(ctx); err != nil || len(all) != 1 || all[0].Node != "web2" {
		t.Errorf("%+v, %v", all, err)
	}

	// The certificate of a server stays.
	remove("puppet.example.com")
	if c, err := access.JoinsIn(st).Cleanup(ctx, fleettest.Dev, "puppet.example.com"); err != nil || c == nil || len(c.Steps) != 1 || c.Steps[0].Kind != access.CleanPuppetDB {
		t.Errorf("%+v, %v", c, err)
	}

	// A node of another environment may have the name at the same CA or PuppetDB.
	prod := model.Ref{Environment: "prod"}
	namesake := func(url, want string) {
		t.Helper()
		other, err := access.JoinsIn(st).NamesakeAt(ctx, fleettest.Dev, "web2", url)
		if got := fmt.Sprint(other); err != nil || got != want {
			t.Errorf("at %s, %s has web2, %v; want %s", url, got, err, want)
		}
	}
	if err := specs.In(st).PutSpec(ctx, &environments.Environment{Name: "prod", Roles: spec.Roles, Puppet: settings.PuppetSettings{
		Servers: spec.Puppet.Servers, CA: settings.PuppetCA{URL: "https://10.0.0.2", Also: []string{"https://10.0.0.1:8140"}}, PuppetDB: "https://puppetdb.example",
	}}, 0); err != nil {
		t.Fatal(err)
	}
	namesake("https://10.0.0.1", "<nil>")
	if err := fleet.In(st).Register(ctx, "prod", model.Host{Node: "web2", Role: "web"}); err != nil {
		t.Fatal(err)
	}
	namesake("https://10.0.0.1", "prod")
	namesake("https://10.0.0.2:8140", "prod")
	namesake("https://puppetdb.example:8081", "prod")
	namesake("https://10.0.0.3", "<nil>")
	if err := access.JoinsIn(st).RemoveNode(ctx, prod, "web2", access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Fatal(err)
	}
	namesake("https://10.0.0.1", "<nil>")

	// Without Puppet servers there is nothing to clean.
	_, revision, err := specs.In(st).Spec(ctx, fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := specs.In(st).PutSpec(ctx, &environments.Environment{Name: "dev", Roles: spec.Roles}, revision); err != nil {
		t.Fatal(err)
	}
	remove("web1")
	if c, err := access.JoinsIn(st).Cleanup(ctx, fleettest.Dev, "web1"); err != nil || c != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

// A removal while the environment is damaged, of a newer Pulley or missing must leave a record: nobody else knows that the certificate is
// still valid.
func TestRemovalIsRecordedWhateverTheEnvironmentIs(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"damaged": "?", "newer": `{"v":99}`, "missing": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := etcdtest.Start(t)
			st, ctx, key := fleettest.Open(t, server, ""), t.Context(), "/pulley/v1/environments/dev/spec"
			if value != "" {
				if _, err := server.Client().Put(ctx, key, value); err != nil {
					t.Fatal(err)
				}
			}
			for _, node := range []string{"web1", "web2"} {
				if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: node, Role: "web"}); err != nil {
					t.Fatal(err)
				}
				if err := access.IdentitiesIn(st).Put(ctx, fleettest.Dev, access.Identity{Node: node, Role: "web", User: "pulley/node/dev/" + node + "/00000000000000aa", Incarnation: "00000000000000aa"}, 0); err != nil {
					t.Fatal(err)
				}
				if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, node, access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
					t.Fatal(err)
				}
			}
			all, damaged, err := access.JoinsIn(st).Cleanups(ctx)
			if err != nil || len(damaged) > 0 || len(all) != 2 || !all[0].Unread() || all[0].Certname != "web1" {
				t.Fatalf("%+v, %v, %v", all, damaged, err)
			}
			// An environment that can be repaired keeps the record; without one, a second removal drops it.
			if _, err := access.JoinsIn(st).ForgetNode(ctx, fleettest.Dev, "web2", access.Removal{At: time.Now(), By: "ann"}, records.Left); (err == nil) != (value == "") {
				t.Errorf("a second removal: %v", err)
			}
			c, err := access.JoinsIn(st).Cleanup(ctx, fleettest.Dev, "web2")
			if err != nil || c.Unread() != (value != "") {
				t.Errorf("after a second removal: %+v, %v", c, err)
			}
			if h, err := access.JoinsIn(st).Holder(ctx, fleettest.Dev, "web1"); err != nil || h.Awaited() {
				t.Errorf("%+v, %v", h, err)
			}
		})
	}
}

// The certificates of nodes in a destroyed environment must not stay valid, forgotten.
func TestDestructionRecordsWhatPuppetServersHave(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	spec := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "web", Cardinality: 2}}, Puppet: settings.PuppetSettings{
		Servers: map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1", Name: "puppet.example.com"}}, CA: settings.PuppetCA{URL: "https://10.0.0.1"},
	}}
	if err := specs.In(st).PutSpec(ctx, spec, 0); err != nil {
		t.Fatal(err)
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "web1", Role: "web"}); err != nil {
		t.Fatal(err)
	}
	if _, err := fleettest.DestroyEnvironment(ctx, st, fleettest.Dev, "ann", true); err != nil {
		t.Fatal(err)
	}
	if all, _, err := access.JoinsIn(st).Cleanups(ctx); err != nil || len(all) != 1 || all[0].Node != "web1" || len(all[0].Steps) != 1 || all[0].Steps[0].Kind != access.CleanCertificate {
		t.Errorf("%+v, %v", all, err)
	}
}

// A node that was removed after its environment got another CA or PuppetDB must not stay valid at the former ones.
func TestRemovalCleansWhatTheEnvironmentNamedBefore(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	revision := int64(0)
	put := func(ca, puppetdb string) {
		t.Helper()
		a, err := records.In(st).BeginApply(ctx, fleettest.Dev, "ann")
		if err != nil {
			t.Fatal(err)
		}
		revision, err = a.PutSpec(ctx, &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "web", Cardinality: 4}}, Puppet: settings.PuppetSettings{
			Servers: map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1", Name: "puppet.example.com"}},
			CA:      settings.PuppetCA{URL: ca}, PuppetDB: puppetdb,
		}}, revision)
		if err := errors.Join(err, a.Close()); err != nil {
			t.Fatal(err)
		}
	}
	join := func(node string) {
		t.Helper()
		i := access.Identity{Node: node, Role: "web", User: "pulley/node/dev/" + node + "/00000000000000aa", Incarnation: "00000000000000aa", Revision: revision}
		if err := errors.Join(access.IdentitiesIn(st).Put(ctx, fleettest.Dev, i, 0), fleet.In(st).Register(ctx, "dev", model.Host{Node: node, Role: "web"})); err != nil {
			t.Fatal(err)
		}
	}
	left := func(node string, want ...string) *access.Cleanup {
		t.Helper()
		c, err := access.JoinsIn(st).Cleanup(ctx, fleettest.Dev, node)
		got := []string{}
		for i := 0; c != nil && i < len(c.Steps); i++ {
			got = append(got, strings.TrimSpace(string(c.Steps[i].Kind)+" "+c.Steps[i].URL+" "+c.Steps[i].Name))
		}
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s: %q, %v; want %q", node, got, err, want)
		}
		return c
	}
	removal := access.Removal{At: time.Now(), By: "ann"}
	remove := func(node string) {
		t.Helper()
		if err := access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, node, removal, records.Left); err != nil {
			t.Fatal(err)
		}
	}
	const caA, caB, dbA, dbB = "certificate https://10.0.0.1 puppet.example.com", "certificate https://ca.example", "puppetdb https://db-a.example", "puppetdb https://db-b.example"
	put("https://10.0.0.1", "https://db-a.example")
	for _, node := range []string{"web1", "web2", "ca.example"} {
		join(node)
	}
	put("https://ca.example", "https://db-b.example")
	join("web3")
	remove("web1")
	left("web1", caB, dbB, caA, dbA)
	remove("web3") // it joined later
	left("web3", caB, dbB)

	// Named again, and no Puppet server at all: each server once.
	put("https://10.0.0.1", "https://db-a.example")
	put("", "")
	remove("web2")
	c := left("web2", caB, dbB, caA, dbA)
	remove("ca.example") // the certificate of a server stays
	left("ca.example", dbB, caA, dbA)

	// A former server that is gone for ever: what failed there can be forgotten, and nothing else.
	put("https://10.0.0.1", "")
	for i := range c.Steps[:3] {
		c.Steps[i].Problem = "it is away"
	}
	c.Environment = fleettest.Dev
	if err := access.JoinsIn(st).PutCleanup(ctx, *c); err != nil {
		t.Fatal(err)
	}
	if _, err := access.JoinsIn(st).ForgetNode(ctx, fleettest.Dev, "web2", removal, records.Left); err != nil {
		t.Error(err)
	}
	left("web2", caA, dbA)

	// A removal while the environment is unreadable, and a destruction.
	join("web4")
	spec, err := server.Client().Get(ctx, "/pulley/v1/environments/dev/spec")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/spec", `{"v":99}`); err != nil {
		t.Fatal(err)
	}
	remove("web4")
	if c := left("web4", "unread"); c != nil {
		if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/spec", string(spec.Kvs[0].Value)); err != nil {
			t.Fatal(err)
		}
		c.Environment = fleettest.Dev
		if _, err := access.JoinsIn(st).FindSteps(ctx, *c); err != nil {
			t.Error(err)
		}
		left("web4", caA, caB, dbB, dbA)
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "web5", Role: "web"}); err != nil {
		t.Fatal(err)
	}
	if _, err := fleettest.DestroyEnvironment(ctx, st, fleettest.Dev, "ann", true); err != nil {
		t.Fatal(err)
	}
	left("web5", caA, caB, dbB, dbA)
}
