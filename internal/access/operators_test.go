package access_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/choice"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// A rollback must not undo a colleague's promotion that came after its decision.
func TestRollbackKeepsConcurrentPromotion(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	ctx := t.Context()
	promote := func(version string) {
		t.Helper()
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{}, targets.Promoted, fleettest.Published(t, st, version, "a"), fleettest.Me); err != nil {
			t.Fatal(err)
		}
	}
	promote("1.0.0")
	promote("2.0.0")
	d, err := targets.In(st).Desires(ctx, fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	promote("3.0.0")
	history, err := targets.In(st).HistoryOf(ctx, fleettest.Dev, d)
	if err != nil {
		t.Fatal(err)
	}
	if undo, ok := targets.Undo(history, etcd.Scope{}); !ok || undo.Epoch != d.Gate.Epoch {
		t.Errorf("would revert %+v, and the gate that was read is at epoch %d", undo, d.Gate.Epoch)
	} else if _, err := targets.In(st).Rollback(ctx, fleettest.Dev, d, undo, fleettest.Me); !errors.Is(err, etcd.ErrConflict) {
		t.Errorf("a rollback from a stale view: %v, want a conflict", err)
	}
}

// A rollback that only undoes a signature changes no release when an operator needs it.
func TestUndoSkipsChangesWithoutEffect(t *testing.T) {
	t.Parallel()
	one, two := model.Target{Release: "1.0.0"}, model.Target{Release: "2.0.0"}
	history := []targets.Change{
		{Epoch: 4, Kind: targets.Promoted, Before: one, After: one},
		{Epoch: 3, Kind: targets.RolledBack, Before: two, After: one, Undoes: 2},
		{Epoch: 2, Kind: targets.Promoted, Before: one, After: two},
		{Epoch: 1, Kind: targets.Promoted, After: one},
	}
	for from, want := range map[int]model.Epoch{0: 1, 1: 1, 2: 2, 3: 1} {
		if undo, ok := targets.Undo(history[from:], etcd.Scope{}); !ok || undo.Epoch != want {
			t.Errorf("from epoch %d it reverts %d, want %d", history[from].Epoch, undo.Epoch, want)
		}
	}
	if undo, ok := targets.Undo(history[:1], etcd.Scope{}); ok {
		t.Errorf("reverts %+v", undo)
	}
}

// One version with two spellings would be two releases that look the same.
func TestVersionsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"1.0.0", "0.0.1", "1.10.0", "1.0.0-rc1", "1.0.0-rc.1", "1.0.0-1", "1.0.0-alpha-beta.2"} {
		if _, err := release.ParseVersion(v); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
	for v, meant := range map[string]string{
		"1.0": "1.0.0", "v1.0.0": "1.0.0", "01.0.0": "1.0.0", "v1.0.0+b": "1.0.0+b", "1": "1.0.0", "v1.2-rc1": "1.2.0-rc1",
		"1.0.0.1": "", "1.0.0-01": "", "1.0.0-": "1.0.0", "": "", "1.0.0 ": "", "latest": "", "99999999999999999999.0.0": "",
	} {
		_, err := release.ParseVersion(v)
		if err == nil || meant == "" == strings.Contains(err.Error(), "did you mean") || meant != "" && !strings.HasSuffix(err.Error(), "did you mean "+meant+"?") {
			t.Errorf("%q: %v, want a hint at %q", v, err, meant)
		}
	}
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	fleettest.Published(t, st, "1.0.0", "a")
	if _, err := (choice.Taker{}).Resolve(t.Context(), release.In(st), "v1.0.0"); err == nil || !strings.Contains(err.Error(), "did you mean 1.0.0?") {
		t.Errorf("promoting v1.0.0: %v", err)
	}
}

// A key of unknown meaning must not become the target or hold of all nodes.
func TestUnknownKeysAreIgnored(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	if _, err := targets.In(st).Promote(ctx, fleettest.Dev, targets.Desires{}, etcd.Scope{}, targets.Promoted, fleettest.Published(t, st, "1.0.0", "a"), fleettest.Me); err != nil {
		t.Fatal(err)
	}
	unknown := []string{"desired/zzz", "desired/roles", "desired/roles/", "desired/nodes/a/b", "desired/all", "holds/zzz", "holds/default", "holds/roles/a/b"}
	for _, key := range unknown {
		if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/"+key, `{"v":1,"release":"6.6.6","mode":"stop"}`); err != nil {
			t.Fatal(err)
		}
	}
	f, err := fleet.In(st).State(ctx, fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	if f.Desires.Default.Release != "1.0.0" || len(f.Desires.Roles)+len(f.Desires.Nodes)+len(f.Holds) != 0 {
		t.Errorf("targets %+v, holds %+v", f.Desires, f.Holds)
	}
	for _, key := range unknown {
		if !strings.Contains(strings.Join(f.Damaged, "\n"), key+": ") {
			t.Errorf("%s is not reported: %q", key, f.Damaged)
		}
	}
}

// The operator's remedy differs between a wrong address and a missing permission.
func TestOtherServersDifferFromRefusals(t *testing.T) {
	t.Parallel()
	for _, code := range []int{200, 401, 403, 404, 418} {
		web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		web.Config.Protocols = &http.Protocols{}
		web.Config.Protocols.SetUnencryptedHTTP2(true)
		web.Start()
		st, err := etcd.Open(etcd.Config{Endpoints: []string{web.URL}, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.In(st).Ping(t.Context()); !errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), web.URL+": another server answers there") {
			t.Errorf("a web server that says %d: %v", code, err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		web.Close()
	}
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	raw := server.Client()
	if _, err := raw.RoleAdd(t.Context(), "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.UserAdd(t.Context(), "root", "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.UserGrantRole(t.Context(), "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := cluster.In(st).Ping(t.Context())
	if errors.Is(err, model.ErrUnreachable) || err == nil || !strings.Contains(err.Error(), "etcd refuses a client without a certificate: ") {
		t.Errorf("without an identity: %v", err)
	}
}

// After a restart etcd gives every lease its full time again. A hold must still end on time.
func TestHoldsEndOnTimeAfterRestart(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	e, err := environments.Parse("dev.yaml", []byte("roles: {compute: {cardinality: 2}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := specs.In(st).PutSpec(ctx, e, 0); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for node, ends := range map[string]time.Duration{"compute1": -time.Second, "compute2": time.Minute} {
		if err := fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{Node: node}, model.Hold{Mode: model.Stop, Until: now.Add(ends)}, time.Hour, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := fleet.In(st).Hold(ctx, fleettest.Dev, etcd.Scope{}, model.Hold{Mode: model.Stop}, 0, 0); err != nil {
		t.Fatal(err)
	}
	ended, err := fleet.In(st).EndHolds(ctx, now)
	if err != nil || ended != 1 {
		t.Errorf("%d ended, %v", ended, err)
	}
	f, err := fleet.In(st).State(ctx, fleettest.Dev)
	if err != nil {
		t.Fatal(err)
	}
	_, second := f.Holds[etcd.Scope{Node: "compute2"}]
	if _, all := f.Holds[etcd.Scope{}]; len(f.Holds) != 2 || !second || !all {
		t.Errorf("holds: %+v", f.Holds)
	}
	raw := server.Client()
	resp, err := raw.Get(ctx, "/pulley/v1/environments/dev/holds/nodes/compute2")
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	lease, err := raw.TimeToLive(ctx, clientv3.LeaseID(resp.Kvs[0].Lease))
	if err != nil || lease.GrantedTTL > 61 || lease.GrantedTTL < 50 {
		t.Errorf("the hold that has a minute left has a lease of %+v, %v", lease, err)
	}
}

// A change whose answer was lost must not be reported as a failure: an operator would repeat it, or not watch it.
func TestLostAnswerIsReadAgain(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	ctx := t.Context()
	direct := fleettest.Open(t, server, "")
	target := fleettest.Published(t, direct, "1.0.0", "a")
	if _, err := targets.In(direct).Promote(ctx, fleettest.Dev, targets.Desires{}, etcd.Scope{}, targets.Promoted, fleettest.Published(t, direct, "2.0.0", "b"), fleettest.Me); err != nil {
		t.Fatal(err)
	}
	for _, back := range []bool{true, false} {
		wire := fleettest.NewWire(t, strings.TrimPrefix(server.Endpoint, "http://"))
		st, err := etcd.Open(etcd.Config{Endpoints: []string{wire.Address()}, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		d, err := targets.In(st).Desires(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		author := fleettest.Me
		author.Sign = func(context.Context, trust.Namespace, []byte) ([]byte, error) {
			wire.Mute() // all reads are done; only the write remains
			return nil, nil
		}
		go func() { // cut the wire only after etcd has the change
			key := "/pulley/v1/environments/dev/gate"
			for watched := range server.Client().Watch(ctx, key, clientv3.WithRev(d.Revision+1)) {
				if len(watched.Events) > 0 {
					wire.Cut(back)
					return
				}
			}
		}()
		c, err := targets.In(st).Promote(ctx, fleettest.Dev, d, etcd.Scope{}, targets.Promoted, target, author)
		if back && (err != nil || c.Epoch != d.Gate.Epoch+1) {
			t.Errorf("the change is in force, and yet: %v", err)
		}
		if !back && (!errors.Is(err, model.ErrUnreachable) || !strings.Contains(err.Error(), "the outcome is unknown: check `pulley history -e ENVIRONMENT`")) {
			t.Errorf("the outcome is unknown, but the error is: %v", err)
		}
	}
}

// A write that was surely not sent has no unknown outcome: an operator would search for a change that cannot be there, and a job of CI
// would stop for it.
func TestWriteThatWasNotSentHasAnOutcome(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	for name, write := range map[string]func(*testing.T, *etcd.DB, release.Sign) error{
		"a change": func(t *testing.T, st *etcd.DB, cut release.Sign) error {
			author, d := fleettest.Me, fleettest.Desires(t, st, fleettest.Dev)
			author.Sign = cut
			data, err := targets.In(st).Data(t.Context(), fleettest.Dev, d)
			if err == nil {
				_, err = targets.In(st).ChangeData(t.Context(), fleettest.Dev, d, data, map[hieradata.Layer][]byte{hieradata.Environment: []byte("x: 1\n")}, author)
			}
			return err
		},
		"a publish": func(t *testing.T, st *etcd.DB, cut release.Sign) error {
			_, err := release.In(st).Put(t.Context(), fleettest.Publishing(t, st, "ann"), fleettest.ARelease("2.0.0", "a"), nil, cut)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire := fleettest.NewWire(t, strings.TrimPrefix(server.Endpoint, "http://"))
			st, err := etcd.Open(etcd.Config{Endpoints: []string{wire.Address()}, Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			err = write(t, st, func(context.Context, trust.Namespace, []byte) ([]byte, error) {
				wire.Cut(false)
				if err := cluster.In(st).Ping(t.Context()); err == nil {
					t.Error("etcd answers without a wire")
				}
				return nil, nil
			})
			if !errors.Is(err, model.ErrUnreachable) || errors.Is(err, etcd.ErrUnknownOutcome) || strings.Contains(err.Error(), "outcome") {
				t.Error(err)
			}
		})
	}
}

// A mistyped name or a removed machine must not stay in the fleet's view forever.
func TestForgetDeletesNode(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	for _, node := range []string{"controller1", "controller10"} {
		id := model.Identity{Node: node, Environment: "dev"}
		if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: node}); err != nil {
			t.Fatal(err)
		}
		if err := control.In(st).Report(ctx, id, model.Status{Node: node}, []model.EncodedRun{{ID: "1", Bytes: []byte("x")}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := access.JoinsIn(st).ForgetNode(ctx, fleettest.Dev, "controller1", access.Removal{}, records.Left); err != nil {
		t.Fatal(err)
	}
	if keys := strings.Join(server.Keys(), " "); strings.Contains(keys+" ", "/controller1 ") || strings.Contains(keys, "/controller1/") || strings.Count(keys, "controller10") != 3 {
		t.Errorf("left: %s", keys)
	}
	if _, err := access.JoinsIn(st).ForgetNode(ctx, fleettest.Dev, "controller1", access.Removal{}, records.Left); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("nothing was left to forget: %v", err)
	}
}

// A write whose answer was lost may be in force. An operator who sees a failure repeats the write, or does not watch its effect.
func TestLostAnswerIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	ctx := t.Context()
	for node, back := range map[string]bool{"compute1": true, "compute2": false} {
		wire := fleettest.NewWire(t, strings.TrimPrefix(server.Endpoint, "http://"))
		st, err := etcd.Open(etcd.Config{Endpoints: []string{wire.Address()}, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		if err := cluster.In(st).Ping(ctx); err != nil {
			t.Fatal(err)
		}
		watched := server.Client().Watch(ctx, "/pulley/v1/identities/dev/"+node)
		wire.Mute()
		go func() { // cut the wire only after etcd has the write
			for w := range watched {
				if len(w.Events) > 0 {
					wire.Cut(back)
					return
				}
			}
		}()
		err = access.IdentitiesIn(st).Put(ctx, fleettest.Dev, access.Identity{Node: node, Role: "compute"}, 0)
		if back && err != nil {
			t.Errorf("the write is in force, and yet: %v", err)
		}
		if !back && (!errors.Is(err, etcd.ErrUnknownOutcome) || !errors.Is(err, model.ErrUnreachable)) {
			t.Errorf("nobody knows the outcome, and yet: %v", err)
		}
	}
}

// The thief of a node's key can read the machine ID of no other node, but may know it. An operator would delete the accused machine.
func TestDuplicateAccusesNoOtherNode(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st, ctx := fleettest.Open(t, server, ""), t.Context()
	const victim, stranger = "11111111111111111111111111111111", "22222222222222222222222222222222"
	if err := access.IdentitiesIn(st).Put(ctx, fleettest.Dev, access.Identity{Node: "compute1", User: "u1", Machine: victim}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/machines/dev/"+victim, `{"v":1,"node":"compute1"}`); err != nil {
		t.Fatal(err)
	}
	for machine, want := range map[string]string{victim: "", stranger: stranger} {
		c := access.Duplicate{Machine: machine, Hostname: "compute1", Addresses: []string{"192.0.2.1"}, From: "192.0.2.66"}
		c, err := access.IdentitiesIn(st).Credible(ctx, fleettest.Dev, "compute2", c)
		if err != nil || c.Machine != want || (c.Hostname == "") != (want == "") || c.From != "192.0.2.66" {
			t.Errorf("machine %s: %+v, %v", machine, c, err)
		}
	}
	// Of its own node, the ID is no accusation.
	if c, err := access.IdentitiesIn(st).Credible(ctx, fleettest.Dev, "compute1", access.Duplicate{Machine: victim}); err != nil || c.Machine != victim {
		t.Errorf("%+v, %v", c, err)
	}
}
