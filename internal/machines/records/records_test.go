package records_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A node's answer could fill the inventory with megabytes, or make its own record too large to write again.
func TestAnswerInRecordIsBounded(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	for what, problem := range map[string]string{"words": strings.Repeat("ü", 1<<20), "no text": strings.Repeat("\xff\xfex", 1<<19)} {
		r := machines.Record{Node: "web1", Name: "web1", Phase: machines.Made, Problem: model.Prose(problem)}
		next := r
		next.Phase = machines.Retiring
		for i, err := range []error{a.Put(ctx, r, nil), a.Put(ctx, r, nil), a.Put(ctx, next, &r), a.Put(ctx, r, nil)} {
			if i < 3 && err != nil || i == 3 && !errors.Is(err, machines.ErrChanged) {
				t.Errorf("%s, write %d: %v", what, i+1, err)
			}
		}
		resp, err := server.Client().Get(ctx, "/pulley/v1/environments/dev/machines/web1")
		if err != nil || len(resp.Kvs) != 1 || len(resp.Kvs[0].Value) > 1024 {
			t.Errorf("%s: etcd has %d bytes of it (%v)", what, len(resp.Kvs[0].Value), err)
		}
		read, err := records.In(st).Record(ctx, fleettest.Dev, "web1")
		if err != nil || read == nil || len(read.Problem) < 100 {
			t.Fatalf("%s: %+v, %v", what, read, err)
		}
		if err := errors.Join(a.Put(ctx, *read, &next), a.Drop(ctx, next)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A used token shows which machine joined with it. A second token of the same ID would make both invalid. A damaged
// token must not prevent an order.
func TestOrderRevokesOnlyPreviousToken(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	now := time.Now().UTC().Truncate(time.Second)
	token := func() machines.Token {
		_, k := access.NewToken(access.Token{})
		return machines.Token{ID: k.ID, Hash: k.Hash, Created: now, Expires: now.Add(time.Hour)}
	}
	order := func(was *machines.Record, k machines.Token) *machines.Record {
		t.Helper()
		r := machines.Record{Node: "web1", Name: "web1", Phase: machines.Making, Token: k.ID}
		if was != nil {
			r.Tries = was.Tries + 1
		}
		if err := a.Order(ctx, r, was, k); err != nil {
			t.Fatal(err)
		}
		return &r
	}
	key := func(k machines.Token) string { return "/pulley/v1/tokens/nodes/" + k.ID }
	raw := func(k machines.Token) string {
		t.Helper()
		resp, err := server.Client().Get(ctx, key(k))
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", key(k), resp, err)
		}
		return string(resp.Kvs[0].Value)
	}
	used, damaged, last := token(), token(), token()
	r := order(nil, used)
	joined := strings.Replace(raw(used), `"used":0`, `"used":1`, 1)
	if _, err := server.Client().Put(ctx, key(used), joined); err != nil {
		t.Fatal(err)
	}
	r = order(r, damaged)
	if raw(used) != joined {
		t.Errorf("the token that was used is %s, not %s", raw(used), joined)
	}
	if _, err := server.Client().Put(ctx, key(damaged), "{"); err != nil {
		t.Fatal(err)
	}
	r = order(r, last)

	_, ann, err := access.TokensIn(st).Create(ctx, access.Token{Operator: "ann", As: access.RoleAdmin, Uses: 1, Created: now, Expires: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{ann.ID, damaged.ID} {
		next := *r
		next.Tries, next.Token = r.Tries+1, id
		if err := a.Order(ctx, next, r, machines.Token{ID: id, Hash: last.Hash, Created: now, Expires: now.Add(time.Hour)}); !errors.Is(err, machines.ErrTokenTaken) {
			t.Errorf("the id of another token: %v", err)
		}
	}
	if k, err := access.TokensIn(st).Find(ctx, last.ID); err != nil || k == nil || k.Ended(now) || k.Node != "web1" || k.By != "ann" {
		t.Errorf("the last token is %+v, %v", k, err)
	}
	foreign := machines.Record{Node: "db1", Name: "db1", Phase: machines.Making, Token: last.ID} // as an operator may write it
	if err := errors.Join(a.Put(ctx, foreign, nil), a.Drop(ctx, foreign)); err != nil {
		t.Fatal(err)
	}
	if k, err := access.TokensIn(st).Find(ctx, last.ID); err != nil || k == nil || k.Ended(now) {
		t.Errorf("the record of another node ends it: %+v, %v", k, err)
	}
	if err := a.Drop(ctx, *r); err != nil {
		t.Fatal(err)
	}
	if k, err := access.TokensIn(st).Find(ctx, last.ID); err != nil || k != nil {
		t.Errorf("without its record it is %+v, %v", k, err)
	}
}

// The reports of a machine that still runs must survive its removal from the inventory. The reports of a deleted
// machine must not be taken for its successor's.
func TestStatusOfRetiredNodeIsDeletedUnlessItReports(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	r := machines.Record{Node: "web1", Name: "web1", Phase: machines.Retiring}
	made, making, drained := r, r, r
	made.Phase, making.Phase, drained.Drained = machines.Made, machines.Making, true
	steps := map[string]func() error{
		"joins":         func() error { return fleet.In(st).Register(ctx, "dev", model.Host{Node: "web1", Role: "web"}) },
		"speaks":        func() error { return speak(ctx, st) },
		"is removed":    func() error { return a.Remove(ctx, "web1", "it is retired") },
		"is drained":    func() error { return a.Put(ctx, drained, &r) },
		"is dropped":    func() error { return a.Drop(ctx, drained) },
		"is made again": func() error { return a.Put(ctx, making, &drained) },
		"is canceled":   func() error { return a.Put(ctx, made, &drained) },
		"retires again": func() error { return a.Put(ctx, drained, &made) },
		"other apply":   func() error { err := a.Close(); a = fleettest.Begin(t, st, fleettest.Dev, "bob"); return err },
		"ends":          func() error { return a.Drop(ctx, making) },
	}
	for _, c := range []struct {
		story string
		stays bool
	}{
		{"joins, speaks, is drained, speaks, is removed, is dropped", false},
		{"speaks, is drained, is dropped", false}, // it never joined
		{"joins, speaks, is drained, is removed, speaks, is dropped", true},
		{"joins, speaks, is removed, is drained, speaks, is dropped", true},
		{"joins, speaks, is drained, is removed, speaks, other apply, is removed, is dropped", true}, // it was already off the list
		{"joins, speaks, is drained, is removed, joins, speaks, is removed, is dropped", false},      // it was booting, and has ended
		{"joins, speaks, is drained, is removed, joins, is dropped", true},
		{"joins, speaks, is drained, is removed, is made again", false},
		{"joins, speaks, is drained, is removed, speaks, is made again", true},
		{"joins, speaks, is drained, is removed, is made again, speaks, ends", true},
		{"joins, speaks, is drained, is canceled", true},
		{"speaks, is drained, is removed, is canceled, speaks, retires again, is dropped", false},
	} {
		if err := a.Put(ctx, r, nil); err != nil {
			t.Fatal(err)
		}
		for _, step := range strings.Split(c.story, ", ") {
			if err := steps[step](); err != nil {
				t.Fatalf("%s: %s: %v", c.story, step, err)
			}
		}
		for _, prefix := range []string{"status/dev/web1", "runs/dev/web1/1"} {
			resp, err := server.Client().Get(ctx, "/pulley/v1/"+prefix)
			if err != nil || len(resp.Kvs) > 0 != c.stays {
				t.Errorf("%s: %s stays: %t, should be %t (%v)", c.story, prefix, len(resp.Kvs) > 0, c.stays, err)
			}
			if _, err := server.Client().Delete(ctx, "/pulley/v1/"+prefix); err != nil {
				t.Fatal(err)
			}
		}
		for _, key := range []string{"machines/web1", "hosts/nodes/web1"} {
			if _, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/"+key); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A node's report at the moment of its record's deletion must not be lost.
func TestReportDuringRecordDeletionStays(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	for calls := int32(1); ; calls++ {
		st, ctx := fleettest.Open(t, server, ""), t.Context()
		a := fleettest.Begin(t, st, fleettest.Dev, "ann")
		r := machines.Record{Node: "web1", Name: "web1", Phase: machines.Retiring}
		if err := errors.Join(a.Put(ctx, r, nil), fleet.In(st).Register(ctx, "dev", model.Host{Node: "web1", Role: "web"}), speak(ctx, st), a.Remove(ctx, "web1", "it is retired")); err != nil {
			t.Fatal(err)
		}
		said := false
		other := fleettest.Open(t, server, "")
		etcdtest.CancelAfter(st, calls, func() {
			said = true
			if err := speak(ctx, other); err != nil {
				t.Error(err)
			}
		}, func(*etcd.DB) {
			if err := a.Drop(ctx, r); err != nil {
				t.Fatal(err)
			}
		})
		resp, err := server.Client().Get(ctx, "/pulley/v1/status/dev/web1")
		if err != nil || len(resp.Kvs) > 0 != said {
			t.Errorf("it spoke before call %d: %t; that stays: %t (%v)", calls, said, len(resp.Kvs) > 0, err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if !said {
			if calls < 4 {
				t.Errorf("it could speak before %d calls only", calls-1)
			}
			return
		}
	}
}

// speak writes every kind of report for web1.
func speak(ctx context.Context, st *etcd.DB) error {
	said := model.Status{Node: "web1", Role: "web", SeenAt: time.Now()}
	return control.In(st).Report(ctx, model.Identity{Node: "web1", Role: "web", Environment: "dev"}, said, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, nil)
}

// Otherwise an operator's own hold, and its reason, would vanish without a trace.
func TestRetirementRecordsReplacedHold(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	a := fleettest.Begin(t, st, fleettest.Dev, "ann")
	node := etcd.Scope{Node: "web1"}
	if err := fleet.In(st).Hold(ctx, fleettest.Dev, node, model.Hold{Mode: model.Freeze, Kind: model.OperatorHold, Who: "bob", Why: "disk swap"}, time.Minute, 0); err != nil {
		t.Fatal(err)
	}
	retires := model.Hold{Mode: model.Stop, Kind: model.RetirementHold, Who: "ann", Why: "the file calls for 1 of web"}
	again := model.Hold{Mode: model.Stop, Kind: model.RetirementHold, Who: "eve", Why: "its retiring was begun and is not done"}
	for i, h := range []model.Hold{retires, retires, again, retires} {
		if err := a.Hold(ctx, "web1", h); err != nil {
			t.Fatal(err)
		}
		f, err := fleet.In(st).State(ctx, fleettest.Dev)
		got := f.Holds[node]
		if b := got.Replaced; err != nil || got.Why != h.Why || got.Who != h.Who || got.Mode != model.Stop || b == nil || b.Who != "bob" || b.Why != "disk swap" || b.Mode != model.Freeze {
			t.Errorf("hold %d is %+v and replaced %+v, want bob's (%v)", i+1, got, b, err)
		}
		resp, err := server.Client().Get(ctx, "/pulley/v1/environments/dev/holds/nodes/web1")
		if err != nil || resp.Kvs[0].Lease != 0 {
			t.Errorf("hold %d ends with the one before: %v", i+1, err)
		}
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/holds/nodes/web1", "{"); err != nil {
		t.Fatal(err)
	}
	if err := a.Hold(ctx, "web1", retires); err != nil {
		t.Errorf("a hold that can't be read is in the way: %v", err)
	}
	if err := errors.Join(a.Hold(ctx, "web2", retires), a.Hold(ctx, "web2", retires)); err != nil {
		t.Fatal(err)
	}
	if f, err := fleet.In(st).State(ctx, fleettest.Dev); err != nil || f.Holds[etcd.Scope{Node: "web2"}].Why != retires.Why {
		t.Errorf("where there was none it is %+v (%v)", f.Holds, err)
	}
}

// Otherwise a machine that takes over a name would run the retirement hooks of the machine before it.
func TestNewMachineGetsNoOldRequest(t *testing.T) {
	t.Parallel()
	st, ctx := fleettest.Open(t, fleettest.Shared.Keyspace(t), ""), t.Context()
	i := access.Identity{Node: "web1", Role: "web", User: "u", Machine: "m1"}
	if err := access.IdentitiesIn(st).Put(ctx, fleettest.Dev, i, 0); err != nil {
		t.Fatal(err)
	}
	update := func(machine, address string) *model.Request {
		t.Helper()
		i, revision, err := access.IdentitiesIn(st).Get(ctx, fleettest.Dev, "web1")
		if err != nil {
			t.Fatal(err)
		}
		i.Machine = machine
		if err := access.IdentitiesIn(st).UpdateHost(ctx, fleettest.Dev, *i, revision, model.Host{Hostname: "web1", Addresses: []string{address}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		hosts, err := fleet.In(st).Hosts(ctx, fleettest.Dev)
		if err != nil || hosts["web1"].MachineID != machine || !slices.Equal(hosts["web1"].Addresses, []string{address}) {
			t.Fatalf("the list has %+v (%v)", hosts["web1"], err)
		}
		return hosts["web1"].Request
	}
	update("m1", "10.0.0.1")
	if err := fleet.In(st).Request(ctx, model.Ref{Environment: "dev"}, "web1", model.Request{ID: "00000000000000aa", Do: model.RequestRetire}); err != nil {
		t.Fatal(err)
	}
	if r := update("m1", "10.0.0.2"); r == nil {
		t.Error("the same machine is not asked any more, at another address")
	}
	if r := update("m2", "10.0.0.2"); r != nil {
		t.Errorf("another machine is asked for %+v", r)
	}
}
