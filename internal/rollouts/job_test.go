package rollouts

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/rollout"
	"pulley/internal/testbed/etcdtest"
)

// A job over a node that cannot run would wait for it until its deadline, and keep the other nodes from running.
func TestJobRefusesNodesThatCannotRun(t *testing.T) {
	t.Parallel()
	now, target := time.Now(), model.Target{Release: "1.0.0", Tree: strings.Repeat("b", 64)}
	stop := model.Hold{Mode: model.Stop, Why: "disk swap", Who: "ann"}
	for name, c := range map[string]struct {
		edit func(h *model.Host, st *model.Status, holds map[etcd.Scope]model.Hold)
		want string // beginning of the cause; "": the job starts
	}{
		"ready":   {func(*model.Host, *model.Status, map[etcd.Scope]model.Hold) {}, ""},
		"running": {func(_ *model.Host, st *model.Status, _ map[etcd.Scope]model.Hold) { st.Phase = model.Running }, ""},
		"silent": {func(_ *model.Host, st *model.Status, _ map[etcd.Scope]model.Hold) {
			st.SeenAt = now.Add(-24 * time.Hour)
		}, "web1 is silent: "},
		"silent in run": {func(_ *model.Host, st *model.Status, _ map[etcd.Scope]model.Hold) {
			st.SeenAt, st.Phase = now.Add(-24*time.Hour), model.Running
		}, "web1 is silent: "},
		"held": {func(_ *model.Host, _ *model.Status, holds map[etcd.Scope]model.Hold) {
			holds[etcd.Scope{Node: "web1"}] = stop
		}, "web1 is held: "},
		"held by role": {func(_ *model.Host, _ *model.Status, holds map[etcd.Scope]model.Hold) {
			holds[etcd.Scope{Role: "web"}] = stop
		}, "web1 is held: "},
		"all held": {func(_ *model.Host, _ *model.Status, holds map[etcd.Scope]model.Hold) { holds[etcd.Scope{}] = stop }, "web1 is held: "},
		"disabled": {func(_ *model.Host, st *model.Status, _ map[etcd.Scope]model.Hold) { st.Disabled = "maintenance" }, "web1 is held: "},
		"retiring": {func(h *model.Host, _ *model.Status, _ map[etcd.Scope]model.Hold) {
			h.Request = &model.Request{ID: "1", Do: model.RequestRetire}
		}, "web1 is held: "},
		"not registered": {func(h *model.Host, _ *model.Status, _ map[etcd.Scope]model.Hold) { *h = model.Host{} }, "web1 is missing: it is not registered"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := model.Host{Node: "web1", Role: "web", MachineID: "m-web1"}
			st := model.Status{Node: "web1", Role: "web", Machine: "m-web1", SeenAt: now, Settings: model.DefaultSettings(), Target: target, LastGood: target, Enforcing: target}
			holds := map[etcd.Scope]model.Hold{}
			c.edit(&h, &st, holds)
			f := fleet.FleetState{Desires: targets.Desires{Default: target}, Hosts: map[string]model.Host{}, Statuses: map[string]model.Status{"web1": st}, Holds: holds}
			if h.Node != "" {
				f.Hosts["web1"] = h
			}
			p := JobPlan{Groups: []JobGroup{{Number: 1, Nodes: []JobNode{{Node: "web1"}}}}}
			got := p.refused(f, JobOrder{SkipOutside: true}, now)
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 2 || !strings.HasPrefix(got[0], c.want) || !strings.HasPrefix(got[1], "repair, enable or remove them")) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// A retry runs only what can run: a removed node would refuse it. It checks the producers outside of the job, as the job did.
func TestRestOfJob(t *testing.T) {
	// Not parallel: it counts the requests of this process.
	server, s := etcdtest.FleetOfOne(t, `
roles:
  web: {cardinality: 4}
  db: {cardinality: 1}
applications:
  Lamp:
    app1:
      database: {node: db1, produces: ["Sql[app1]"]}
      web: {node: web2, consumes: ["Sql[app1]"]}
`)
	dev, ctx, now, author := model.Ref{Environment: "dev"}, t.Context(), time.Now(), promotion.Author{Author: targets.Author{By: "ann", At: time.Now()}}
	publishing, err := release.In(s).BeginPublish(ctx, "ann")
	if err != nil {
		t.Fatal(err)
	}
	published := release.Release{Version: "1.0.0", Author: "ann", At: now.UTC(), Content: content.Record{Tree: strings.Repeat("b", 64)}}
	_, err = release.In(s).Put(ctx, publishing, published, nil, nil)
	var d targets.Desires
	if err = errors.Join(err, publishing.Close()); err == nil {
		d, err = targets.In(s).Desires(ctx, dev)
	}
	target := published.Target()
	if err == nil {
		_, err = targets.In(s).Promote(ctx, dev, d, etcd.Scope{}, targets.Promoted, target, author.Signing())
	}
	report := func(node string, seen time.Time) {
		if err == nil {
			err = control.In(s).Report(ctx, model.Identity{Node: node, Role: strings.TrimRight(node, "123"), Environment: "dev"}, model.Status{
				Node: node, Role: strings.TrimRight(node, "123"), Machine: "m-" + node, SeenAt: seen, Settings: model.DefaultSettings(), Target: target, LastGood: target, Enforcing: target,
			}, nil, nil)
		}
	}
	for _, node := range []string{"web2", "web3", "db1"} {
		if err == nil {
			err = fleet.In(s).Register(ctx, "dev", model.Host{Node: node, Role: strings.TrimRight(node, "123"), MachineID: "m-" + node})
		}
		report(node, now)
	}
	sel := JobSelection{Selection: fleet.Selection{Nodes: []string{"web2", "web3"}}}
	var p JobPlan
	if err == nil {
		p, err = PlanJob(ctx, s, dev, sel, JobOrder{}, now)
	}
	if err == nil {
		_, err = StartJob(ctx, s, dev, p, JobOrder{}, author)
	}
	if err == nil {
		_, err = AbortJob(ctx, s, dev, author)
	}
	if err == nil {
		_, err = server.Client().Delete(ctx, "/pulley/v1/environments/dev/hosts/nodes/web3")
	}
	if err != nil {
		t.Fatal(err)
	}
	dry := author
	dry.DryRun = true
	retry := func(skip bool) (JobPlan, error) {
		p, o, err := RestOfJob(ctx, s, dev, "", JobSelection{}, skip, now)
		if err == nil {
			_, err = StartJob(ctx, s, dev, p, o, dry)
		}
		return p, err
	}
	p, err = retry(false)
	if got := fmt.Sprintf("%s %d %v %v", p.Groups[0].Nodes[0].Node, p.Nodes, p.Left, p.Notes); err != nil || got != "web2 1 [] [web3 is not registered any more: the job leaves it out]" {
		t.Errorf("%s: %v", got, err)
	}
	report("db1", now.Add(-24*time.Hour))
	if _, again := retry(false); err != nil || again == nil || !strings.Contains(again.Error(), "consumes Sql[app1]") {
		t.Errorf("a silent producer: %v, %v", err, again)
	}
	if _, err := retry(true); err != nil {
		t.Errorf("with --skip-outside-check: %v", err)
	}
	requests := func(look func() (Rollout, error)) (n int) {
		before := server.Requests()
		r, err := look()
		if err != nil || r.ID == "" || r.Nodes != 2 || r.State != JobAborted {
			t.Errorf("%+v: %v", r, err)
		}
		return server.Requests() - before
	}
	first, err := LookAtRollout(ctx, s, dev, rollout.Run, "", now)
	if err != nil {
		t.Fatal(err)
	}
	whole := requests(func() (Rollout, error) { return LookAtRollout(ctx, s, dev, rollout.Run, first.ID, now) })
	if again := requests(func() (Rollout, error) { return first.Again(ctx, s, dev, now) }); again >= whole {
		t.Errorf("a view reads with %d requests again what took %d: also the plan", again, whole)
	}
	if _, err := server.Client().Delete(ctx, "/pulley/v1/environments/dev/hosts/nodes/web2"); err != nil {
		t.Fatal(err)
	}
	if _, err := retry(true); err == nil || !strings.Contains(err.Error(), "its nodes that failed or never ran are not registered any more\n`pulley job run -e dev`") {
		t.Errorf("all are removed: %v", err)
	}
}
