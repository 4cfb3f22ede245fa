package promotion

import (
	"testing"

	"pulley/internal/desired"
	"pulley/internal/desired/targets"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// An operator must see which nodes do not run the wanted agent, and why.
func TestVersionOfNode(t *testing.T) {
	w := desired.AgentWish{Default: model.AgentChoice{Version: "1.1.0"}, Roles: map[string]model.AgentChoice{"compute": {Version: "1.2.0"}}}
	dropped := &model.Upgrade{Wanted: "1.1.0", Phase: model.UpgradeDropped}
	former := &model.Upgrade{Wanted: "1.0.0", Phase: model.UpgradeDropped}
	for name, c := range map[string]struct {
		status *model.Status
		wish   desired.AgentWish
		want   NodeVersion
	}{
		"before its first report":       {wish: w, want: NodeVersion{Wanted: "1.1.0"}},
		"it runs the wanted version":    {status: &model.Status{Version: "v1.1.0"}, wish: w, want: NodeVersion{Runs: "1.1.0", Wanted: "1.1.0"}},
		"it runs another version":       {status: &model.Status{Version: "1.0.0"}, wish: w, want: NodeVersion{Runs: "1.0.0", Wanted: "1.1.0", Phase: model.UpgradeWaiting}},
		"it dropped the wanted version": {status: &model.Status{Version: "1.0.0", Agent: dropped}, wish: w, want: NodeVersion{Runs: "1.0.0", Wanted: "1.1.0", Phase: model.UpgradeDropped}},
		"it dropped a former version":   {status: &model.Status{Version: "1.0.0", Agent: former}, wish: w, want: NodeVersion{Runs: "1.0.0", Wanted: "1.1.0", Phase: model.UpgradeWaiting}},
		"its role wants another":        {status: &model.Status{Version: "1.1.0", Role: "compute"}, wish: w, want: NodeVersion{Runs: "1.1.0", Wanted: "1.2.0", Phase: model.UpgradeWaiting}},
		"no version is wanted":          {status: &model.Status{Version: "1.0.0", Agent: dropped}, want: NodeVersion{Runs: "1.0.0"}},
	} {
		f := fleet.FleetState{Statuses: map[string]model.Status{}, Desires: targets.Desires{Agents: c.wish}}
		if c.status != nil {
			f.Statuses["n1"] = *c.status
		}
		c.want.Node = "n1"
		if got := versionOf("n1", f); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestAgentVersionsNameTheirScopes(t *testing.T) {
	all := wants(model.Ref{Environment: "dev"}, desired.AgentWish{
		Default: model.AgentChoice{Version: "1.1.0"},
		Roles:   map[string]model.AgentChoice{"compute": {Version: "1.0.0", Downgrade: true}},
		Nodes:   map[string]model.AgentChoice{"web10": {Version: "1.2.0"}, "web9": {Version: "1.2.0"}},
	})
	want := []string{"dev default 1.1.0", "dev roles/compute 1.0.0", "dev nodes/web9 1.2.0", "dev nodes/web10 1.2.0"}
	for i, w := range all {
		if got := w.Environment + " " + w.Scope + " " + w.Version; i >= len(want) || got != want[i] {
			t.Errorf("%d: %s", i, got)
		}
	}
	if len(all) != len(want) || !all[1].Downgrade {
		t.Errorf("%+v", all)
	}
}
