package fleet

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
)

// An operator begins work on a machine after a drain: a run that is in progress must not be overlooked, and a later one not awaited.
func TestDrainAwaitsTheRunsInProgress(t *testing.T) {
	t.Parallel()
	server, ctx, ref := etcdtest.Start(t), t.Context(), model.Ref{Environment: "dev"}
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	report := func(node string, phase model.Phase, run string) {
		t.Helper()
		st := model.Status{Node: node, Role: "web", Phase: phase, LastRun: run, SeenAt: time.Now(), Settings: model.DefaultSettings()}
		if err := control.In(s).Report(ctx, model.Identity{Node: node, Environment: "dev"}, st, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	for node, role := range map[string]string{"web1": "web", "web2": "web", "web3": "web", "db1": "db"} {
		if err := In(s).Register(ctx, "dev", model.Host{Node: node, Role: role}); err != nil {
			t.Fatal(err)
		}
		report(node, model.Running, "1")
	}
	report("web3", model.Idle, "1")

	ignore := func(Drained) {}
	_, err = Drain(ctx, In(s), ref, etcd.Scope{Role: "web"}, time.Second, time.Now, ignore)
	if late := (*StillRunningError)(nil); !errors.As(err, &late) || !strings.HasPrefix(err.Error(), "cannot complete the drain of dev: 2 of 2 runs did not end within 1s, on web1, web2\n") {
		t.Fatal(err)
	}
	first := true
	d, err := Drain(ctx, In(s), ref, etcd.Scope{Role: "web"}, time.Minute, time.Now, func(Drained) {
		if first {
			first = false
			report("web1", model.Idle, "1")
			report("web2", model.Running, "2")
		}
	})
	if err != nil || d.Sentence() != "2 of 2 runs ended" {
		t.Errorf("%+v, %v", d, err)
	}
	d, err = Drain(ctx, In(s), ref, etcd.Scope{Node: "web3"}, time.Minute, func() time.Time { return time.Now().Add(24 * time.Hour) }, ignore)
	if err != nil || d.Runs != 0 || strings.Join(d.Silent, " ") != "web3" {
		t.Errorf("%+v, %v", d, err)
	}
}
