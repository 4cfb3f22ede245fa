package fleet_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// generatedSpec calls for three nodes and a member.
const generatedSpec = `roles: {web: {cardinality: 2}, db: {cardinality: 1, members: [old.example.com]}}`

// generatedNodes are called for, members, beyond the cardinality, or of no role.
var generatedNodes = []string{"web1", "web2", "web3", "db1", "old.example.com", "new.example.com"}

// generate writes the keys of a fleet.
type generate struct {
	*rapid.T
	ops []clientv3.Op
}

func (g *generate) put(key string, value any) {
	b, err := json.Marshal(value)
	if err != nil {
		g.Fatal(err)
	}
	g.ops = append(g.ops, clientv3.OpPut("/pulley/v1/"+key, strings.Replace(`{"v":1,`+string(b[1:]), ",}", "}", 1)))
}

// maybe draws whether a part of the fleet exists.
func (g *generate) maybe(what string) bool { return rapid.Bool().Draw(g.T, what) }

func (g *generate) role(what string) string {
	return rapid.SampledFrom([]string{"web", "db", "other", ""}).Draw(g.T, what)
}

func (g *generate) target(what string) model.Target {
	return model.Target{Release: rapid.SampledFrom([]string{"", "1.0.0", "2.0.0"}).Draw(g.T, what), Data: model.Generation(rapid.IntRange(0, 2).Draw(g.T, what+" data"))}
}

// scope writes the target and the hold of a scope. Each may be missing.
func (g *generate) scope(target, hold string) {
	if g.maybe("target of " + target) {
		g.put("environments/dev/desired/"+target, g.target(target))
	}
	if g.maybe("hold of " + hold) {
		g.put("environments/dev/holds/"+hold, model.Hold{
			Scope: hold, Mode: rapid.SampledFrom([]model.HoldMode{model.Freeze, model.Stop}).Draw(g.T, "mode"),
			Kind: rapid.SampledFrom([]model.HoldKind{model.OperatorHold, model.RetirementHold}).Draw(g.T, "kind"), Why: model.Prose(hold),
		})
	}
}

// node writes what etcd may have of a node.
func (g *generate) node(node string, epoch model.Epoch) {
	g.scope("nodes/"+node, "nodes/"+node)
	ids := rapid.SampledFrom([]string{"aaaa", "bbbb"})
	machine := rapid.SampledFrom([]string{"", "m1", "m2"})
	if g.maybe("listed") {
		h := model.Host{Node: node, Role: g.role("role on the host list"), MachineID: machine.Draw(g.T, "machine")}
		if g.maybe("request") {
			h.Request = &model.Request{ID: ids.Draw(g.T, "request"), Do: rapid.SampledFrom([]model.RequestKind{model.RequestRun, model.RequestRetire}).Draw(g.T, "do")}
		}
		g.put("environments/dev/hosts/nodes/"+node, h)
	}
	if g.maybe("confirmation") {
		g.put("retirements/dev/"+node, model.Confirmation{ID: ids.Draw(g.T, "confirmed"), MachineID: machine.Draw(g.T, "confirmed machine")})
	}
	if g.maybe("status") {
		st := model.Status{Node: node, Role: g.role("role of the status"), Phase: model.Idle, LastGood: g.target("last good")}
		if g.maybe("answer") {
			st.Answer = &model.Answer{ID: ids.Draw(g.T, "answered")}
		}
		g.put("status/dev/"+node, st)
	}
	if g.maybe("assignment") {
		g.put("environments/dev/assigned/"+node, model.Assignment{Target: g.target("assigned"), Rollout: "r", Epoch: epoch - model.Epoch(rapid.IntRange(0, 1).Draw(g.T, "epoch"))})
	}
}

// Commands about one node read it alone: they must not show another state than those that read the whole fleet.
func TestOneNodeIsSeenAsInTheFleet(t *testing.T) {
	t.Parallel()
	server, ref, now := etcdtest.Start(t), model.Ref{Environment: "dev"}, time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	rapid.Check(t, func(t *rapid.T) {
		g := &generate{T: t}
		for _, scope := range []string{"roles/web", "roles/db", "roles/other"} {
			g.scope(scope, scope)
		}
		g.scope("default", "all")
		epoch := model.Epoch(rapid.IntRange(1, 3).Draw(t, "epoch"))
		g.put("environments/dev/gate", model.Gate{State: rapid.SampledFrom([]model.GateState{model.GateOpen, model.GatePaused}).Draw(t, "gate"), Epoch: epoch})
		for _, node := range generatedNodes {
			g.node(node, epoch)
		}
		ctx := t.Context()
		e, err := environments.Parse("dev.yaml", []byte(generatedSpec))
		if err == nil {
			_, err = server.Client().Delete(ctx, "/pulley/", clientv3.WithPrefix())
		}
		if err == nil {
			_, err = server.Client().Txn(ctx).Then(g.ops...).Commit()
		}
		if err == nil {
			err = specs.In(s).PutSpec(ctx, e, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		all, err := fleet.In(s).State(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range append(generatedNodes, "nobody9") {
			one, err := fleet.In(s).One(ctx, ref, node)
			if err != nil {
				t.Fatal(err)
			}
			sel := fleet.Selection{Nodes: []string{node}}
			want, got := fleet.Look(all, ref, sel, now), fleet.Look(one, ref, sel, now)
			same(t, node, "status", got, want)
			x, y := fleet.Explain(one, ref, node, now), fleet.Explain(all, ref, node, now)
			same(t, node, "explanation", x, y)
			if len(want.Nodes) == 1 {
				role := want.Nodes[0].Role
				same(t, node, "desired state", one.Desired(role, node), all.Desired(role, node))
			}
			if refused := slices.Contains(all.Unconfirmed, node); refused != slices.Contains(one.Unconfirmed, node) || len(one.Unconfirmed) > 1 {
				t.Fatalf("%s: unconfirmed alone %v, in the fleet %v", node, one.Unconfirmed, all.Unconfirmed)
			}
		}
	})
}

// A removed node needs a token, also if so many nodes were removed that their identities are listed at once.
func TestRemovedNodesAreNamed(t *testing.T) {
	t.Parallel()
	server, ref := etcdtest.Start(t), model.Ref{Environment: "dev"}
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte(generatedSpec))
	if err == nil {
		err = specs.In(s).PutSpec(t.Context(), e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := server.Client().Put(t.Context(), "/pulley/v1/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	put("identities/dev/web1", `{"v":1,"node":"web1","removed":{"at":"2026-03-04T05:06:07Z","by":"ann","why":"scrapped"}}`)
	put("identities/dev/gone7", `{"v":1,"node":"gone7","removed":{"at":"2026-03-04T05:06:07Z"}}`)
	put("status/dev/gone7", `{"v":1,"node":"gone7"}`)
	put("identities/dev/web2", `{"v":1,"node":"web2","user":"pulley/node/dev/web2/1"}`)
	for i := 1; i <= 30; i++ {
		put(fmt.Sprintf("status/dev/web%d", i), fmt.Sprintf(`{"v":1,"node":"web%d"}`, i))
		if i != 2 && i != 30 {
			continue
		}
		f, err := fleet.Find(t.Context(), s, ref, fleet.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]model.Prose{
			"web1":  "2026-03-04T05:06:07Z by ann, scrapped; " + model.Prose(fleet.JoinAgain(ref.String(), "web1")),
			"gone7": "2026-03-04T05:06:07Z; `pulley nodes remove gone7 -e dev --forget` deletes its status and runs; " + model.Prose(fleet.JoinAgain(ref.String(), "gone7")),
		}
		if !reflect.DeepEqual(f.Removed, want) {
			t.Errorf("of %d nodes: %v", i, f.Removed)
		}
	}
}

func same(t *rapid.T, node, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("the %s of %s alone:\n%s\nin the fleet:\n%s", what, node, indented(got), indented(want))
	}
}

func indented(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Sprintf("%+v (%v)", v, err)
	}
	return string(b)
}

// One value that cannot be read must not hide the nodes.
func TestUnreadableProvisioningHidesNoNode(t *testing.T) {
	t.Parallel()
	server := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st, ref := server.Admin(), model.Ref{Environment: "dev"}
	spec := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "web", Cardinality: 1}}}
	if err := specs.In(st).PutSpec(t.Context(), spec, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := server.ClientOf(etcdtest.Serve).Put(t.Context(), "/pulley/v1/environments/dev/provisioning", "x"); err != nil {
		t.Fatal(err)
	}
	r, err := fleet.ReadHosts(t.Context(), st, ref, fleet.Selection{}, time.Now())
	if err != nil || len(fleet.Hosts(r, time.Now())) != 1 || len(r.Damaged) != 1 || !strings.Contains(r.Damaged[0], "dev/provisioning") {
		t.Errorf("%q, %v", r.Damaged, err)
	}
}
