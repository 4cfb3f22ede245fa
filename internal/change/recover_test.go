package change

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// Nodes use no permit and no statement below the epoch of one that they verified. Somebody who deletes the newest changes from the
// history must not make a recovery write such an epoch, nor hide that one is needed.
func TestRecoverNeverLowersTheEpoch(t *testing.T) {
	t.Parallel()
	server, dev, ctx := etcdtest.Start(t), environments.Ref{Environment: "dev"}, t.Context()
	const root = "/pulley/v1/environments/dev/"
	s, err := store.Open(store.Config{Endpoints: []string{server.Endpoint}, Prefix: store.DefaultPrefix, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 2}\n"))
	if err == nil {
		err = s.Environments.PutSpec(ctx, e, 0)
	}
	if err == nil {
		err = s.Fleet.Register(ctx, "dev", agent.Host{Node: "web1", Role: "web"})
	}
	if err != nil {
		t.Fatal(err)
	}
	a := Author{Author: store.Author{By: "ann", At: time.Now()}}
	recovered := func(want ...agent.Epoch) {
		t.Helper()
		done, err := Recover(ctx, s, dev, a.At.Add(time.Hour), false, a)
		var got []agent.Epoch
		for _, r := range done {
			got = append(got, r.Epoch)
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("recovered at the epochs %v, not %v; %v", got, want, err)
		}
	}
	reports := func(node string, epoch agent.Epoch) {
		t.Helper()
		st := agent.Status{Node: node, Role: "web", Signatures: &agent.Signatures{State: agent.SignaturesChecked, Statement: epoch}}
		if err := s.Node.Report(ctx, agent.Identity{Node: node, Environment: "dev"}, st, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	lost := func(from, to agent.Epoch) { // deletes changes
		t.Helper()
		key := func(e agent.Epoch) string { return fmt.Sprintf("%shistory/%012d", root, e) }
		if _, err := server.Client().Delete(ctx, key(from), clientv3.WithRange(key(to+1))); err != nil {
			t.Fatal(err)
		}
	}
	recovered() // nothing exists
	for range 5 {
		d, err := s.Targets.Desires(ctx, dev)
		if err == nil {
			_, err = s.Targets.Promote(ctx, dev, d, store.Scope{}, store.Promoted, agent.Target{}, a.store())
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
	reports("web1", 5)
	lost(2, 2)
	recovered() // older than the last recovery
	lost(1, 6)
	recovered(7) // the gate has epoch 6
	recovered()
	key := root + "history/9223372036854775806"
	if _, err := server.Client().Put(ctx, key, `{"v":1,"epoch":9223372036854775806,"kind":"promote"}`); err != nil {
		t.Fatal(err)
	}
	if _, err := Recover(ctx, s, dev, a.At.Add(time.Hour), false, a); err == nil || !strings.Contains(err.Error(), "find who wrote "+key+", and delete it") {
		t.Errorf("a change that somebody wrote: %v", err)
	}
}
