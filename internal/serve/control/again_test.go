package control

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollout"
)

// TestIDsThatComeAgain: etcd gets earlier data, and the next rollout or job gets the ID of one that its nodes have carried out. A controller that has the
// former plan must bring the new target, and an answer to the former job must not count as a run.
func TestIDsThatComeAgain(t *testing.T) {
	t.Parallel()
	f := begin(t, 1)
	keep := func() map[string]string {
		all, err := f.client.Get(t.Context(), etcd.DefaultPrefix, clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		kept := map[string]string{}
		for _, kv := range all.Kvs {
			kept[string(kv.Key)] = string(kv.Value)
		}
		return kept
	}
	third := f.publish("3.0.0", 3)
	earlier := keep()
	back := func() { // all but the node's own status, which it would write again
		for key := range keep() {
			if _, kept := earlier[key]; !kept && key != etcd.DefaultPrefix+"/v1/status/dev/web1" {
				if _, err := f.client.Delete(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
		}
		for key, value := range earlier {
			if _, err := f.client.Put(t.Context(), key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	who := model.Identity{Node: "web1", Role: "web", Environment: "dev"}
	st := model.State{LastGood: f.old, Enforcing: f.old}
	runs := 0
	// advance lets the controller and the node act in turns until the campaign ended, or until the node ran.
	advance := func(p rollout.Plan, once bool) {
		t.Helper()
		for before := runs; !once || runs == before; {
			if _, err := c.Advance(t.Context()); err != nil {
				t.Fatal(err)
			}
			if f.desires().Gate.Rollout == "" {
				return
			}
			d, err := control.In(f.s).Desire(t.Context(), who)
			if err != nil {
				t.Fatal(err)
			}
			dec := model.Decide(model.Observed{Identity: who, State: st, Settings: model.DefaultSettings(), Machine: "m-web1"}, d, time.Now())
			if a := d.Assignment(); dec.Action == model.Take || dec.Action == model.Enforce && a != nil && a.Kind == model.AssignRun {
				runs++
				st.LastGood, st.Enforcing = dec.Target, dec.Target
				if a != nil && a.Kind == model.AssignRun {
					st.Ran = &model.Answer{ID: a.ID}
				}
			}
			report := model.Status{Node: "web1", Role: "web", Phase: model.Idle, Cause: dec.Cause, Target: d.Wanted(), LastGood: st.LastGood, Enforcing: st.Enforcing, SeenAt: time.Now(),
				Settings: model.DefaultSettings(), Machine: "m-web1", LastRun: "run", Ran: st.Ran}
			if a := d.Assignment(); a != nil {
				report.Assignment = a.ID
			}
			if err := control.In(f.s).Report(t.Context(), who, report, nil, nil); err != nil {
				t.Fatal(err)
			}
			if time.Since(p.At) > time.Minute {
				t.Fatalf("%s never ended: %+v", p.ID, f.campaign(p.ID).State)
			}
		}
	}
	first := f.start(rollout.Policy{})
	advance(first, true) // its epoch is not over when etcd goes back
	if st.LastGood != f.new {
		t.Fatalf("the node has %v", st.LastGood)
	}
	back()
	f.new = third
	second := f.start(rollout.Policy{})
	advance(second, false)
	if second.ID != first.ID || st.LastGood != third || f.desires().Default != third {
		t.Errorf("%s after %s: the node has %v, and %v is desired", second.ID, first.ID, st.LastGood, f.desires().Default)
	}
	back()
	c = &Controller{DB: f.s, Ref: dev, Now: time.Now} // as after a restart
	st = model.State{LastGood: f.old, Enforcing: f.old, RanAt: time.Now()}
	one := f.startJob(rollout.Policy{}, []string{"web1"})
	advance(one, true)
	ran := runs
	back()
	two := f.startJob(rollout.Policy{}, []string{"web1"})
	advance(two, false)
	if one.ID != two.ID || runs != ran+1 || f.campaign(two.ID).State.Done != 1 {
		t.Errorf("%s after %s: %d runs instead of 1", two.ID, one.ID, runs-ran)
	}
}
