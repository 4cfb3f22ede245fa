package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/choice"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// Operators depend on targets, epochs and rollbacks in an emergency.
func TestPromotionsAndRollbacksSetCompleteTargets(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	desires := func() targets.Desires {
		t.Helper()
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	promote := func(scope etcd.Scope, target model.Target) {
		t.Helper()
		if _, err := targets.In(st).Promote(ctx, fleettest.Dev, desires(), scope, targets.Promoted, target, fleettest.Me); err != nil {
			t.Fatal(err)
		}
	}
	rollback := func(scope etcd.Scope) {
		t.Helper()
		history, _, err := targets.In(st).History(ctx, fleettest.Dev, 0)
		if err != nil {
			t.Fatal(err)
		}
		undo, ok := targets.Undo(history, scope)
		if !ok {
			t.Fatal("nothing to undo")
		}
		if _, err := targets.In(st).Rollback(ctx, fleettest.Dev, desires(), undo, fleettest.Me); err != nil {
			t.Fatal(err)
		}
	}
	setData := func(key, value string) {
		t.Helper()
		d := desires()
		data, err := targets.In(st).Data(ctx, fleettest.Dev, d)
		if err != nil {
			t.Fatal(err)
		}
		layer, err := hieradata.Set(nil, key, value)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := targets.In(st).ChangeData(ctx, fleettest.Dev, d, data, map[hieradata.Layer][]byte{hieradata.ForRole("controller"): layer}, fleettest.Me); err != nil {
			t.Fatal(err)
		}
	}
	one, two := fleettest.Published(t, st, "1.0.0", "a"), fleettest.Published(t, st, "2.0.0", "b")

	promote(etcd.Scope{}, one)
	setData("x", "1")
	withData := desires().Default
	if withData.Release != "1.0.0" || withData.Data != 1 || withData.DataDigest == "" {
		t.Fatalf("data 1 did not join the target: %+v", withData)
	}
	promote(etcd.Scope{Role: "compute"}, two)
	if got := desires().For("compute", "compute1").Wanted(); got.Release != "2.0.0" || got.Data != 1 {
		t.Errorf("a role's own release must still get the environment's data, got %s", got)
	}
	two.Data, two.DataDigest = withData.Data, withData.DataDigest
	promote(etcd.Scope{}, two)
	setData("x", "wrong")
	if d := desires(); d.Default.Data != 2 || d.Gate.Epoch != 5 {
		t.Fatalf("got %+v", d)
	}
	rollback(etcd.Scope{}) // the data
	if d := desires(); d.Default != two || d.Gate.Epoch != 6 {
		t.Errorf("after one rollback: %+v", d)
	}
	rollback(etcd.Scope{}) // the release
	if d := desires(); d.Default != withData {
		t.Errorf("after two rollbacks: %+v", d.Default)
	}
	rollback(etcd.Scope{Role: "compute"})
	if d := desires(); len(d.Roles) != 0 {
		t.Errorf("after three rollbacks a role still has %v", d.Roles)
	}
	setData("y", "2") // numbers are never reused, and the change starts from the desired data
	if d := desires(); d.Default.Data != 3 {
		t.Errorf("data after a rollback has number %d, want 3", d.Default.Data)
	}
	g, err := targets.In(st).Generation(ctx, "dev", 3)
	if err != nil || g.Previous != 1 {
		t.Errorf("generation 3 grew from %d (%v), want 1", g.Previous, err)
	}

	stale := desires()
	promote(etcd.Scope{}, one)
	if _, err := targets.In(st).Promote(ctx, fleettest.Dev, stale, etcd.Scope{}, targets.Promoted, two, fleettest.Me); !errors.Is(err, etcd.ErrConflict) {
		t.Errorf("a promotion from a stale view: %v, want a conflict", err)
	}
}

// If a published version could change, the same release would differ between two machines.
func TestReleasesNeverChange(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	if created, err := fleettest.Publish(t, st, fleettest.ARelease("1.0.0", "a")); err != nil || !created {
		t.Fatal(created, err)
	}
	if created, err := fleettest.Publish(t, st, fleettest.ARelease("1.0.0", "a")); err != nil || created {
		t.Errorf("the same tree again: created %v, %v", created, err)
	}
	if _, err := fleettest.Publish(t, st, fleettest.ARelease("1.0.0", "b")); err == nil || !strings.Contains(err.Error(), "another tree") || !strings.Contains(err.Error(), "or as 1.0.0+NAME") {
		t.Errorf("another tree: %v", err)
	}
	for _, v := range []string{"1.10.0", "1.2.0", "1.2.0-rc1", "2.0.0"} {
		if _, err := fleettest.Publish(t, st, fleettest.ARelease(v, "c")); err != nil {
			t.Fatal(err)
		}
	}
	all, err := release.In(st).List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, r := range all {
		order = append(order, r.Version)
	}
	if got := strings.Join(order, " "); got != "1.0.0 1.2.0-rc1 1.2.0 1.10.0 2.0.0" {
		t.Errorf("order is %s", got)
	}
	for wish, want := range map[string]string{"~> 1.2": "1.10.0", "~> 1.2.0": "1.2.0", ">= 1, < 2": "1.10.0", "2.0.0": "2.0.0"} {
		if r, err := (choice.Taker{}).Resolve(ctx, release.In(st), wish); err != nil || r.Version != want {
			t.Errorf("%q resolves to %q (%v), want %s", wish, r.Version, err, want)
		}
	}
	for _, wish := range []string{"3.0.0", "~> 4", "newest", ""} {
		if _, err := (choice.Taker{}).Resolve(ctx, release.In(st), wish); err == nil {
			t.Errorf("%q resolved", wish)
		}
	}
	if _, err := fleettest.Publish(t, st, fleettest.ARelease("latest", "c")); err == nil {
		t.Error("a release named latest was published")
	}
}

// A preview shows what a promotion of the same version would take: in a named repository's environment, that of this repository.
func TestVersionWithoutRepositoryIsTheTakersOwn(t *testing.T) {
	t.Parallel()
	st, shop := fleettest.Open(t, fleettest.Shared.Keyspace(t), ""), choice.Taker{Environment: "dev", Has: []release.Release{{Version: "1.4.0+shop"}}}
	for _, v := range []string{"1.5.0", "1.5.0+shop", "1.6.0"} {
		if _, err := fleettest.Publish(t, st, fleettest.ARelease(v, "tree of "+v)); err != nil {
			t.Fatal(err)
		}
	}
	shows, foreign := shop, shop
	shows.Shows, foreign.Foreign = true, true
	for _, c := range []struct {
		by         choice.Taker
		wish, want string
	}{
		{shop, "1.5.0", "1.5.0+shop"},
		{shop, "1.6.0", ""},
		{shows, "1.5.0", "1.5.0+shop"},
		{shows, "1.6.0", "1.6.0"},
		{foreign, "1.5.0", "1.5.0"},
	} {
		if r, err := c.by.Resolve(t.Context(), release.In(st), c.wish); r.Version != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %s resolves to %q (%v), want %q", c.by, c.wish, r.Version, err, c.want)
		}
	}
}

// A run must not start if an operator stopped it between the read and the start.
func TestAdmitComparesEverythingThatWasRead(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	changes := map[string]func() error{
		"hold on all": func() error {
			return fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{}, model.Hold{Mode: model.Stop}, 0, 0)
		},
		"hold on role": func() error {
			return fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{Role: "controller"}, model.Hold{Mode: model.Freeze}, 0, 0)
		},
		"hold on node": func() error {
			return fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{Node: "controller1"}, model.Hold{Mode: model.Stop}, 0, 0)
		},
		"registration": func() error {
			return fleet.In(st).Register(ctx, "dev", model.Host{Node: "controller1", Role: "controller"})
		},
		"removal": func() error {
			return access.JoinsIn(st).RemoveNode(ctx, fleettest.Dev, "controller1", access.Removal{}, records.Left)
		},
		"promotion": func() error {
			d, err := targets.In(st).Desires(ctx, fleettest.Dev)
			if err != nil {
				return err
			}
			_, err = targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{Role: "compute"}, targets.Promoted, fleettest.Published(t, st, "1.0.0", "a"), fleettest.Me)
			return err
		},
	}
	for _, name := range []string{"hold on all", "hold on role", "hold on node", "registration", "promotion", "removal"} {
		d, err := control.In(st).Desire(ctx, fleettest.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := changes[name](); err != nil {
			t.Fatal(name, err)
		}
		if err := control.In(st).Admit(ctx, fleettest.ID, d, model.Status{Node: fleettest.ID.Node}); !errors.Is(err, model.ErrChanged) {
			t.Errorf("after %s: %v, want that something changed", name, err)
		}
	}
	d, err := control.In(st).Desire(ctx, fleettest.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Holds) != 2 { // its own hold was deleted at its removal
		t.Errorf("holds: %+v", d.Holds)
	}
	if err := control.In(st).Admit(ctx, fleettest.ID, d, model.Status{Node: fleettest.ID.Node, Phase: model.Running}); err != nil {
		t.Errorf("nothing changed, and yet: %v", err)
	}
}

// Etcd itself ends a hold: a node with a wrong clock cannot end one early.
func TestHoldsEndByLease(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	if err := fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{}, model.Hold{Mode: model.Stop}, time.Second, 0); err != nil {
		t.Fatal(err)
	}
	if d, err := control.In(st).Desire(ctx, fleettest.ID); err != nil || len(d.Holds) != 1 {
		t.Fatal(d.Holds, err)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		d, err := control.In(st).Desire(ctx, fleettest.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Holds) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the hold is still there after 20 s")
		}
	}
}

// A foreign value in etcd must never be taken for a decision of Pulley's operators.
func TestForeignValuesAreRefusedByName(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	ctx := t.Context()
	raw := server.Client()
	for i, value := range []string{"", "hello", "[]", "null", "{}", `{"v":`, `{"v":99,"release":"1.0.0"}`, `{"v":1,"release":7}`, "\xff\x00", `{"v":"1"}`} {
		prefix := fmt.Sprintf("/fleet%d", i)
		st := fleettest.Open(t, server, prefix)
		key := prefix + "/v1/environments/dev/desired/default"
		if _, err := raw.Put(ctx, key, value); err != nil {
			t.Fatal(err)
		}
		_, err := control.In(st).Desire(ctx, fleettest.ID)
		var unreadable *etcd.UnreadableError
		if !errors.As(err, &unreadable) || unreadable.Key != key || errors.Is(err, model.ErrUnreachable) {
			t.Errorf("%q: %v, want an error that names the key", value, err)
		}
	}
}

// An unreachable etcd is not an absent key: only an answer from etcd changes state.
func TestUnreachableEtcdIsReported(t *testing.T) {
	server := etcdtest.Start(t)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if d, err := control.In(st).Desire(t.Context(), fleettest.ID); err != nil || d.Host != nil {
		t.Fatal(d, err)
	}
	server.Down()
	start := time.Now()
	if _, err := control.In(st).Desire(t.Context(), fleettest.ID); !errors.Is(err, model.ErrUnreachable) {
		t.Errorf("with etcd down: %v", err)
	}
	if took := time.Since(start); took > 6*time.Second {
		t.Errorf("it took %s to find out", took)
	}
	server.Up()
	end := time.Now().Add(30 * time.Second)
	for {
		_, err := control.In(st).Desire(t.Context(), fleettest.ID)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("etcd is back, and still: %v", err)
		}
	}
	unreachable, err := etcd.Open(etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer unreachable.Close()
	if _, err := control.In(unreachable).Desire(context.Background(), fleettest.ID); !errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("wrong endpoint: %v", err)
	}
}

// An idle tick is one request, independent of the fleet's size: ten thousand nodes make it every five minutes.
func TestDesireIsOneTransactionOfPointKeys(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	d, err := control.In(st).Desire(t.Context(), fleettest.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Guards) != 12 { // the head of the host list and a preview order are read, and not compared
		t.Errorf("%d keys are compared, want 12: %v", len(d.Guards), d.Guards)
	}
	if err := fleet.In(st).Register(t.Context(), "dev", model.Host{Node: "other1", Role: "other"}); err != nil {
		t.Fatal(err)
	}
	if err := control.In(st).Admit(t.Context(), fleettest.ID, d, model.Status{Node: fleettest.ID.Node}); err != nil {
		t.Errorf("another node that joins stops a run: %v", err)
	}
	if _, err := fleet.In(st).OrderPreviews(t.Context(), fleettest.Dev, map[string]model.PreviewOrder{fleettest.ID.Node: {ID: "1"}}); err != nil {
		t.Fatal(err)
	}
	if err := control.In(st).Admit(t.Context(), fleettest.ID, d, model.Status{Node: fleettest.ID.Node}); err != nil {
		t.Errorf("a preview order stops a run: %v", err)
	}
	if now, err := control.In(st).Desire(t.Context(), fleettest.ID); err != nil || now.HostList <= d.HostList {
		t.Errorf("the change of the host list is not noticed: %d, before %d: %v", now.HostList, d.HostList, err)
	}
}

// A sign of life of one node would make all nodes that see it read the host list.
func TestSignOfLifeIsNoChangeOfTheHostList(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	write := func(e model.Export, changed bool) (list, sign int64, exported bool) {
		t.Helper()
		if err := control.In(st).PublishExport(t.Context(), fleettest.ID, e, changed); err != nil {
			t.Fatal(err)
		}
		d, err := control.In(st).Desire(t.Context(), fleettest.ID)
		if err != nil {
			t.Fatal(err)
		}
		_, exports, _, err := control.In(st).Hosts(t.Context(), fleettest.ID)
		if err != nil {
			t.Fatal(err)
		}
		got, exported := exports[fleettest.ID.Node]
		if exported && got.Alive != e.Alive {
			t.Errorf("wrote %+v, read %+v", e, got)
		}
		return d.HostList, got.Revision, exported
	}
	e := model.Export{Alive: time.Hour}
	list, first, _ := write(e, true)
	again, second, _ := write(e, false)
	if first == 0 || second <= first || again != list {
		t.Errorf("signs at %d and %d; the host list changed at %d and %d", first, second, list, again)
	}
	if gone, _, exported := write(model.Export{}, true); exported || gone <= list {
		t.Errorf("an export with nothing stays: %t; the host list changed at %d and %d", exported, list, gone)
	}
}

// One damaged status must not hide the rest of a fleet.
func TestFleetSurvivesADamagedStatus(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	for n := range 1200 { // more than two pages
		node := fmt.Sprintf("compute%d", n+1)
		if err := control.In(st).Report(ctx, model.Identity{Environment: "dev", Node: node}, model.Status{Node: node, Role: "compute"}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/status/dev/compute7", "nonsense"); err != nil {
		t.Fatal(err)
	}
	f, err := fleet.In(st).State(ctx, fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Statuses) != 1199 || len(f.Damaged) != 1 || !strings.Contains(f.Damaged[0], "compute7") {
		t.Errorf("%d statuses, damaged: %v", len(f.Statuses), f.Damaged)
	}
	names, err := specs.In(st).List(ctx)
	if err != nil || len(names) != 0 {
		t.Errorf("environments: %v %v", names, err)
	}
	for _, name := range []string{"dev", "production"} {
		e, err := environments.Parse(name+".yaml", []byte("roles: {compute: {cardinality: 2}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := specs.In(st).PutSpec(ctx, e, 0); err != nil {
			t.Fatal(err)
		}
		if err := specs.In(st).PutSpec(ctx, e, 0); !errors.Is(err, etcd.ErrConflict) {
			t.Errorf("a second first write: %v", err)
		}
	}
	if names, err = specs.In(st).List(ctx); err != nil || strings.Join(names, " ") != "dev production" {
		t.Errorf("environments: %v %v", names, err)
	}
}

// A stolen node identity can falsify only that node's reports, because nodes write only their own keys.
func TestNodeWritesOnlyOwnKeys(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	d, err := control.In(st).Desire(ctx, fleettest.ID)
	if err != nil {
		t.Fatal(err)
	}
	said := model.Status{Node: fleettest.ID.Node, Role: fleettest.ID.Role}
	if err := control.In(st).Admit(ctx, fleettest.ID, d, said); err != nil {
		t.Fatal(err)
	}
	if err := control.In(st).Report(ctx, fleettest.ID, said, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, []string{"0"}); err != nil {
		t.Fatal(err)
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: fleettest.ID.Node, Role: fleettest.ID.Role}); err != nil {
		t.Fatal(err)
	}
	keys := server.Keys()
	want := map[string]bool{
		"/pulley/v1/status/dev/controller1": true, "/pulley/v1/runs/dev/controller1/1": true,
		"/pulley/v1/environments/dev/hosts/nodes/controller1": true, "/pulley/v1/environments/dev/hosts/head": true,
	}
	for _, key := range keys {
		if !want[key] {
			t.Errorf("a node wrote %s", key)
		}
	}
	if len(keys) != len(want) {
		t.Errorf("a node wrote %v", keys)
	}
}

// All nodes of an environment write the head of the host list: a large value of one stolen node must not make every idle tick large.
func TestTickReadsNoValueOfTheHead(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	if _, err := server.Client().Put(t.Context(), "/pulley/v1/environments/dev/hosts/head", strings.Repeat("x", 1<<20)); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of this process
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var read atomic.Int64
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", strings.TrimPrefix(server.Endpoint, "http://")) //nolint:noctx // of this process
			if err != nil {
				t.Error(err)
				return
			}
			go func() { _, _ = io.Copy(to, client); _ = to.Close() }()
			go func() { _, _ = io.Copy(counter{client, &read}, to); _ = client.Close() }()
		}
	}()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{"http://" + listener.Addr().String()}, Prefix: server.Prefix + etcd.DefaultPrefix, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d, err := control.In(st).Desire(t.Context(), fleettest.ID)
	if err != nil || d.HostList == 0 {
		t.Fatal(d.HostList, err)
	}
	if n := read.Load(); n == 0 || n > 64<<10 {
		t.Errorf("a tick read %d bytes", n)
	}
}

type counter struct {
	io.Writer
	n *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.Writer.Write(b)
}

// A machine that is gone for months stays in the count of available nodes if its last report has the time of a clock that was a year ahead.
func TestClockThatIsAheadHidesNoSilence(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx, now := fleettest.Open(t, server, ""), t.Context(), time.Now()
	report := func(node string, at time.Time) {
		t.Helper()
		err := control.In(st).Report(ctx, model.Identity{Node: node, Environment: "dev"}, model.Status{Node: node, SeenAt: at, Settings: model.DefaultSettings()}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	report("old1", now.Add(365*24*time.Hour))
	report("honest1", now.Add(-40*time.Minute))
	report("late1", now.Add(4*time.Minute))
	report("recent1", now.Add(-2*time.Minute))
	report("new1", now.Add(365*24*time.Hour))
	report("dead1", time.Unix(0, 0)) // a clock without a battery says nothing about the reports before it
	report("honest2", now.Add(-time.Minute))
	all, err := fleet.In(st).Statuses(ctx, fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	for node, silent := range map[string]bool{"old1": true, "honest1": true, "late1": false, "recent1": false, "new1": false, "dead1": true, "honest2": false} {
		status := all[node]
		if v := model.Look(&status, model.Desired{Host: &model.Host{Node: node}}, now); (v.State == model.Silent) != silent {
			t.Errorf("%s is %s, silent: %t", node, v.State, silent)
		}
	}
}
