package promotion

import (
	"strings"
	"testing"

	"pulley/internal/desired/control"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
)

// A target of a removed node would never be taken. The operator meant another node.
func TestFindRejectsRemovedNode(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, "roles:\n  web: {cardinality: 1}\n")
	dev, ctx := model.Ref{Environment: "dev"}, t.Context()
	err := fleet.In(s).Register(ctx, "dev", model.Host{Node: "extra1", Role: "extra"})
	if err == nil {
		err = control.In(s).Report(ctx, model.Identity{Node: "removed1", Environment: "dev"}, model.Status{Node: "removed1"}, nil, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for node, known := range map[string]bool{"web1": true, "extra1": true, "removed1": false} {
		_, err := Find(ctx, s, dev, Scope{Node: node})
		if known && err != nil || !known && (err == nil || !strings.Contains(err.Error(), `cannot find node "removed1"`)) {
			t.Errorf("%s: %v", node, err)
		}
	}
}
