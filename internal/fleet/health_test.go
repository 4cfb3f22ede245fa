package fleet_test

import (
	"testing"

	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// Without this a degraded environment would look healthy.
func TestHealthNamesLackingNodes(t *testing.T) {
	t.Parallel()
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  db: {cardinality: 1}\n  compute:\n    cardinality: 7\n    members: [old.example.com]\n"))
	if err != nil {
		t.Fatal(err)
	}
	hosts, views := map[string]model.Host{}, map[string]model.View{}
	join := func(node string, state model.NodeState) {
		hosts[node], views[node] = model.Host{}, model.View{State: state}
	}
	for _, node := range []string{"db1", "compute1", "compute9", "old.example.com"} {
		join(node, model.Converged)
	}
	join("compute2", model.Silent)
	join("compute3", model.Pending)
	h := fleet.Judge(e, hosts, views)
	want := "degraded: compute 2 of 8 converged (compute2 silent, compute3 pending, compute4 not registered, compute5 not registered, and 2 more)"
	if got := h.Sentence(); h.Healthy || got != want {
		t.Errorf("health: %s", got)
	}
	if r := h.Roles[1]; r.Wanted != 8 || r.Registered != 4 || r.Converged != 2 {
		t.Errorf("compute: %+v", r)
	}
	for node := range e.Nodes() {
		join(node.String(), model.Converged)
	}
	// Puppet's own daemon runs instead of the agent: nothing lacks there.
	views["compute2"] = model.View{State: model.Held, Cause: model.Cause{Reason: model.ReasonDaemon}}
	if h := fleet.Judge(e, hosts, views); !h.Healthy || h.Sentence() != "healthy" {
		t.Errorf("health: %s", h.Sentence())
	}
}
