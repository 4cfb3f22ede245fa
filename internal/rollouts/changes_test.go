package rollouts

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/testbed/etcdtest"
)

// The record of a rollout must name what it changed where, and nothing that other runs changed.
func TestReadChangesOfARollout(t *testing.T) {
	t.Parallel()
	_, s := etcdtest.FleetOfOne(t, "roles: {web: {cardinality: 4}}\n")
	dev, ctx, now := model.Ref{Environment: "dev"}, t.Context(), time.Now().UTC().Truncate(time.Second)
	run := func(node, id, assignment string, kind model.Kind, counts model.Counts, resources ...model.ResourceEvent) {
		t.Helper()
		r := model.Run{ID: id, Node: node, Assignment: assignment, Started: now, Duration: 4 * time.Second}
		r.Kind, r.Counts, r.Resources, r.Outcome = kind, counts, resources, model.Changed
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		err := json.NewEncoder(z).Encode(r)
		if err == nil {
			err = z.Close()
		}
		if err == nil {
			err = control.In(s).Report(ctx, model.Identity{Node: node, Environment: "dev"}, model.Status{Node: node, SeenAt: now}, []model.EncodedRun{{ID: id, Bytes: packed.Bytes()}}, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	motd, nginx := model.ResourceEvent{Resource: "File[/etc/motd]", Status: "changed"}, model.ResourceEvent{Resource: "Service[nginx]", Status: "failed"}
	repaired := model.ResourceEvent{Resource: "Service[nginx]", Status: "changed"}
	run("web1", "1", "r2.1.b", model.Success, model.Counts{Changed: 9}, model.ResourceEvent{Resource: "User[x]", Status: "changed"}) // another rollout
	run("web1", "2", "r2.1.a", model.Between, model.Counts{Changed: 1, Failed: 1}, motd, nginx)
	run("web1", "3", "r2.1.a", model.Success, model.Counts{Changed: 1}, repaired)
	run("web1", "4", "r2.1.a", model.Success, model.Counts{Changed: 5}, model.ResourceEvent{Resource: "User[y]", Status: "changed"}) // drift
	run("web2", "1", "r2.1.a", model.Between, model.Counts{Changed: 1, Failed: 1}, motd, nginx)
	r := Rollout{
		ID: "r2", plan: &rollout.Plan{ID: "r2", Nonce: "a"}, Kind: rollout.Take, Ended: now, took: map[string]bool{"web1": true, "web2": false, "web3": true, "web4": false},
		Members: []RolloutNode{{Node: "web2", State: NodeFailed}, {Node: "web4", State: NodeSkipped}},
	}
	if err := ReadChanges(ctx, s, dev, &r); err != nil {
		t.Fatal(err)
	}
	const want = "[{Service[nginx] failed [web2]} {File[/etc/motd] changed [web1 web2]} {Service[nginx] changed [web1]}]"
	if got := fmt.Sprint(r.Changes.Resources); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if c := r.Changes; len(c.Runs) != 2 || c.Runs[0].Run != "3" || c.Runs[0].Changed != 2 || c.Runs[0].Failed != 0 || c.Runs[0].Seconds != 4 || c.Runs[1].Failed != 1 || c.Without != 1 || c.Unread != 0 {
		t.Errorf("%+v", c)
	}
}
