package records_test

import (
	"fmt"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/control"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/fleettest"
)

// BenchmarkWorld reads a fleet of 5,000 nodes, each with a host, a status and a machine record.
func BenchmarkWorld(b *testing.B) {
	const nodes = 5000
	server := etcdtest.StartAuth(b, etcdtest.AuthOptions{})
	st, ctx := server.Admin(), b.Context()
	a, err := records.In(st).BeginApply(ctx, fleettest.Dev, "ann")
	if err != nil {
		b.Fatal(err)
	}
	e := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "compute", Cardinality: nodes}}}
	if _, err := a.PutSpec(ctx, e, 0); err != nil {
		b.Fatal(err)
	}
	target := model.Target{Release: "1.0.0", Tree: fmt.Sprintf("%064d", 1)}
	for n := range e.Nodes() {
		node := n.String()
		said := model.Status{
			Node: node, Role: "compute", Phase: model.Idle, Action: "nothing", Cause: model.Cause{Reason: model.ReasonUpToDate}, Target: target, LastGood: target, Enforcing: target,
			SeenAt: time.Now(), RanAt: time.Now(), Outcome: model.Unchanged, LastRun: "20261120T222330Z-0123", Settings: model.DefaultSettings(), Version: "1.0.0", Machine: fmt.Sprintf("%032d", n.Num), Boot: fmt.Sprintf("%036d", n.Num),
		}
		r := machines.Record{Node: node, Name: n.Hostname(), ID: fmt.Sprintf("%036d", n.Num), Phase: machines.Made, Driver: "openstack", Flavor: "m1.large", Image: "debian-12", Tries: 1, Token: "0123abcd", By: "ann", At: time.Now().UTC()}
		if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: node, Role: "compute", Hostname: n.Hostname(), Addresses: []string{"10.0.0.1"}, MachineID: said.Machine, At: time.Now().UTC()}); err != nil {
			b.Fatal(err)
		}
		if err := control.In(st).Report(ctx, model.Identity{Node: node, Environment: "dev"}, said, nil, nil); err != nil {
			b.Fatal(err)
		}
		if err := a.Put(ctx, r, nil); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		w, err := a.World(ctx)
		if err != nil || len(w.Views) != nodes || len(w.Records) != nodes {
			b.Fatalf("%d nodes, %d records, %v", len(w.Views), len(w.Records), err)
		}
	}
}
