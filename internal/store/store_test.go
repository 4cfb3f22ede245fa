package store_test

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
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/choice"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

var ()

// Operators depend on targets, epochs and rollbacks in an emergency.
func TestPromotionsAndRollbacksSetCompleteTargets(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	ctx := t.Context()
	desires := func() store.Desires {
		t.Helper()
		d, err := st.Targets.Desires(ctx, dev)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	promote := func(scope store.Scope, target model.Target) {
		t.Helper()
		if _, err := st.Targets.Promote(ctx, dev, desires(), scope, store.Promoted, target, me); err != nil {
			t.Fatal(err)
		}
	}
	rollback := func(scope store.Scope) {
		t.Helper()
		history, _, err := st.Targets.History(ctx, dev, 0)
		if err != nil {
			t.Fatal(err)
		}
		undo, ok := store.Undo(history, scope)
		if !ok {
			t.Fatal("nothing to undo")
		}
		if _, err := st.Targets.Rollback(ctx, dev, desires(), undo, me); err != nil {
			t.Fatal(err)
		}
	}
	setData := func(key, value string) {
		t.Helper()
		d := desires()
		data, err := st.Targets.Data(ctx, dev, d)
		if err != nil {
			t.Fatal(err)
		}
		layer, err := hieradata.Set(nil, key, value)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Targets.ChangeData(ctx, dev, d, data, map[hieradata.Layer][]byte{hieradata.ForRole("controller"): layer}, me); err != nil {
			t.Fatal(err)
		}
	}
	one, two := published(t, st, "1.0.0", "a"), published(t, st, "2.0.0", "b")

	promote(store.Scope{}, one)
	setData("x", "1")
	withData := desires().Default
	if withData.Release != "1.0.0" || withData.Data != 1 || withData.DataDigest == "" {
		t.Fatalf("data 1 did not join the target: %+v", withData)
	}
	promote(store.Scope{Role: "compute"}, two)
	if got := desires().For("compute", "compute1").Wanted(); got.Release != "2.0.0" || got.Data != 1 {
		t.Errorf("a role's own release must still get the environment's data, got %s", got)
	}
	two.Data, two.DataDigest = withData.Data, withData.DataDigest
	promote(store.Scope{}, two)
	setData("x", "wrong")
	if d := desires(); d.Default.Data != 2 || d.Gate.Epoch != 5 {
		t.Fatalf("got %+v", d)
	}
	rollback(store.Scope{}) // the data
	if d := desires(); d.Default != two || d.Gate.Epoch != 6 {
		t.Errorf("after one rollback: %+v", d)
	}
	rollback(store.Scope{}) // the release
	if d := desires(); d.Default != withData {
		t.Errorf("after two rollbacks: %+v", d.Default)
	}
	rollback(store.Scope{Role: "compute"})
	if d := desires(); len(d.Roles) != 0 {
		t.Errorf("after three rollbacks a role still has %v", d.Roles)
	}
	setData("y", "2") // numbers are never reused, and the change starts from the desired data
	if d := desires(); d.Default.Data != 3 {
		t.Errorf("data after a rollback has number %d, want 3", d.Default.Data)
	}
	g, err := st.Targets.Generation(ctx, "dev", 3)
	if err != nil || g.Previous != 1 {
		t.Errorf("generation 3 grew from %d (%v), want 1", g.Previous, err)
	}

	stale := desires()
	promote(store.Scope{}, one)
	if _, err := st.Targets.Promote(ctx, dev, stale, store.Scope{}, store.Promoted, two, me); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a promotion from a stale view: %v, want a conflict", err)
	}
}

// If a published version could change, the same release would differ between two machines.
func TestReleasesNeverChange(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	ctx := t.Context()
	if created, err := publish(t, st, aRelease("1.0.0", "a")); err != nil || !created {
		t.Fatal(created, err)
	}
	if created, err := publish(t, st, aRelease("1.0.0", "a")); err != nil || created {
		t.Errorf("the same tree again: created %v, %v", created, err)
	}
	if _, err := publish(t, st, aRelease("1.0.0", "b")); err == nil || !strings.Contains(err.Error(), "another tree") || !strings.Contains(err.Error(), "or as 1.0.0+NAME") {
		t.Errorf("another tree: %v", err)
	}
	for _, v := range []string{"1.10.0", "1.2.0", "1.2.0-rc1", "2.0.0"} {
		if _, err := publish(t, st, aRelease(v, "c")); err != nil {
			t.Fatal(err)
		}
	}
	all, err := st.Releases.List(ctx)
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
		if r, err := (choice.Taker{}).Resolve(ctx, st.Releases, wish); err != nil || r.Version != want {
			t.Errorf("%q resolves to %q (%v), want %s", wish, r.Version, err, want)
		}
	}
	for _, wish := range []string{"3.0.0", "~> 4", "newest", ""} {
		if _, err := (choice.Taker{}).Resolve(ctx, st.Releases, wish); err == nil {
			t.Errorf("%q resolved", wish)
		}
	}
	if _, err := publish(t, st, aRelease("latest", "c")); err == nil {
		t.Error("a release named latest was published")
	}
}

// A preview shows what a promotion of the same version would take: in a named repository's environment, that of this repository.
func TestVersionWithoutRepositoryIsTheTakersOwn(t *testing.T) {
	t.Parallel()
	st, shop := open(t, shared.Keyspace(t), ""), choice.Taker{Environment: "dev", Has: []release.Release{{Version: "1.4.0+shop"}}}
	for _, v := range []string{"1.5.0", "1.5.0+shop", "1.6.0"} {
		if _, err := publish(t, st, aRelease(v, "tree of "+v)); err != nil {
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
		if r, err := c.by.Resolve(t.Context(), st.Releases, c.wish); r.Version != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %s resolves to %q (%v), want %q", c.by, c.wish, r.Version, err, c.want)
		}
	}
}

// A run must not start if an operator stopped it between the read and the start.
func TestAdmitComparesEverythingThatWasRead(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	ctx := t.Context()
	changes := map[string]func() error{
		"hold on all": func() error { return st.Fleet.Hold(ctx, dev, store.Scope{}, model.Hold{Mode: model.Stop}, 0, 0) },
		"hold on role": func() error {
			return st.Fleet.Hold(ctx, dev, store.Scope{Role: "controller"}, model.Hold{Mode: model.Freeze}, 0, 0)
		},
		"hold on node": func() error {
			return st.Fleet.Hold(ctx, dev, store.Scope{Node: "controller1"}, model.Hold{Mode: model.Stop}, 0, 0)
		},
		"registration": func() error {
			return st.Fleet.Register(ctx, "dev", model.Host{Node: "controller1", Role: "controller"})
		},
		"removal": func() error { return st.Joins.RemoveNode(ctx, dev, "controller1", store.Removal{}, store.LeftRecord) },
		"promotion": func() error {
			d, err := st.Targets.Desires(ctx, dev)
			if err != nil {
				return err
			}
			_, err = st.Targets.Promote(ctx, dev, d, store.Scope{Role: "compute"}, store.Promoted, published(t, st, "1.0.0", "a"), me)
			return err
		},
	}
	for _, name := range []string{"hold on all", "hold on role", "hold on node", "registration", "promotion", "removal"} {
		d, err := st.Node.Desire(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if err := changes[name](); err != nil {
			t.Fatal(name, err)
		}
		if err := st.Node.Admit(ctx, id, d, model.Status{Node: id.Node}); !errors.Is(err, model.ErrChanged) {
			t.Errorf("after %s: %v, want that something changed", name, err)
		}
	}
	d, err := st.Node.Desire(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Holds) != 2 { // its own hold was deleted at its removal
		t.Errorf("holds: %+v", d.Holds)
	}
	if err := st.Node.Admit(ctx, id, d, model.Status{Node: id.Node, Phase: model.Running}); err != nil {
		t.Errorf("nothing changed, and yet: %v", err)
	}
}

// Etcd itself ends a hold: a node with a wrong clock cannot end one early.
func TestHoldsEndByLease(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	ctx := t.Context()
	if err := st.Fleet.Hold(ctx, dev, store.Scope{}, model.Hold{Mode: model.Stop}, time.Second, 0); err != nil {
		t.Fatal(err)
	}
	if d, err := st.Node.Desire(ctx, id); err != nil || len(d.Holds) != 1 {
		t.Fatal(d.Holds, err)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		d, err := st.Node.Desire(ctx, id)
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
		st := open(t, server, prefix)
		key := prefix + "/v1/environments/dev/desired/default"
		if _, err := raw.Put(ctx, key, value); err != nil {
			t.Fatal(err)
		}
		_, err := st.Node.Desire(ctx, id)
		var unreadable *store.UnreadableError
		if !errors.As(err, &unreadable) || unreadable.Key != key || errors.Is(err, model.ErrUnreachable) {
			t.Errorf("%q: %v, want an error that names the key", value, err)
		}
	}
}

// An unreachable etcd is not an absent key: only an answer from etcd changes state.
func TestUnreachableEtcdIsReported(t *testing.T) {
	server := etcdtest.Start(t)
	st, err := store.Open(store.Config{Endpoints: []string{server.Endpoint}, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if d, err := st.Node.Desire(t.Context(), id); err != nil || d.Host != nil {
		t.Fatal(d, err)
	}
	server.Down()
	start := time.Now()
	if _, err := st.Node.Desire(t.Context(), id); !errors.Is(err, model.ErrUnreachable) {
		t.Errorf("with etcd down: %v", err)
	}
	if took := time.Since(start); took > 6*time.Second {
		t.Errorf("it took %s to find out", took)
	}
	server.Up()
	end := time.Now().Add(30 * time.Second)
	for {
		_, err := st.Node.Desire(t.Context(), id)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("etcd is back, and still: %v", err)
		}
	}
	unreachable, err := store.Open(store.Config{Endpoints: []string{"http://127.0.0.1:1"}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer unreachable.Close()
	if _, err := unreachable.Node.Desire(context.Background(), id); !errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("wrong endpoint: %v", err)
	}
}

// An idle tick is one request, independent of the fleet's size: ten thousand nodes make it every five minutes.
func TestDesireIsOneTransactionOfPointKeys(t *testing.T) {
	t.Parallel()
	server := shared.Keyspace(t)
	st := open(t, server, "")
	d, err := st.Node.Desire(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Guards) != 12 { // the head of the host list and a preview order are read, and not compared
		t.Errorf("%d keys are compared, want 12: %v", len(d.Guards), d.Guards)
	}
	if err := st.Fleet.Register(t.Context(), "dev", model.Host{Node: "other1", Role: "other"}); err != nil {
		t.Fatal(err)
	}
	if err := st.Node.Admit(t.Context(), id, d, model.Status{Node: id.Node}); err != nil {
		t.Errorf("another node that joins stops a run: %v", err)
	}
	if _, err := st.Fleet.OrderPreviews(t.Context(), dev, map[string]model.PreviewOrder{id.Node: {ID: "1"}}); err != nil {
		t.Fatal(err)
	}
	if err := st.Node.Admit(t.Context(), id, d, model.Status{Node: id.Node}); err != nil {
		t.Errorf("a preview order stops a run: %v", err)
	}
	if now, err := st.Node.Desire(t.Context(), id); err != nil || now.HostList <= d.HostList {
		t.Errorf("the change of the host list is not noticed: %d, before %d: %v", now.HostList, d.HostList, err)
	}
}

// A sign of life of one node would make all nodes that see it read the host list.
func TestSignOfLifeIsNoChangeOfTheHostList(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Keyspace(t), "")
	write := func(e model.Export, changed bool) (list, sign int64, exported bool) {
		t.Helper()
		if err := st.Node.PublishExport(t.Context(), id, e, changed); err != nil {
			t.Fatal(err)
		}
		d, err := st.Node.Desire(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		_, exports, _, err := st.Node.Hosts(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		got, exported := exports[id.Node]
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
	server := shared.Keyspace(t)
	st := open(t, server, "")
	ctx := t.Context()
	for n := range 1200 { // more than two pages
		node := fmt.Sprintf("compute%d", n+1)
		if err := st.Node.Report(ctx, model.Identity{Environment: "dev", Node: node}, model.Status{Node: node, Role: "compute"}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/status/dev/compute7", "nonsense"); err != nil {
		t.Fatal(err)
	}
	f, err := st.Fleet.State(ctx, dev)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Statuses) != 1199 || len(f.Damaged) != 1 || !strings.Contains(f.Damaged[0], "compute7") {
		t.Errorf("%d statuses, damaged: %v", len(f.Statuses), f.Damaged)
	}
	names, err := st.Environments.List(ctx)
	if err != nil || len(names) != 0 {
		t.Errorf("environments: %v %v", names, err)
	}
	for _, name := range []string{"dev", "production"} {
		e, err := environments.Parse(name+".yaml", []byte("roles: {compute: {cardinality: 2}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Environments.PutSpec(ctx, e, 0); err != nil {
			t.Fatal(err)
		}
		if err := st.Environments.PutSpec(ctx, e, 0); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a second first write: %v", err)
		}
	}
	if names, err = st.Environments.List(ctx); err != nil || strings.Join(names, " ") != "dev production" {
		t.Errorf("environments: %v %v", names, err)
	}
}

// A stolen node identity can falsify only that node's reports, because nodes write only their own keys.
func TestNodeWritesOnlyOwnKeys(t *testing.T) {
	t.Parallel()
	server := shared.Keyspace(t)
	st := open(t, server, "")
	ctx := t.Context()
	d, err := st.Node.Desire(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	said := model.Status{Node: id.Node, Role: id.Role}
	if err := st.Node.Admit(ctx, id, d, said); err != nil {
		t.Fatal(err)
	}
	if err := st.Node.Report(ctx, id, said, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, []string{"0"}); err != nil {
		t.Fatal(err)
	}
	if err := st.Fleet.Register(ctx, "dev", model.Host{Node: id.Node, Role: id.Role}); err != nil {
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
	server := shared.Keyspace(t)
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
	st, err := store.Open(store.Config{Endpoints: []string{"http://" + listener.Addr().String()}, Prefix: server.Prefix + store.DefaultPrefix, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d, err := st.Node.Desire(t.Context(), id)
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
	server := shared.Keyspace(t)
	st, ctx, now := open(t, server, ""), t.Context(), time.Now()
	report := func(node string, at time.Time) {
		t.Helper()
		err := st.Node.Report(ctx, model.Identity{Node: node, Environment: "dev"}, model.Status{Node: node, SeenAt: at, Settings: model.DefaultSettings()}, nil, nil)
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
	all, err := st.Fleet.Statuses(ctx, dev)
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
