package records_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// Acts that are never deleted fill etcd. Without the acts of the last hour a watch would replace machines without
// limit.
func TestHistoryKeepsActsOfLastHour(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	now := time.Now().UTC().Truncate(time.Second)
	note := func(at time.Time, i int) {
		t.Helper()
		act := machines.Act{At: at, Node: fmt.Sprintf("web%d", i), Did: machines.Created, Reasons: []machines.Reason{{Code: machines.NoMachine}}, By: "ann"}
		for range 2 { // the answer may be lost
			if err := a.Note(t.Context(), act); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 90 {
		note(now.Add(-2*time.Hour+time.Duration(i)*time.Second), i)
	}
	for i := range 990 {
		note(now.Add(-time.Duration(990-i)*time.Second), i)
	}
	if all, damaged, err := records.In(st).Acts(t.Context(), fleettest.Dev, time.Time{}); err != nil || len(damaged) > 0 || len(all) != 1000 {
		t.Fatalf("%d acts are kept (%v, %v)", len(all), damaged, err)
	}
	for i := range 60 {
		note(now, i)
	}
	all, _, err := records.In(st).Acts(t.Context(), fleettest.Dev, now.Add(-time.Hour))
	if err != nil || len(all) != 1050 {
		t.Errorf("of 1050 of the last hour %d are kept (%v)", len(all), err)
	}
	if !slices.IsSortedFunc(all, func(a, b machines.Act) int { return a.At.Compare(b.At) }) {
		t.Error("they are not in order")
	}
	if all, _, err = records.In(st).Acts(t.Context(), fleettest.Dev, time.Time{}); err != nil || len(all) != 1050 {
		t.Errorf("%d acts are kept (%v)", len(all), err)
	}
}

// An unreadable act of long ago must not stop every watch. One of the last hour must: it may hide a replacement.
func TestActsIgnoreDamageBeforeTheirTime(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	acts := "/pulley/v1/environments/dev/acts/"
	for key, damage := range map[string]int{"0000000000000001-0123456789": 0, fmt.Sprintf("%016x-0123456789", time.Now().UnixNano()): 1} {
		if _, err := server.Client().Put(t.Context(), acts+key, "garbage"); err != nil {
			t.Fatal(err)
		}
		all, damaged, err := records.In(st).Acts(t.Context(), fleettest.Dev, time.Now().Add(-time.Hour))
		if _, deleted := server.Client().Delete(t.Context(), acts+key); err != nil || deleted != nil || len(all) > 0 || len(damaged) != damage {
			t.Errorf("with %s: %v, damaged %q, %v, %v", key, all, damaged, err, deleted)
		}
	}
}

// A plan with a machine's record of one moment and its node of another would create a second machine, or destroy a
// good one.
func TestWorldIsOfOneRevision(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	for i := range 600 { // more than a page
		if err := a.Put(t.Context(), machines.Record{Node: fmt.Sprintf("aaa%d", i), Phase: machines.Made}, nil); err != nil {
			t.Fatal(err)
		}
	}
	raw, env := server.Client(), "/pulley/v1/environments/dev/"
	done, stopped := make(chan bool), make(chan error)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-done:
				stopped <- nil
				return
			default:
			}
			here, gone := "machines/web1", "hosts/nodes/web1"
			if i%2 == 1 {
				here, gone = gone, here
			}
			err = swap(t, raw, env+here, env+gone)
		}
		stopped <- err
	}()
	seen := map[bool]int{}
	for range 30 {
		w, err := records.In(st).World(t.Context(), fleettest.Dev, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		_, made := w.Records["web1"]
		_, listed := w.Hosts["web1"]
		if made == listed && len(seen) > 0 || made && listed {
			t.Fatalf("recorded: %t, listed: %t", made, listed)
		}
		if made != listed {
			seen[made]++
		}
	}
	close(done)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	t.Logf("seen with and without a record: %v", seen)
}

// The input of a plan must name the held nodes, and whether there is a release to converge on.
func TestWorldContainsHoldsAndReleases(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	e := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "web", Cardinality: 2}, {Name: "db", Cardinality: 1}, {Name: "off"}}}
	if _, err := a.PutSpec(ctx, e, 0); err != nil {
		t.Fatal(err)
	}
	held := func(want ...string) {
		t.Helper()
		w, err := records.In(st).World(ctx, fleettest.Dev, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for node, hold := range w.Held {
			got = append(got, node+": "+hold.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("held are %q, should be %q", got, want)
		}
	}
	held()
	for _, err := range []error{
		fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{Role: "web"}, model.Hold{Mode: model.Freeze, Who: "ann", Why: "we look"}, 0, 0),
		fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{Node: "web2"}, model.Hold{Mode: model.Stop, Who: "bob"}, 0, 0),
		fleet.In(st).Register(ctx, "dev", model.Host{Node: "old.example.com", Role: "web"}),
		a.Put(ctx, machines.Record{Node: "web9", Phase: machines.Retiring}, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	held("old.example.com: freeze on roles/web by ann: we look", "web1: freeze on roles/web by ann: we look", "web2: stop on nodes/web2 by bob", "web9: freeze on roles/web by ann: we look")

	// The cause of a failing first boot is the cause for which an apply waits.
	for machine, node := range map[string]string{"m1": "old.example.com", "m2": "old.example.com", "m3": "web2"} {
		boot := access.FirstBoot{Machine: machine, Node: node, Step: "server", State: access.BootFailed, Error: model.Prose("no release on " + machine)}
		if err := access.FirstBootsIn(st).Put(ctx, fleettest.Dev, boot, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "old.example.com", Role: "web", MachineID: "m1"}); err != nil {
		t.Fatal(err)
	}
	w, err := records.In(st).World(ctx, fleettest.Dev, time.Now())
	if boot := w.Boots["old.example.com"]; err != nil || len(w.Boots) != 1 || boot.Code != machines.WaitsForFirstBoot || boot.Was != "server" || boot.Problem != "no release on m1" {
		t.Errorf("first boots: %+v (%v)", w.Boots, err)
	}

	released := func(want bool) {
		t.Helper()
		if w, err := records.In(st).World(ctx, fleettest.Dev, time.Now()); err != nil || w.Released != want {
			t.Errorf("a release is promoted: %t, should be %t (%v)", w.Released, want, err)
		}
	}
	released(false)
	target := fleettest.Published(t, st, "1.0.0", strings.Repeat("a", 64))
	for i, scope := range []etcd.Scope{{Node: "web1"}, {Role: "web"}, {Role: "db"}} {
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err == nil {
			_, err = targets.In(st).Promote(ctx, fleettest.Dev, d, scope, targets.Promoted, target, fleettest.Me)
		}
		if err != nil {
			t.Fatal(err)
		}
		released(i == 2)
	}
}

// A node's damaged status must not stop every apply of its fleet. A damaged machine record must.
func TestDamagedRecordStopsPlans(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx, raw := fleettest.Open(t, server, ""), t.Context(), server.Client()
	if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "web1", Role: "web", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Put(ctx, "/pulley/v1/status/dev/web1", "{"); err != nil {
		t.Fatal(err)
	}
	w, err := records.In(st).World(ctx, fleettest.Dev, time.Now())
	if v := w.Views["web1"]; err != nil || v.State != model.Pending {
		t.Errorf("with a damaged status: %+v, %v", v, err)
	}
	for _, key := range []string{"machines/web1", "hosts/nodes/web2", "holds/all", "desired/default", "spec", "gate"} {
		key = "/pulley/v1/environments/dev/" + key
		if _, err := raw.Put(ctx, key, "{"); err != nil {
			t.Fatal(err)
		}
		if _, err := records.In(st).World(ctx, fleettest.Dev, time.Now()); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("with a damaged %s: %v", key, err)
		}
		if _, err := raw.Delete(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
}

// An apply would wait forever for the answer to a request that a join overwrote.
func TestRequestSurvivesOtherWritesOfHost(t *testing.T) {
	t.Parallel()
	st, ctx := fleettest.Open(t, fleettest.Shared.Keyspace(t), ""), t.Context()
	h := model.Host{Node: "web1", Role: "web", MachineID: "m1"}
	if err := fleet.In(st).Register(ctx, "dev", h); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			mine := h
			for n := range 10 {
				mine.Addresses = []string{fmt.Sprintf("10.0.%d.%d", i, n)}
				if err := fleet.In(st).Register(ctx, "dev", mine); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var r model.Request
	for i := range 10 {
		r = model.Request{ID: fmt.Sprintf("%016x", i), Do: model.RequestRun}
		if err := fleet.In(st).Request(ctx, fleettest.Dev, "web1", r); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	asked := func() *model.Request {
		t.Helper()
		hosts, err := fleet.In(st).Hosts(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		return hosts["web1"].Request
	}
	if got := asked(); got == nil || *got != r {
		t.Fatalf("it is asked for %+v, not %+v", got, r)
	}
	byHand := model.Host{Node: "web1", Role: "web"}
	if err := fleet.In(st).Register(ctx, "dev", byHand); err != nil || asked() == nil {
		t.Errorf("nodes add: %v, %v", asked(), err)
	}
	if err := fleet.In(st).Register(ctx, "dev", h); err != nil || asked() == nil {
		t.Errorf("its machine: %v, %v", asked(), err)
	}
	h.MachineID = "m2"
	if err := fleet.In(st).Register(ctx, "dev", h); err != nil || asked() != nil {
		t.Errorf("another machine is asked for what the one before was: %v, %v", asked(), err)
	}
	if err := fleet.In(st).Request(ctx, fleettest.Dev, "web2", r); !errors.Is(err, fleet.ErrNotListed) {
		t.Errorf("one that is not on the list: %v", err)
	}
}

// One stolen operator's certificate could otherwise retire a fleet, by requests in the host list.
func TestOnlyAdminsConfirmRetirements(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	admin, ctx := server.Admin(), t.Context()
	fleettest.Joined(t, server, "controller1", fleettest.NodeA)
	if err := errors.Join(access.In(admin).EnsureOperatorRoles(ctx), access.In(admin).EnsureOperator(ctx, fleettest.Operator, access.RoleOperator)); err != nil {
		t.Fatal(err)
	}
	self := model.Identity{Node: "controller1", Environment: "dev"}
	check := func(when string, confirmed string, accused ...string) {
		t.Helper()
		id := ""
		c, err := control.In(server.DB(fleettest.NodeA)).Confirmation(ctx, self)
		if c != nil {
			id = c.ID
		}
		if err != nil || id != confirmed {
			t.Errorf("%s: the node reads %+v, %v", when, c, err)
		}
		f, err := fleet.In(admin).State(ctx, fleettest.Dev)
		if err != nil || !slices.Equal(f.Unconfirmed, accused) {
			t.Errorf("%s: unconfirmed are %v, %v", when, f.Unconfirmed, err)
		}
	}
	retire, run := model.Request{ID: "00000000000000aa", Do: model.RequestRetire}, model.Request{ID: "00000000000000bb", Do: model.RequestRun}
	ask := func(st *etcd.DB, r model.Request) error {
		t.Helper()
		a := fleettest.Begin(t, st, fleettest.Dev, "ann")
		return errors.Join(a.Ask(ctx, "controller1", r), a.Close())
	}
	if err := ask(server.DB(fleettest.Operator), retire); err == nil {
		t.Error("an operator's apply retires a node")
	}
	check("after an operator's apply", "")
	if err := fleet.In(server.DB(fleettest.Operator)).Request(ctx, fleettest.Dev, "controller1", retire); err != nil {
		t.Fatal(err)
	}
	check("after an operator's write", "", "controller1")
	if err := ask(admin, retire); err != nil {
		t.Fatal(err)
	}
	check("after an admin's apply", retire.ID)
	if c, err := control.In(admin).Confirmation(ctx, self); err != nil || c == nil || c.MachineID != "machine of controller1" {
		t.Errorf("confirmed is %+v, %v", c, err)
	}
	// Operators cancel retirements too. After that, they must not be able to write the same request again.
	if err := ask(server.DB(fleettest.Operator), run); err != nil {
		t.Errorf("an operator cancels: %v", err)
	}
	check("after an operator's cancellation", retire.ID)
	end := func() error { return fleet.In(admin).EndRetirements(ctx, fleettest.Dev) }
	if err := end(); err != nil {
		t.Fatal(err)
	}
	check("after serve's task", "")
	if err := errors.Join(ask(admin, retire), end()); err != nil {
		t.Fatal(err)
	}
	check("while it is requested", retire.ID)
	if err := ask(admin, run); err != nil {
		t.Fatal(err)
	}
	check("after an admin's cancellation", "")
}

// Otherwise an operator without the permission to remove nodes would learn of it in the middle of a retirement.
func TestRightToRetireIsCheckedFirst(t *testing.T) {
	t.Parallel()
	if err := access.In(fleettest.Open(t, fleettest.Shared.Keyspace(t), "")).MayRemove(t.Context()); err != nil {
		t.Errorf("where etcd knows no users: %v", err)
	}
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	admin, ctx := server.Admin(), t.Context()
	if err := errors.Join(access.In(admin).EnsureOperatorRoles(ctx), access.In(admin).EnsureOperator(ctx, fleettest.Viewer, access.RoleViewer), access.In(admin).EnsureOperator(ctx, fleettest.Operator, access.RoleOperator)); err != nil {
		t.Fatal(err)
	}
	if err := access.In(admin).MayRemove(ctx); err != nil {
		t.Errorf("an admin: %v", err)
	}
	for _, user := range []string{fleettest.Viewer, fleettest.Operator} {
		err := access.In(server.DB(user)).MayRemove(ctx)
		if err == nil || !strings.Contains(err.Error(), "admin") || !strings.Contains(err.Error(), "pulley login") {
			t.Errorf("%s: %v", user, err)
		}
		t.Log(err)
	}
	// An operator may do everything else that an apply does, and a viewer may not.
	st := server.DB(fleettest.Operator)
	a := fleettest.Begin(t, st, fleettest.Dev, "olga")
	r := machines.Record{Node: "web1", Phase: machines.Making}
	for what, err := range map[string]error{
		"put": a.Put(ctx, r, nil), "note": a.Note(ctx, machines.Act{Node: "web1", At: time.Now()}),
		"hold": a.Hold(ctx, "web1", model.Hold{Mode: model.Stop}), "drop": a.Drop(ctx, r),
	} {
		if err != nil {
			t.Errorf("an operator's %s: %v", what, err)
		}
	}
	if _, err := records.In(server.DB(fleettest.Viewer)).BeginApply(ctx, model.Ref{Environment: "other"}, "vic"); err == nil {
		t.Error("a viewer applies")
	}
}

// swap writes one key and deletes another, in one transaction.
func swap(t *testing.T, raw *clientv3.Client, here, gone string) error {
	_, err := raw.Txn(t.Context()).Then(clientv3.OpPut(here, `{"v":1}`), clientv3.OpDelete(gone)).Commit()
	return err
}
