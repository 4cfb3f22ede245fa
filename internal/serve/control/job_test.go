package control

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// turns are the runs of a job's nodes.
type turns struct {
	sync.Mutex
	now   map[string]bool
	ended []string
	most  int
	bad   []string // a node that ran beside one of another layer
}

// startJob starts a job over layers of nodes.
func (f *testFleet) startJob(policy rollout.Policy, layers ...[]string) rollout.Plan {
	f.t.Helper()
	var all [][]rollout.Member
	for _, layer := range layers {
		var nodes []rollout.Member
		for _, node := range layer {
			nodes = append(nodes, rollout.Member{Node: node, Machine: "m-" + node})
		}
		all = append(all, nodes)
	}
	p, err := rollout.MakeJob(rollout.Order{Policy: policy, By: "ann", At: time.Now()}, all)
	if err != nil {
		f.t.Fatal(err)
	}
	p, err = journal.In(f.s).Start(f.t.Context(), dev, f.desires(), p, author())
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// worker ticks until ctx ends, as the agent of a node would: it runs at its turn, and answers.
func (f *testFleet) worker(ctx context.Context, name string, fails bool, all *turns, layer map[string]int) {
	st, who := model.State{LastGood: f.old, Enforcing: f.old, RanAt: time.Now()}, model.Identity{Node: name, Role: "web", Environment: "dev"}
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		d, err := control.In(f.s).Desire(ctx, who)
		if err != nil {
			continue
		}
		dec := model.Decide(model.Observed{Identity: who, State: st, Settings: model.DefaultSettings(), Machine: "m-" + name}, d, time.Now())
		report := model.Status{
			Node: name, Role: "web", Phase: model.Idle, Cause: dec.Cause, Target: d.Wanted(), LastGood: f.old, Enforcing: f.old, SeenAt: time.Now(),
			Settings: model.DefaultSettings(), Machine: "m-" + name, LastRun: "run", Ran: st.Ran,
		}
		if a := d.Assignment(); a != nil {
			report.Assignment = a.ID
		}
		if dec.Action == model.Enforce {
			report.Phase = model.Running
			if err := control.In(f.s).Admit(ctx, who, d, report); err != nil {
				continue
			}
			all.Lock()
			for other := range all.now {
				if layer[other] != layer[name] {
					all.bad = append(all.bad, fmt.Sprintf("%s beside %s", name, other))
				}
			}
			all.now[name] = true
			all.most = max(all.most, len(all.now))
			all.Unlock()
			<-time.After(50 * time.Millisecond) // a run takes its time
			all.Lock()
			delete(all.now, name)
			all.ended = append(all.ended, name)
			all.Unlock()
			answer := &model.Answer{ID: d.Assigned.ID}
			if fails {
				answer.Problem = model.Problem{Code: model.ResourcesFailed, Number: 1}
			}
			report.Phase, report.Ran, st.Ran = model.Idle, answer, answer
		}
		_ = control.In(f.s).Report(ctx, who, report, nil, nil)
	}
}

// work lets the nodes of the layers and controllers work until the test's end.
func (f *testFleet) work(controllers int, failing string, layers ...[]string) *turns {
	ctx, cancel := context.WithCancel(f.t.Context())
	var all sync.WaitGroup
	f.t.Cleanup(func() { cancel(); all.Wait() })
	seen, layer := &turns{now: map[string]bool{}}, map[string]int{}
	for i, nodes := range layers {
		for _, node := range nodes {
			layer[node] = i
		}
	}
	for node := range layer {
		all.Go(func() { f.worker(ctx, node, node == failing, seen, layer) })
	}
	for range controllers {
		c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
		all.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				if _, err := c.Advance(ctx); err != nil && ctx.Err() == nil {
					f.t.Errorf("cannot advance: %v", err)
					return
				}
			}
		})
	}
	return seen
}

// free checks that nothing of a job is left: its key is gone, and its orders count no longer.
func (f *testFleet) free(nodes ...string) {
	f.t.Helper()
	for _, node := range nodes {
		d, err := control.In(f.s).Desire(f.t.Context(), model.Identity{Node: node, Role: "web", Environment: "dev"})
		if err != nil || d.Job != nil || d.Gate.Rollout != "" || d.Assignment() != nil {
			f.t.Errorf("%s is not free: job %v, gate %+v, assigned %+v: %v", node, d.Job, d.Gate, d.Assigned, err)
		}
	}
}

// TestJobRunsInOrder: two controllers run each layer after the one before it, within the limit, each node once. Afterwards all are free,
// and the history has the start and the end.
func TestJobRunsInOrder(t *testing.T) {
	t.Parallel()
	f := begin(t, 6)
	layers := [][]string{{"web1", "web2"}, {"web3", "web4", "web5", "web6"}}
	plan := f.startJob(rollout.Policy{Concurrency: 2}, layers...)
	seen := f.work(2, "", layers...)
	c := f.wait(plan.ID, "completed", func(c *journal.Campaign) bool { return c.State.Phase == rollout.Completed })
	seen.Lock()
	defer seen.Unlock()
	slices.Sort(seen.ended)
	if got := fmt.Sprint(seen.ended); got != "[web1 web2 web3 web4 web5 web6]" || len(seen.bad) > 0 || seen.most > 2 || c.State.Done != 6 || len(c.State.Times) != 2 {
		t.Errorf("ran %s, at most %d at once; %v; %+v", got, seen.most, seen.bad, c.State)
	}
	f.free("web1", "web6")
	history, _, err := targets.In(f.s).History(t.Context(), dev, 2)
	if err != nil || history[0].Kind != targets.JobEnded || history[1].Kind != targets.JobStarted || history[1].Rollout.ID != plan.ID || f.desires().Default != f.old {
		t.Errorf("history %+v: %v", history, err)
	}
}

// TestJobStopsAtAFailure: the layers after a failed node do not run, and wait no longer.
func TestJobStopsAtAFailure(t *testing.T) {
	t.Parallel()
	f := begin(t, 3)
	layers := [][]string{{"web1"}, {"web2", "web3"}}
	plan := f.startJob(rollout.Policy{}, layers...)
	seen := f.work(1, "web1", layers...)
	c := f.wait(plan.ID, "failed", func(c *journal.Campaign) bool { return c.State.Phase == rollout.Failed })
	seen.Lock()
	defer seen.Unlock()
	if fmt.Sprint(seen.ended) != "[web1]" || c.State.Failed["web1"].Code != rollout.RunFailed {
		t.Errorf("ran %v: %+v", seen.ended, c.State)
	}
	f.free("web1", "web2", "web3")
}

// TestLostJobFreesItsNodes: when nothing renews the lease of a job, its nodes go on by themselves. The next serve ends it.
func TestLostJobFreesItsNodes(t *testing.T) {
	t.Parallel()
	f := begin(t, 2)
	plan := f.startJob(rollout.Policy{}, []string{"web1"}, []string{"web2"})
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	if _, err := c.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	who := model.Identity{Node: "web2", Role: "web", Environment: "dev"}
	overdue := model.Observed{Identity: who, State: model.State{LastGood: f.old, Enforcing: f.old}, Settings: model.DefaultSettings(), Machine: "m-web2"}
	d, err := control.In(f.s).Desire(t.Context(), who)
	if dec := model.Decide(overdue, d, time.Now()); err != nil || dec.Reason != model.ReasonWaits {
		t.Fatalf("web2 does not wait: %+v, %v", dec, err)
	}
	key, err := f.client.Get(t.Context(), "/pulley/v1/environments/dev/job")
	if err != nil || len(key.Kvs) != 1 {
		t.Fatalf("the key of the job is %+v: %v", key, err)
	}
	lease := clientv3.LeaseID(key.Kvs[0].Lease)
	if left, err := f.client.TimeToLive(t.Context(), lease); err != nil || left.GrantedTTL != int64(journal.JobLease.Seconds()) {
		t.Errorf("its lease lasts %+v: %v", left, err)
	}
	if _, err := f.client.Revoke(t.Context(), lease); err != nil { // as its end would
		t.Fatal(err)
	}
	d, err = control.In(f.s).Desire(t.Context(), who)
	if dec := model.Decide(overdue, d, time.Now()); err != nil || dec.Action != model.Enforce {
		t.Errorf("web2 does not go on: %+v, %v", dec, err)
	}
	if _, err := c.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.campaign(plan.ID).State.Phase; got != rollout.Gone {
		t.Errorf("the job is %s", got)
	}
	f.free("web1", "web2")
}

// TestJobWithoutProgressLosesItsLease: a serve that cannot read the nodes of a job must not renew its lease, or all of them would wait for ever.
func TestJobWithoutProgressLosesItsLease(t *testing.T) {
	t.Parallel()
	f := begin(t, 2)
	f.startJob(rollout.Policy{}, []string{"web1"}, []string{"web2"})
	key, err := f.client.Get(t.Context(), "/pulley/v1/environments/dev/job")
	if err != nil || len(key.Kvs) != 1 {
		t.Fatalf("the key of the job is %+v: %v", key, err)
	}
	left := func() int64 {
		ttl, err := f.client.TimeToLive(t.Context(), clientv3.LeaseID(key.Kvs[0].Lease))
		if err != nil {
			t.Fatal(err)
		}
		return ttl.TTL
	}
	host := "/pulley/v1/environments/dev/hosts/nodes/web2"
	entry, err := f.client.Get(t.Context(), host)
	if err != nil || len(entry.Kvs) != 1 {
		t.Fatalf("the entry of web2 is %+v: %v", entry, err)
	}
	if _, err := f.client.Put(t.Context(), host, "damaged"); err != nil {
		t.Fatal(err)
	}
	full := int64(journal.JobLease.Seconds())
	for end := time.Now().Add(time.Minute); left() > full-2; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the lease of the job does not end")
		}
	}
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	if _, err := c.Advance(t.Context()); err == nil || left() > full-2 {
		t.Errorf("%d of %d s are left after a step that failed: %v", left(), full, err)
	}
	if _, err := f.client.Put(t.Context(), host, string(entry.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Advance(t.Context()); err != nil || left() < full-1 {
		t.Errorf("%d of %d s are left after a step that succeeded: %v", left(), full, err)
	}
}

// TestAbortedJobFreesItsNodes: an abort ends a job at once, and a promotion that aborts it, too.
func TestAbortedJobFreesItsNodes(t *testing.T) {
	t.Parallel()
	f := begin(t, 2)
	plan := f.startJob(rollout.Policy{}, []string{"web1"}, []string{"web2"})
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	if _, err := c.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.In(f.s).Abort(t.Context(), dev, f.campaign(plan.ID), author()); err != nil {
		t.Fatal(err)
	}
	if got := f.campaign(plan.ID).State.Phase; got != rollout.Aborted {
		t.Errorf("the job is %s", got)
	}
	f.free("web1", "web2")
}
