package records_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// neighbours are names that begin or end like the destroyed one.
var neighbours = []string{"dev", "dev@t4", "dev@t42", "dev@t421", "dev@4", "dev2", "de", "dev_t4", "production"}

// settled writes all possible parts of some environments: every key of the table, tokens and notices, users and roles.
func settled(t *testing.T, server *etcdtest.Auth, environs []string) {
	t.Helper()
	st, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(key, value string) { t.Helper(); _, err := raw.Put(ctx, key, value); must(err) }
	for i, env := range environs {
		for _, row := range etcdtest.TableOfKeys(t, env, "web1", "") {
			if strings.Contains(row.Key, "/tokens/") || strings.HasSuffix(row.Key, "/applying") || strings.Contains(row.Key, "/destroyed/") || strings.Contains(row.Key, "/machines/web1") || strings.Contains(row.Key, "/notices/") || strings.Contains(row.Key, "/status/") {
				continue // written below, like their real writers do
			}
			put(row.Key, `{"v":1}`)
		}
		put("/pulley/v1/runs/"+env+"/old.example.com/2", "x")
		must(access.In(st).EnsureEnvironment(ctx, env))
		for n, node := range []string{"web1", "old.example.com"} {
			must(access.In(st).EnsureNode(ctx, env, node, fmt.Sprintf("pulley/node/%s/%s/%016x", env, node, 16*i+n+1)))
			must(control.In(st).Report(ctx, model.Identity{Node: node, Environment: env}, model.Status{Node: node}, nil, nil))
		}
		for _, node := range []string{"", "web1"} {
			_, _, err := access.TokensIn(st).Create(ctx, access.Token{Environment: env, Node: node, Uses: 1, Created: time.Now(), Expires: time.Now().Add(time.Hour)})
			must(err)
		}
		_, err := notify.NoticesIn(st).Add(ctx, notify.Notice{ID: "silent:" + env, Kind: "silent", Environment: env, At: time.Now()})
		must(err)
	}
	_, _, err := access.TokensIn(st).Create(ctx, access.Token{Operator: "ann", As: access.RoleAdmin, Uses: 1, Created: time.Now(), Expires: time.Now().Add(time.Hour)})
	must(err)
	put("/pulley/v1/notices/of-none", `{"v":1,"id":"of-none"}`)
	put("/other/key", "not ours")
}

// concerns reports whether the destruction of an environment must delete a line of a dump. Such a line has the name as
// a complete segment, or is one of its tokens or notices.
func concerns(line, env string) bool {
	subject, value, _ := strings.Cut(line, ": ")
	kind, name, _ := strings.Cut(subject, " ")
	name, _, _ = strings.Cut(name, " at ")
	if strings.Contains(name, "/cleanups/") { // Puppet servers still have its nodes: serve deletes it when they no longer do
		return false
	}
	if strings.Contains(name, "/destroyed/") { // the epochs of the next one follow
		return strings.Contains(value, `"unfinished":true`)
	}
	if slices.Contains(strings.Split(name, "/"), env) {
		return true
	}
	return kind == "key" && (strings.Contains(name, "/tokens/nodes/") || strings.Contains(name, "/notices/")) && strings.Contains(value, `"environment":"`+env+`"`)
}

// differ returns the differences of two dumps. It ignores the number of leases: leases of deleted keys end by
// themselves.
func differ(before, after []string) (gone, come []string) {
	has := func(all []string, line string) bool { _, ok := slices.BinarySearch(all, line); return ok }
	for _, line := range before {
		if !has(after, line) && !strings.HasSuffix(line, " leases") {
			gone = append(gone, line)
		}
	}
	for _, line := range after {
		if !has(before, line) && !strings.HasSuffix(line, " leases") {
			come = append(come, line)
		}
	}
	return gone, come
}

// Otherwise the destruction of one stack would delete its neighbours' data, or leave users that can still write.
func TestDestroyDeletesOnlyItsEnvironment(t *testing.T) {
	t.Parallel()
	for _, env := range []string{"dev", "dev@t4", "dev@t42"} {
		t.Run(env, func(t *testing.T) {
			server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
			settled(t, server, neighbours)
			ref, err := model.ParseRef(env)
			if err != nil {
				t.Fatal(err)
			}
			before := server.Everything()
			preview, err := records.In(server.Admin()).PartsOf(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			d, err := fleettest.DestroyEnvironment(t.Context(), server.Admin(), ref, "ann", true)
			if err != nil {
				t.Fatal(err)
			}
			if d != preview {
				t.Errorf("the preview counts %+v, and it destroyed %+v", preview, d)
			}
			gone, come := differ(before, server.Everything())
			// The environment of this test cannot be read: what Puppet servers have of its nodes is recorded.
			recorded := func(line string) bool {
				return strings.HasPrefix(line, "key /pulley/v1/cleanups/"+env+"/") || strings.HasPrefix(line, "key /pulley/v1/destroyed/"+env+" ")
			}
			gone, come = slices.DeleteFunc(gone, recorded), slices.DeleteFunc(come, recorded)
			var want []string
			keys, users, roles := int64(0), 0, 0
			for _, line := range before {
				if !concerns(line, env) {
					continue
				}
				want = append(want, line)
				switch kind, _, _ := strings.Cut(line, " "); kind {
				case "key":
					keys++
				case "user":
					users++
				case "role":
					roles++
				}
			}
			if !slices.Equal(gone, want) {
				t.Errorf("gone is\n%s\nand should be\n%s", strings.Join(gone, "\n"), strings.Join(want, "\n"))
			}
			if len(come) > 0 {
				t.Errorf("this came, or changed:\n%s", strings.Join(come, "\n"))
			}
			if d != (records.Destroyed{Keys: keys, Users: users, Roles: roles}) || users != 2 || roles != 3 || keys < 25 {
				t.Errorf("it says %+v, and took %d keys, %d users, %d roles", d, keys, users, roles)
			}
			if d, err := fleettest.DestroyEnvironment(t.Context(), server.Admin(), ref, "ann", true); err != nil || d != (records.Destroyed{}) {
				t.Errorf("once more: %+v, %v", d, err)
			}
		})
	}
}

// Forgotten machines run on and cost money forever.
func TestEnvironmentWithMachinesIsNotDestroyed(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), t.Context()
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	r := machines.Record{Node: "web1", Name: "web1", Phase: machines.Retiring}
	if err := errors.Join(a.Put(ctx, r, nil), fleet.In(st).Register(ctx, "dev", model.Host{Node: "web2"})); err != nil {
		t.Fatal(err)
	}
	before := server.Everything()
	refused := func(hosts bool, why string) {
		t.Helper()
		if d, err := a.Destroy(ctx, hosts); err == nil || !strings.Contains(err.Error(), why) || d != (records.Destroyed{}) {
			t.Errorf("it is destroyed: %+v, %v", d, err)
		}
	}
	refused(true, "still has 1 machines that pulley created")
	if gone, come := differ(before, server.Everything()); len(gone)+len(come) > 0 {
		t.Errorf("refused, and yet %q went and %q came", gone, come)
	}
	if err := a.Drop(ctx, r); err != nil {
		t.Fatal(err)
	}
	refused(false, "host list still has 1 hosts")
	if _, err := fleettest.DestroyEnvironment(ctx, st, fleettest.Dev, "bob", true); err == nil || !strings.Contains(err.Error(), "ann applies") {
		t.Errorf("during an apply: %v", err)
	}
	if _, err := a.Destroy(ctx, true); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if left := slices.Collect(maps.Keys(fleettest.Contents(t, server))); !slices.Equal(left, []string{"/pulley/v1/installation"}) {
		t.Errorf("left are %q", left)
	}
	if err := errors.Join(access.In(st).EnsureOperatorRoles(ctx), access.In(st).EnsureOperator(ctx, fleettest.Operator, access.RoleOperator)); err != nil {
		t.Fatal(err)
	}
	if _, err := fleettest.DestroyEnvironment(ctx, server.DB(fleettest.Operator), fleettest.Dev, "olga", true); err == nil || !strings.Contains(err.Error(), "admin") {
		t.Errorf("by an operator: %v", err)
	}
}

// Only the next destruction finds the rest of an interrupted one. The test interrupts it before each of its calls to
// etcd. Until it is finished, an environment of this name would take over the rest.
func TestInterruptedDestroyResumes(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	ref := model.Ref{Environment: "dev", Stack: "t4"}
	cuts := 0
	for calls := int32(1); ; calls++ {
		settled(t, server, []string{"dev@t4", "dev"})
		ctx, cancel := context.WithCancel(t.Context())
		etcdtest.CancelAfter(server.Admin(), calls, cancel, func(st *etcd.DB) {
			_, err := fleettest.DestroyEnvironment(ctx, st, ref, "ann", true)
			if err != nil {
				cuts++
			}
		})
		whole := ctx.Err() == nil
		cancel()
		left := slices.ContainsFunc(server.Everything(), func(line string) bool { return concerns(line, ref.String()) })
		if parts, err := records.In(server.Admin()).PartsOf(t.Context(), ref); err != nil || (parts != records.Destroyed{}) != left {
			t.Errorf("cut off after %d calls, something is left: %t, and the parts are %+v (%v)", calls, left, parts, err)
		}
		if left {
			a, err := records.In(server.Admin()).BeginApply(t.Context(), ref, "ann")
			if err != nil {
				t.Fatal(err)
			}
			_, err = a.PutSpec(t.Context(), &environments.Environment{Name: "dev", Stack: "t4"}, 0)
			if closed := a.Close(); closed != nil || !errors.Is(err, machines.ErrDestroying) && !errors.Is(err, machines.ErrChanged) {
				t.Errorf("cut off after %d calls, an environment of this name is stored: %v, %v", calls, err, closed)
			}
		}
		if _, err := fleettest.DestroyEnvironment(t.Context(), server.Admin(), ref, "ann", true); err != nil {
			t.Fatalf("cut off after %d calls: %v", calls, err)
		}
		for _, line := range server.Everything() {
			if concerns(line, ref.String()) {
				t.Errorf("cut off after %d calls, this is left: %s", calls, line)
			}
		}
		if whole {
			break
		}
	}
	if cuts < 10 {
		t.Errorf("it was cut off %d times only", cuts)
	}
	t.Logf("cut off %d times", cuts)
}

// A remaining part stays forever if the next destruction reports that nothing exists.
func TestAnyKeyOfEnvironmentIsFound(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, raw, ctx := server.Admin(), server.ClientOf(etcdtest.Serve), t.Context()
	settled(t, server, []string{"dev@t4", "dev@t421", "de"})
	ref := model.Ref{Environment: "dev", Stack: "t42"}
	env := ref.String()
	found := func(what string, want bool) {
		t.Helper()
		if got, err := records.In(st).PartsOf(ctx, ref); err != nil || (got != records.Destroyed{}) != want {
			t.Errorf("with %s: %+v, should be something: %t (%v)", what, got, want, err)
		}
	}
	found("its neighbours", false)
	things := map[string]func() error{
		"a token": func() error {
			_, _, err := access.TokensIn(st).Create(ctx, access.Token{Environment: env, Uses: 1, Created: time.Now(), Expires: time.Now().Add(time.Hour)})
			return err
		},
		"a notice": func() error {
			_, err := notify.NoticesIn(st).Add(ctx, notify.Notice{ID: "silent:" + env, Kind: "silent", Environment: env, At: time.Now()})
			return err
		},
		"the role of its nodes": func() error { return access.In(st).EnsureEnvironment(ctx, env) },
		"a user": func() error {
			_, err := raw.UserAddWithOptions(ctx, "pulley/node/"+env+"/web1/0000000000000001", "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		},
	}
	for _, row := range etcdtest.TableOfKeys(t, env, "web1", "") {
		if strings.Contains(row.Key, "/"+env+"/") && !strings.HasSuffix(row.Key, "/applying") && !strings.Contains(row.Key, "/cleanups/") && !strings.Contains(row.Key, "/destroyed/") && !strings.Contains(row.Key, "/machines/web1") {
			things[row.Key] = func() error { _, err := raw.Put(ctx, row.Key, `{"v":1}`); return err }
		}
	}
	for what, make := range things {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		found(what, true)
		if _, err := fleettest.DestroyEnvironment(ctx, st, ref, "ann", true); err != nil {
			t.Fatalf("with %s: %v", what, err)
		}
		found("no "+what, false)
	}
	if err := errors.Join(access.In(st).EnsureOperatorRoles(ctx), access.In(st).EnsureOperator(ctx, fleettest.Operator, access.RoleOperator)); err != nil {
		t.Fatal(err)
	}
	if parts, err := records.In(server.DB(fleettest.Operator)).PartsOf(ctx, ref); err != nil || parts != (records.Destroyed{}) {
		t.Errorf("an operator, who may not look at users: %+v, %v", parts, err)
	}
}

// The machines of a destroyed environment may come back to the next one of its name: a rollout with an epoch below those that they saw pauses
// as one of an old backup, and a node does not answer an order with an ID that it had before.
func TestRecreatedEnvironmentContinuesEpochs(t *testing.T) {
	t.Parallel()
	st, ctx := etcdtest.StartAuth(t, etcdtest.AuthOptions{}).Admin(), t.Context()
	a := targets.Author{By: "ann", At: time.Now()}
	create := func() {
		t.Helper()
		apply := fleettest.Begin(t, st, fleettest.Dev, "ann")
		if _, err := apply.PutSpec(ctx, &environments.Environment{Name: "dev"}, 0); err != nil {
			t.Fatal(err)
		}
		if err := apply.Close(); err != nil {
			t.Fatal(err)
		}
	}
	change := func(want model.Epoch) {
		t.Helper()
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		c, err := targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{}, targets.Promoted, model.Target{}, a)
		if err != nil || c.Epoch != want {
			t.Fatalf("the change has epoch %d (%v), want %d", c.Epoch, err, want)
		}
	}
	next := model.Epoch(1)
	for _, changes := range []int{2, 0, 1} {
		create()
		for range changes {
			change(next)
			next++
		}
		if _, err := fleettest.DestroyEnvironment(ctx, st, fleettest.Dev, "ann", true); err != nil {
			t.Fatal(err)
		}
		if parts, err := records.In(st).PartsOf(ctx, fleettest.Dev); err != nil || parts != (records.Destroyed{}) {
			t.Errorf("left are %+v (%v)", parts, err)
		}
		next++ // of the environment that is made again
	}
}
