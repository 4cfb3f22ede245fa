package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	pruning "pulley/internal/publish"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/release/trust"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// putAgent publishes a version like `pulley agents publish`, and returns its record and its program.
func putAgent(t *testing.T, st *etcd.DB, version string) (release.AgentRelease, []byte) {
	t.Helper()
	program := bytes.Repeat([]byte("agent "+version+"\n"), 10_000)
	p := fleettest.Publishing(t, st, "ann")
	packed, err := content.PackProgram(program, func(hash string, b []byte) error {
		_, err := release.In(st).PutObject(t.Context(), hash, b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := release.AgentRelease{Version: version, Platforms: map[string]content.Program{"linux/amd64": packed}, Author: "ann", At: time.Now().UTC().Truncate(time.Second)}
	if created, err := release.In(st).PutAgent(t.Context(), p, r, nil); err != nil || !created {
		t.Fatal(created, err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return r, program
}

// Otherwise the version on the next node differs from the tested one.
func TestAgentVersionNeverChanges(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	r, _ := putAgent(t, st, "1.2.0")
	p := fleettest.Publishing(t, st, "bob")
	defer p.Close()
	if created, err := release.In(st).PutAgent(t.Context(), p, r, nil); err != nil || created {
		t.Errorf("the same again: %t, %v", created, err)
	}
	other, _ := putAgent(t, st, "1.3.0")
	other.Version = "1.2.0"
	if _, err := release.In(st).PutAgent(t.Context(), p, other, nil); err == nil || !strings.Contains(err.Error(), "it is published already, with other programs") {
		t.Errorf("other programs under the same version: %v", err)
	}
	for name, change := range map[string]func(*release.AgentRelease){
		"no version": func(r *release.AgentRelease) { r.Version = "newest" },
		"no program": func(r *release.AgentRelease) { r.Platforms = nil },
		"no real hash": func(r *release.AgentRelease) {
			r.Platforms = map[string]content.Program{"linux/amd64": {SHA256: "../x", Size: 1}}
		},
	} {
		bad := r
		change(&bad)
		if _, err := release.In(st).PutAgent(t.Context(), p, bad, nil); err == nil {
			t.Errorf("%s: it is published", name)
		}
	}
}

// A signature must cover the bytes that nodes read.
func TestSignatureCoversStoredAgent(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	r, program := putAgent(t, st, "1.2.0")
	var signed []byte
	sign := func(_ context.Context, ns trust.Namespace, record []byte) ([]byte, error) {
		if ns != trust.Agent {
			t.Errorf("signed as %q", ns)
		}
		signed = record
		return nil, errors.New("the key is at home")
	}
	if err := release.In(st).SignAgent(t.Context(), "1.2.0", sign); err == nil || !strings.Contains(err.Error(), "at home") {
		t.Errorf("without the key: %v", err)
	}
	have, err := release.In(st).Agent(t.Context(), "1.2.0")
	if err != nil || !bytes.Equal(have.Record, signed) {
		t.Errorf("signed\n%s\nstored\n%s, %v", signed, have.Record, err)
	}
	if _, err := release.In(st).Agent(t.Context(), "1.2.1"); !errors.Is(err, etcd.ErrNotFound) {
		t.Errorf("one that there is not: %v", err)
	}
	found, ok := have.Platforms["linux/amd64"]
	if !ok || found.SHA256 != r.Platforms["linux/amd64"].SHA256 {
		t.Fatalf("the program of this platform is %+v", found)
	}
	var out bytes.Buffer
	if err := found.CopyTo(t.Context(), &out, release.In(st)); err != nil || !bytes.Equal(out.Bytes(), program) {
		t.Errorf("the program comes out with %d bytes: %v", out.Len(), err)
	}
}

// A prune that deletes an agent's program prevents a fleet from going back to it, and machines from booting.
func TestPruneKeepsAgentsComplete(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st := fleettest.Open(t, server, "")
	fleettest.Line(t, st, 7)
	r, program := putAgent(t, st, "1.2.0")
	plan, err := pruning.PlanPrune(t.Context(), st, fleettest.Few, time.Now())
	if err != nil || len(plan.Releases) == 0 || len(plan.Objects) == 0 {
		t.Fatalf("there is nothing to prune: %+v, %v", plan, err)
	}
	if _, err := pruning.ApplyPrune(t.Context(), st, plan); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := r.Platforms["linux/amd64"].CopyTo(t.Context(), &out, release.In(st)); err != nil || !bytes.Equal(out.Bytes(), program) {
		t.Errorf("after a prune the program has %d bytes: %v", out.Len(), err)
	}
	// An unreadable record might need any object.
	if _, err := server.Client().Put(t.Context(), "/pulley/v1/agents/1.2.0", "nonsense"); err != nil {
		t.Fatal(err)
	}
	if _, err := pruning.PlanPrune(t.Context(), st, fleettest.Few, time.Now()); err == nil || !strings.Contains(err.Error(), "agents/1.2.0") {
		t.Errorf("with a record that can't be read: %v", err)
	}
}

// A node with the wrong choice, its role's or another node's, runs an unwanted agent.
func TestAgentVersionOfClosestScope(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	ctx := t.Context()
	wants := func(when, want string, downgrade bool, try int64) {
		t.Helper()
		d, err := control.In(st).Desire(ctx, fleettest.ID)
		if err != nil || d.Agent != (model.AgentChoice{Version: want, Downgrade: downgrade, Try: try}) {
			t.Errorf("%s: %+v, %v", when, d.Agent, err)
		}
	}
	put := func(change func(*desired.AgentWish)) {
		t.Helper()
		w, revision, err := fleet.In(st).AgentWish(ctx, fleettest.Dev)
		if err != nil {
			t.Fatal(err)
		}
		change(&w)
		if err := fleet.In(st).PutAgentWish(ctx, fleettest.Dev, w, revision); err != nil {
			t.Fatal(err)
		}
		if err := fleet.In(st).PutAgentWish(ctx, fleettest.Dev, w, revision); !errors.Is(err, etcd.ErrConflict) {
			t.Errorf("a second write at the same revision: %v", err)
		}
	}
	choose := func(s etcd.Scope, version string, downgrade bool) {
		t.Helper()
		put(func(w *desired.AgentWish) { w.Choose(s, model.AgentChoice{Version: version, Downgrade: downgrade}) })
	}
	wants("no version is set", "", false, 0)
	choose(etcd.Scope{}, "1.0.0", false)
	wants("the default", "1.0.0", false, 0)
	choose(etcd.Scope{Role: "compute"}, "1.5.0", false)
	choose(etcd.Scope{Node: "controller2"}, "1.6.0", false)
	wants("other roles and nodes", "1.0.0", false, 0)
	choose(etcd.Scope{Role: fleettest.ID.Role}, "2.0.0", false)
	wants("the role's", "2.0.0", false, 0)
	choose(etcd.Scope{Node: fleettest.ID.Node}, "1.0.0", true)
	wants("its own", "1.0.0", true, 0)
	put(func(w *desired.AgentWish) { w.Try++ })
	wants("once more", "1.0.0", true, 1)
	choose(etcd.Scope{Node: fleettest.ID.Node}, "", false)
	choose(etcd.Scope{Role: fleettest.ID.Role}, "", false)
	wants("given back", "1.0.0", false, 1)
	choose(etcd.Scope{}, "", false)
	wants("no default", "", false, 0)
}

// Every node reads the document in each tick: thousands of pins would cost a fleet more than all other reads.
func TestAgentVersionsRecordIsBounded(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	var w desired.AgentWish
	for n := range 1000 {
		w.Choose(etcd.Scope{Node: fmt.Sprintf("compute%d", n)}, model.AgentChoice{Version: "1.0.0"})
	}
	if err := fleet.In(st).PutAgentWish(t.Context(), fleettest.Dev, w, 0); err == nil || !strings.Contains(err.Error(), "pin roles, not nodes") {
		t.Errorf("a thousand pins: %v", err)
	}
}

// A self-test that changes a node's report misleads an operator.
func TestRepeatChangesNothing(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	if err := control.In(st).RepeatStatus(t.Context(), fleettest.ID); err != nil || len(server.Keys()) != 0 {
		t.Errorf("of a node that never spoke: %v, %v", err, server.Keys())
	}
	if _, ok, err := control.In(st).Status(t.Context(), fleettest.ID); ok || err != nil {
		t.Errorf("it spoke: %t, %v", ok, err)
	}
	said := model.Status{Node: fleettest.ID.Node, Role: fleettest.ID.Role, Version: "1.0.0"}
	if err := control.In(st).Report(t.Context(), fleettest.ID, said, nil, nil); err != nil {
		t.Fatal(err)
	}
	key := "/pulley/v1/status/dev/" + fleettest.ID.Node
	before, err := server.Client().Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := control.In(st).RepeatStatus(t.Context(), fleettest.ID); err != nil {
		t.Fatal(err)
	}
	after, err := server.Client().Get(t.Context(), key)
	if err != nil || !bytes.Equal(before.Kvs[0].Value, after.Kvs[0].Value) || after.Kvs[0].Version != before.Kvs[0].Version+1 {
		t.Errorf("before %v, after %v, %v", before.Kvs, after.Kvs, err)
	}
	if st, ok, err := control.In(st).Status(t.Context(), fleettest.ID); !ok || err != nil || st.Version != "1.0.0" {
		t.Errorf("%+v, %t, %v", st, ok, err)
	}
}

// A node that treats an unreadable wish as none forgets its dropped agents, and crashes again.
func TestUnreadableAgentVersionIsUnknown(t *testing.T) {
	t.Parallel()
	server := fleettest.Shared.Keyspace(t)
	st := fleettest.Open(t, server, "")
	if d, err := control.In(st).Desire(t.Context(), fleettest.ID); err != nil || d.Agent != (model.AgentChoice{}) {
		t.Errorf("no wish: %+v, %v", d.Agent, err)
	}
	for _, text := range []string{"{", `{"v":99}`} { // it does not keep the node from its target
		if _, err := server.Client().Put(t.Context(), "/pulley/v1/environments/dev/agent", text); err != nil {
			t.Fatal(err)
		}
		if d, err := control.In(st).Desire(t.Context(), fleettest.ID); err != nil || d.Agent != (model.AgentChoice{Unknown: true}) {
			t.Errorf("%s: %+v, %v", text, d.Agent, err)
		}
	}
}
