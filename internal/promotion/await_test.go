package promotion

import (
	"testing"

	"pulley/internal/desired/targets"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// A node with a release of its own takes the data of a change of all nodes. Without it in preview and wait, a deploy reports
// success although that node failed.
func TestChangesOfDataReachPinnedNodes(t *testing.T) {
	release := func(version string, data model.Generation) model.Target {
		return model.Target{Release: version, Tree: "tree" + version, Data: data}
	}
	f := fleet.FleetState{
		Desires: targets.Desires{
			Default: release("2.0.0", 2),
			Roles:   map[string]model.Target{"pinned": release("1.0.0", 0)},
			Nodes:   map[string]model.Target{"own1": release("1.0.0", 1)},
		},
		Hosts: map[string]model.Host{
			"web1": {Node: "web1", Role: "web"}, "pinned1": {Node: "pinned1", Role: "pinned"}, "own1": {Node: "own1", Role: "web"},
		},
	}
	for name, c := range map[string]struct {
		change targets.Change
		want   map[string]bool
	}{
		"data":             {targets.Change{Before: release("2.0.0", 2), After: release("2.0.0", 3)}, map[string]bool{"web1": true, "pinned1": true}},
		"release":          {targets.Change{Before: release("2.0.0", 2), After: release("3.0.0", 2)}, map[string]bool{"web1": true}},
		"release and data": {targets.Change{Before: release("2.0.0", 2), After: release("3.0.0", 1)}, map[string]bool{"web1": true, "pinned1": true}},
		"the same, signed": {targets.Change{Before: release("2.0.0", 2), After: release("2.0.0", 2)}, map[string]bool{"web1": true}},
		"of one role":      {targets.Change{Role: "pinned", Before: release("1.0.0", 0), After: model.Target{}}, map[string]bool{"pinned1": true}},
		"of one node":      {targets.Change{Node: "own1", Before: release("1.0.0", 1), After: model.Target{}}, map[string]bool{"own1": true}},
	} {
		shown := map[string]bool{}
		for _, m := range moves(f, c.change.Scope(), c.change.After) {
			shown[m.Node] = true
		}
		after := f
		after.Desires = f.Desires.With(c.change.Scope(), c.change.After)
		awaited := Awaiting(model.Ref{Environment: "dev"}, c.change)
		for node := range f.Hosts {
			if shown[node] != c.want[node] {
				t.Errorf("%s: the preview shows %s: %t", name, node, shown[node])
			}
			if got := awaited.Has(after, fleet.Node{Node: node}); got != c.want[node] {
				t.Errorf("%s: the wait counts %s: %t", name, node, got)
			}
		}
	}
}
