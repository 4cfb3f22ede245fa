package promotion

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/model/refusal"
	"pulley/internal/release/trust"
	"pulley/internal/testbed/etcdtest"
)

// Nodes use no permit and no statement below the epoch of one that they verified. Somebody who deletes the newest changes from the
// history must not make a recovery write such an epoch, nor hide that one is needed.
func TestRecoverNeverLowersTheEpoch(t *testing.T) {
	t.Parallel()
	server, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 2}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	const root = "/pulley/v1/environments/dev/"
	a := Author{Author: targets.Author{By: "ann", At: time.Now()}}
	recovered := func(want ...model.Epoch) {
		t.Helper()
		done, err := Recover(ctx, s, dev, a.At.Add(time.Hour), false, a)
		var got []model.Epoch
		for _, r := range done.Scopes {
			got = append(got, r.Epoch)
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("recovered at the epochs %v, not %v; %v", got, want, err)
		}
	}
	reports := func(node string, epoch model.Epoch) {
		t.Helper()
		st := model.Status{Node: node, Role: "web", Signatures: &model.Signatures{State: model.SignaturesChecked, Statement: epoch}}
		if err := control.In(s).Report(ctx, model.Identity{Node: node, Environment: "dev"}, st, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	lost := func(from, to model.Epoch) { // deletes changes
		t.Helper()
		key := func(e model.Epoch) string { return fmt.Sprintf("%shistory/%012d", root, e) }
		if _, err := server.Client().Delete(ctx, key(from), clientv3.WithRange(key(to+1))); err != nil {
			t.Fatal(err)
		}
	}
	recovered() // nothing exists
	for range 5 {
		d, err := targets.In(s).Desires(ctx, dev)
		if err == nil {
			_, err = targets.In(s).Promote(ctx, dev, d, etcd.Scope{}, targets.Promoted, model.Target{}, a.Signing())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	reports("web1", 5)
	recovered()
	lost(4, 5) // the gate has epoch 5
	recovered(6)
	lost(4, 6)
	if _, err := server.Client().Put(ctx, root+"gate", `{"v":1,"epoch":3,"state":"open"}`); err != nil {
		t.Fatal(err)
	}
	recovered(6) // only the node knows of epoch 5
	reports("web1", 1<<63-1)
	recovered() // a thief of the node's key reports what ends all later changes
	reports("web1", model.Epoch(a.At.Unix())+2_000_000_001)
	recovered() // nodes would refuse the next epoch
	reports("web1", 5)
	lost(2, 2)
	recovered() // older than the last recovery
	lost(1, 6)
	recovered(7) // the gate has epoch 6
	recovered()
	high := model.Epoch(a.At.Unix()) + 1_900_000_000 // by a stolen key
	reports("web1", high)
	recovered(high + 1)
	recovered()
	key := root + "history/9223372036854775806"
	if _, err := server.Client().Put(ctx, key, `{"v":1,"epoch":9223372036854775806,"kind":"promote"}`); err != nil {
		t.Fatal(err)
	}
	if _, err := Recover(ctx, s, dev, a.At.Add(time.Hour), false, a); err == nil || !strings.Contains(err.Error(), "find who wrote "+key+", and delete it") {
		t.Errorf("a change that somebody wrote: %v", err)
	}
}

// The holder of a stolen key signed under the highest epoch that nodes accept. A recovery of several scopes must not stop in the middle.
func TestRecoverAboveTheHighestEpoch(t *testing.T) {
	t.Parallel()
	server, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 2}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	a := Author{Author: targets.Author{By: "ann", At: time.Now()}}
	highest := model.Epoch(trust.MaxEpoch(a.At))
	for _, scope := range []etcd.Scope{{}, {Role: "web"}} {
		d, err := targets.In(s).Desires(ctx, dev)
		if err == nil {
			_, err = targets.In(s).Promote(ctx, dev, d, scope, targets.Promoted, model.Target{}, a.Signing())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	st := model.Status{Node: "web1", Role: "web", Signatures: &model.Signatures{State: model.SignaturesChecked, Permit: highest}}
	if err := control.In(s).Report(ctx, model.Identity{Node: "web1", Environment: "dev"}, st, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/desired/roles/web", `{"v":1,"release":"9.0.0","tree":"x"}`); err != nil {
		t.Fatal(err)
	}
	done, err := Recover(ctx, s, dev, a.At.Add(time.Hour), false, a)
	if err != nil || len(done.Scopes) != 2 || done.Scopes[0].Epoch != highest+1 || done.Scopes[1].Epoch != highest+2 {
		t.Errorf("recovered %+v, %v", done.Scopes, err)
	}
	if again, err := Recover(ctx, s, dev, a.At.Add(time.Hour), false, a); err != nil || len(again.Scopes) != 0 {
		t.Errorf("recovered again %+v, %v", again.Scopes, err)
	}
	d, err := targets.In(s).Desires(ctx, dev)
	if err == nil {
		_, err = targets.In(s).Promote(ctx, dev, d, etcd.Scope{}, targets.Promoted, model.Target{}, a.Signing())
	}
	if err != nil {
		t.Errorf("the next change: %v", err)
	}
}

// Somebody without a key writes a permit. No node uses it, and it must not hide that a node refuses its target.
func TestForgedPermitHidesNoNode(t *testing.T) {
	t.Parallel()
	server, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 2}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	a := Author{Author: targets.Author{By: "ann", At: time.Now()}}
	d, err := targets.In(s).Desires(ctx, dev)
	if err == nil {
		_, err = targets.In(s).Promote(ctx, dev, d, etcd.Scope{}, targets.Promoted, model.Target{}, a.Signing())
	}
	if err != nil {
		t.Fatal(err)
	}
	record, err := trust.Permit{Environment: "dev", Epoch: 1, At: a.At, Data: &trust.DataStep{From: 9}}.Encode()
	if err == nil {
		_, err = server.Client().Put(ctx, "/pulley/v1/environments/dev/rollbacks/000000000001", string(trust.Join(record, []byte("forged"))))
	}
	if err != nil {
		t.Fatal(err)
	}
	st := model.Status{Node: "web1", Role: "web", Signatures: &model.Signatures{State: model.SignaturesChecked, Data: 9}}
	for _, refused := range []bool{false, true} {
		if refused {
			st.Refusal = &model.Refusal{Error: refusal.Error{Code: refusal.DataTooOld}}
		}
		if err := control.In(s).Report(ctx, model.Identity{Node: "web1", Environment: "dev"}, st, nil, nil); err != nil {
			t.Fatal(err)
		}
		done, err := Recover(ctx, s, dev, a.At.Add(time.Hour), true, a)
		if err != nil || (len(done.Scopes) == 1 && len(done.Scopes[0].Nodes) == 1) != refused {
			t.Errorf("refused %v: recovered %+v, %v", refused, done, err)
		}
	}
}
