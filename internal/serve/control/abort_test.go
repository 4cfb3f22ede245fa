package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"pulley/agent"
	"pulley/internal/desired/control"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// abortsEnv is the number of admissions that race with an abort or a pause; unset: 200.
const abortsEnv = "PULLEY_TEST_ABORTS"

// TestNothingStartsAfterAnAbort: an operator who aborts or pauses must be able to rely on it, although agents have read their
// assignment and are about to begin. Agents and operator meet at the admission, with the agent's own tick and real etcd.
func TestNothingStartsAfterAnAbort(t *testing.T) {
	t.Parallel()
	const nodes = 20
	races := 200
	if s := os.Getenv(abortsEnv); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		races = n
	}
	f := begin(t, nodes)
	all := make([]*racer, nodes)
	for i := range all {
		all[i] = f.racer(fmt.Sprintf("web%d", i+1))
		all[i].tick() // takes what is desired
	}
	began, admitted, refused := time.Now(), 0, 0
	for n := range (races + nodes - 1) / nodes {
		to := []model.GateState{model.GateAborted, model.GatePaused}[n%2]
		a, r := f.race(all, f.publish(fmt.Sprintf("3.%d.0", n), n+3), to)
		admitted, refused = admitted+a, refused+r
	}
	t.Logf("%d admissions raced with an abort or a pause in %v: %d came first, %d came too late and were refused", admitted+refused, time.Since(began).Round(time.Millisecond), admitted, refused)
	if admitted == 0 || refused == 0 {
		t.Error("nothing raced")
	}
}

// race starts a rollout to all agents, and closes its gate while they begin. It returns how many began, and how many were refused.
func (f *testFleet) race(all []*racer, target model.Target, to model.GateState) (admitted, refused int) {
	f.t.Helper()
	ctx := f.t.Context()
	f.new = target
	plan := f.start(rollout.Policy{Canaries: "0", Batch: "100%"})
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	if wait, err := c.Advance(ctx); err != nil || wait.Code != rollout.WaitNodes || wait.Count != len(all) {
		f.t.Fatalf("the campaign waits for %+v: %v", wait, err)
	}
	campaign := f.campaign(plan.ID)
	meet := &meeting{all: make(chan struct{})}
	meet.missing.Add(len(all))
	var ticks sync.WaitGroup
	for _, r := range all {
		r.meet, r.began, r.admitted = meet, false, 0
		ticks.Go(r.tick)
	}
	met := make(chan struct{})
	go func() { meet.missing.Wait(); close(met) }()
	select {
	case <-met:
	case <-time.After(time.Minute):
		f.t.Fatal("not every agent wants to begin")
	}
	close(meet.all)
	ticks.Go(func() { _, _ = c.Advance(ctx) }) // serve goes on
	meet.hesitate()
	if err := journal.In(f.s).Set(ctx, dev, campaign, to, nil, author()); err != nil {
		f.t.Fatal(err)
	}
	closed := f.revision("environments/dev/gate")
	ticks.Wait()
	for _, r := range all {
		if r.began != (r.admitted > 0) {
			f.t.Errorf("%s was admitted at revision %d, and began: %v", r.Identity.Node, r.admitted, r.began)
		}
		if r.admitted > closed {
			f.t.Errorf("%s began at revision %d, after the rollout was %s at %d", r.Identity.Node, r.admitted, to, closed)
		}
		if r.began {
			admitted++
		} else {
			refused++
		}
		r.meet, r.began = nil, false
		ticks.Go(r.tick) // the next one reads that the gate is closed
	}
	ticks.Wait()
	for _, r := range all {
		if r.began {
			f.t.Errorf("a tick of %s began after the rollout was %s", r.Identity.Node, to)
		}
	}
	if _, err := journal.In(f.s).Revert(ctx, dev, f.campaign(plan.ID), author()); err != nil {
		f.t.Fatal(err)
	}
	return admitted, refused
}

// revision returns the revision of a key's last change.
func (f *testFleet) revision(key string) int64 {
	resp, err := f.client.Get(f.t.Context(), "/pulley/v1/"+key)
	if err != nil || len(resp.Kvs) != 1 {
		f.t.Errorf("cannot read %s: %v", key, err)
		return 0
	}
	return resp.Kvs[0].ModRevision
}

// meeting lets all agents begin together.
type meeting struct {
	missing sync.WaitGroup
	all     chan struct{}
}

// hesitate waits for a moment of a random length, to meet in each order.
func (m *meeting) hesitate() { <-time.After(rand.N(4 * time.Millisecond)) }

// racer is an agent with real etcd and its real disk. Its Puppet only notes that it began.
type racer struct {
	*agent.Agent
	f     *testFleet
	tree  string
	meet  *meeting // nil: it begins alone
	began bool

	admitted int64 // revision of the admission
}

func (f *testFleet) racer(name string) *racer {
	f.t.Helper()
	disk, err := agent.OpenDisk(f.t.TempDir())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = disk.Close() })
	r := &racer{f: f, tree: f.t.TempDir()}
	r.Agent = &agent.Agent{
		Identity: model.Identity{Node: name, Certname: name, Role: "web", Environment: "dev"}, Settings: model.DefaultSettings(), MachineID: "m-" + name,
		Control: admission{control.In(f.s), r}, Content: machine{r}, Puppet: machine{r}, Machine: machine{r}, Memory: disk, Now: time.Now, Log: slog.New(slog.DiscardHandler), VerifyTimeout: time.Minute,
	}
	return r
}

func (r *racer) tick() {
	if report := r.Tick(r.f.t.Context(), agent.Options{}); report.Err != nil || report.Unreachable {
		r.f.t.Errorf("a tick of %s failed: %v", r.Identity.Node, report.Err)
	}
}

// admission is the store of a racer.
type admission struct {
	agent.Control
	r *racer
}

// Admit meets the others, and asks etcd as the agent does.
func (a admission) Admit(ctx context.Context, id model.Identity, d model.Desired, s model.Status) error {
	r := a.r
	if r.meet != nil {
		r.meet.missing.Done()
		<-r.meet.all
		r.meet.hesitate()
	}
	err := a.Control.Admit(ctx, id, d, s)
	if err != nil && !errors.Is(err, model.ErrChanged) {
		r.f.t.Errorf("%s cannot ask for its admission: %v", id.Node, err)
	}
	if err == nil {
		r.admitted = r.f.revision("status/dev/" + id.Node)
	}
	return err
}

// machine has trees without files, and no hooks.
type machine struct{ r *racer }

func (m machine) Stage(context.Context, model.Identity, model.Target, agent.Staging) (agent.Staged, error) {
	return agent.Staged{Tree: m.r.tree, Release: func() {}}, nil
}
func (m machine) Current() (string, error)               { return "", nil }
func (m machine) Activate(string) error                  { return nil }
func (m machine) Collect([]model.Target, []string) error { return nil }
func (m machine) Blocked() *model.Blocked                { return nil }

func (m machine) Reach(context.Context, model.Job) *model.Problem { return nil }

func (m machine) Apply(context.Context, model.Job) (model.Result, error) {
	m.r.began = true
	return model.Result{Kind: model.Success, Outcome: model.Changed}, nil
}
func (m machine) Remember() error                         { return nil }
func (m machine) Restore() error                          { return nil }
func (m machine) Verify(context.Context, model.Job) error { return nil }
func (m machine) Tell(context.Context, model.Job, []byte, string, func(string) error) error {
	return nil
}
func (m machine) Retire(context.Context, model.Job, model.Prose) error { return nil }
