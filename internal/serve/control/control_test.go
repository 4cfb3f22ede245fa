package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/desired"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/rollouts"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

var shared *etcdtest.Shared

func TestMain(m *testing.M) {
	var err error
	if shared, err = etcdtest.Share(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var dev = model.Ref{Environment: "dev"}

func author() targets.Author { return targets.Author{By: "ann", Why: "test", At: time.Now()} }

// fleet is an environment on real etcd, with release 1.0.0 promoted and 2.0.0 published.
type testFleet struct {
	t        *testing.T
	s        *etcd.DB
	client   *clientv3.Client
	old, new model.Target
	running  atomic.Int32
	most     atomic.Int32

	admitted func(node string) // called when a node begins an assignment; nil: not called
}

func begin(t *testing.T, nodes int) *testFleet {
	t.Helper()
	server := shared.Keyspace(t)
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Prefix: server.Prefix + etcd.DefaultPrefix, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f := &testFleet{t: t, s: s, client: server.Client()}
	f.old, f.new = f.publish("1.0.0", 1), f.publish("2.0.0", 2)
	for i := range nodes {
		name := fmt.Sprintf("web%d", i+1)
		if err := fleet.In(s).Register(t.Context(), "dev", model.Host{Node: name, Role: "web", MachineID: "m-" + name, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := targets.In(s).Promote(t.Context(), dev, f.desires(), etcd.Scope{}, targets.Promoted, f.old, author()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *testFleet) publish(version string, tree int) model.Target {
	f.t.Helper()
	r := release.Release{Version: version, Author: "ann", At: time.Now().UTC(), Content: content.Record{Tree: fmt.Sprintf("%064x", tree)}}
	p, err := release.In(f.s).BeginPublish(f.t.Context(), "ann")
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = release.In(f.s).Put(f.t.Context(), p, r, nil, nil)
	if err := errors.Join(err, p.Close()); err != nil {
		f.t.Fatal(err)
	}
	return r.Target()
}

func (f *testFleet) desires() targets.Desires {
	f.t.Helper()
	d, err := targets.In(f.s).Desires(f.t.Context(), dev)
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

func (f *testFleet) start(p rollout.Policy) rollout.Plan {
	f.t.Helper()
	hosts, err := fleet.In(f.s).Hosts(f.t.Context(), dev)
	if err != nil {
		f.t.Fatal(err)
	}
	d := f.desires()
	candidates := journal.Candidates(hosts, d, rollout.Plan{Target: f.new})
	if limits := p.Limits(); len(limits) > 0 {
		e, _, err := specs.In(f.s).Spec(f.t.Context(), dev)
		if err == nil {
			_, err = journal.In(f.s).Place(f.t.Context(), dev, e, limits, candidates)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	plan, err := rollout.Make(rollout.Order{Target: f.new, Origin: f.old, Policy: p, By: "ann", At: time.Now()}, candidates)
	if err != nil {
		f.t.Fatal(err)
	}
	if plan, err = journal.In(f.s).Start(f.t.Context(), dev, d, plan, author()); err != nil {
		f.t.Fatal(err)
	}
	return plan
}

func (f *testFleet) campaign(id string) *journal.Campaign {
	f.t.Helper()
	c, err := journal.In(f.s).Get(f.t.Context(), dev, id, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// node ticks until ctx ends: it reads, decides, is admitted and reports, with the agent's own decision and the store's own
// transactions.
func (f *testFleet) node(ctx context.Context, name string, fails bool) {
	st, who := model.State{LastGood: f.old, Enforcing: f.old, RanAt: time.Now()}, model.Identity{Node: name, Role: "web", Environment: "dev"}
	for ctx.Err() == nil {
		d, err := control.In(f.s).Desire(ctx, who)
		if err != nil {
			continue
		}
		dec := model.Decide(model.Observed{Identity: who, State: st, Settings: model.DefaultSettings(), Machine: "m-" + name}, d, time.Now())
		report := model.Status{
			Node: name, Role: "web", Phase: model.Idle, Target: d.Wanted(), LastGood: st.LastGood, Enforcing: st.Enforcing, SeenAt: time.Now(),
			Settings: model.DefaultSettings(), Machine: "m-" + name, LastRun: "run",
		}
		if a := d.Assignment(); a != nil {
			report.Assignment = a.ID
			report.Cause = dec.Blocked
		}
		if d.Assigned != nil {
			st.Epoch = max(st.Epoch, d.Gate.Epoch)
		}
		if dec.Action == model.Take {
			report.Phase = model.Running
			if err := control.In(f.s).Admit(ctx, who, d, report); err != nil {
				continue
			}
			if f.admitted != nil && d.Assignment() != nil {
				f.admitted(name)
			}
			now := f.running.Add(1)
			for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
			}
			report.Phase, st.Enforcing, report.Enforcing = model.Idle, dec.Target, dec.Target
			if fails && dec.Target == f.new {
				report.Outcome = model.Failed
				report.Attempt = &model.Attempt{Target: dec.Target, Started: 1, Finished: 1, Last: time.Now(), Problem: model.Problem{Code: model.ResourcesFailed}}
				st.Attempts = []model.Attempt{*report.Attempt}
			} else {
				st.LastGood, report.LastGood = dec.Target, dec.Target
			}
			f.running.Add(-1)
		} else if a := st.Attempts; len(a) > 0 {
			report.Attempt, report.Outcome = &a[0], model.Failed
		}
		_ = control.In(f.s).Report(ctx, who, report, nil, nil)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// run lets nodes and controllers work until the test's end; failing names the nodes on which the target fails.
func (f *testFleet) run(nodes, controllers int, failing ...string) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var all sync.WaitGroup
	f.t.Cleanup(func() { cancel(); all.Wait() })
	for i := range nodes {
		name, fails := fmt.Sprintf("web%d", i+1), false
		for _, broken := range failing {
			fails = fails || broken == name
		}
		all.Go(func() { f.node(ctx, name, fails) })
	}
	for range controllers {
		c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.Advance(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, model.ErrUnreachable) {
					f.t.Errorf("cannot advance: %v", err)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
}

// wait reads the campaign until ready.
func (f *testFleet) wait(id string, what string, ready func(*journal.Campaign) bool) *journal.Campaign {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		c := f.campaign(id)
		if ready(c) {
			return c
		}
		if time.Now().After(end) || f.t.Failed() {
			f.t.Fatalf("it never %s: %+v in gate %+v", what, c.State, c.Gate)
		}
	}
}

// TestRolloutCompletes: two controllers bring real transactions to the end, within the budget; only then is the target
// what is desired.
func TestRolloutCompletes(t *testing.T) {
	t.Parallel()
	f := begin(t, 8)
	plan := f.start(rollout.Policy{Canaries: "1", Batch: "2"})
	if d := f.desires(); d.Default != f.old || d.Gate.Rollout != plan.ID {
		t.Fatalf("after the start %v is desired, gate %+v", d.Default, d.Gate)
	}
	if _, err := targets.In(f.s).Promote(t.Context(), dev, f.desires(), etcd.Scope{}, targets.Promoted, f.new, author()); !errors.Is(err, targets.ErrCampaign) {
		t.Errorf("a promotion during the rollout: %v", err)
	}
	if _, err := journal.In(f.s).Start(t.Context(), dev, f.desires(), plan, author()); !errors.Is(err, targets.ErrCampaign) {
		t.Errorf("a second rollout: %v", err)
	}
	if err := fleet.In(f.s).PutAgentWish(t.Context(), dev, desired.AgentWish{}, 0); !errors.Is(err, targets.ErrCampaign) {
		t.Errorf("another agent during the rollout: %v", err)
	}
	f.run(8, 2)
	c := f.wait(plan.ID, "completed", func(c *journal.Campaign) bool { return c.State.Phase == rollout.Completed })
	if c.State.Done != 8 || c.Desires.Default != f.new || c.Gate.Rollout != "" || c.Gate.Epoch != plan.Epoch+1 {
		t.Errorf("at the end %d are done, %v is desired, gate %+v", c.State.Done, c.Desires.Default, c.Gate)
	}
	if most := f.most.Load(); most < 1 || most > 2 {
		t.Errorf("%d nodes ran at the same time", most)
	}
	history, _, err := targets.In(f.s).History(t.Context(), dev, 0)
	if err != nil || len(history) != 3 || history[1].Kind != targets.RolloutStarted || history[0].Kind != targets.Promoted {
		t.Fatalf("history %+v: %v", history, err)
	}
	if undo, ok := targets.Undo(history, etcd.Scope{}); !ok || undo.Before != f.old || undo.After != f.new {
		t.Errorf("a rollback undoes %+v", undo)
	}
	if targets.Gap(history) {
		t.Error("the history has a gap")
	}
}

// TestGatesBlockTheNextBatch: an operator whose errors rise after a batch keeps the other nodes, whichever serve asks.
func TestGatesBlockTheNextBatch(t *testing.T) {
	t.Parallel()
	f := begin(t, 4)
	plan := f.start(rollout.Policy{Canaries: "0", Batch: "2", Gates: []string{"errors"}})
	f.run(4, 1) // this controller defines no gate
	c := f.wait(plan.ID, "asked its gate", func(c *journal.Campaign) bool { return c.State.Answers["errors"].Code == rollout.GateUndefined })
	if c.State.Done != 2 || c.State.Next != 2 {
		t.Errorf("%d are done, and %d began", c.State.Done, c.State.Next)
	}
	var asked atomic.Int32
	code, later := rollout.GateRefused, time.Now()
	other := &Controller{DB: f.s, Ref: dev, Now: time.Now, Ask: func(_ context.Context, p rollout.Plan, gates []string) map[string]rollout.Answer {
		asked.Add(1)
		if p.ID != plan.ID || len(gates) != 1 {
			t.Errorf("it asks %v for %s", gates, p.ID)
		}
		return map[string]rollout.Answer{"errors": {Code: code, At: later}}
	}}
	other.Now = func() time.Time { return later }
	if wait, err := other.Advance(t.Context()); err != nil || wait.Code != rollout.WaitAnswers {
		t.Fatalf("it waits for %+v: %v", wait, err)
	}
	if c = f.campaign(plan.ID); c.State.Answers["errors"].Code != rollout.GateRefused || c.State.Done != 2 || c.State.Next != 2 || asked.Load() != 1 {
		t.Errorf("after %d questions: %+v", asked.Load(), c.State)
	}
	code = rollout.GatePassed
	later = later.Add(2 * askEvery)
	for end := time.Now().Add(time.Minute); f.campaign(plan.ID).State.Phase != rollout.Completed; later = later.Add(askEvery) {
		if _, err := other.Advance(t.Context()); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("it never completed: %+v", f.campaign(plan.ID).State)
		}
	}
}

// TestRacksAreNeverDownTogether: an operator who runs one service in two racks keeps one of them, also while a node that is not
// in the rollout is silent.
func TestRacksAreNeverDownTogether(t *testing.T) {
	t.Parallel()
	f := begin(t, 6)
	e, err := environments.Parse("dev.yaml", []byte(`layers: [node, role, rack, environment, common]
roles: {web: {cardinality: 6, attributes: {rack: r1}}, db: {cardinality: 1, attributes: {rack: r1}}}
nodes: {web2: {attributes: {rack: r2}}, web4: {attributes: {rack: r2}}, web6: {attributes: {rack: r2}}}
`))
	if err == nil {
		err = specs.In(f.s).PutSpec(t.Context(), e, 0)
	}
	if err == nil {
		err = fleet.In(f.s).Register(t.Context(), "dev", model.Host{Node: "db1", Role: "db", MachineID: "m-db1", At: time.Now().Add(-time.Hour)})
	}
	if err == nil {
		_, err = targets.In(f.s).Promote(t.Context(), dev, f.desires(), etcd.Scope{Node: "db1"}, targets.Promoted, f.old, author())
	}
	if err != nil {
		t.Fatal(err)
	}
	plan := f.start(rollout.Policy{Canaries: "0", Batch: "3", MaxPlaces: map[string]int{"rack": 1}})
	begun := map[string]bool{}
	var mu sync.Mutex
	f.admitted = func(node string) {
		c, err := journal.In(f.s).Get(t.Context(), dev, plan.ID, nil)
		if err != nil {
			t.Errorf("cannot read the rollout: %v", err)
			return
		}
		racks := map[string]bool{}
		for name := range c.State.Slots {
			racks[e.AttributeOf("web", name, "rack")] = true
		}
		mu.Lock()
		defer mu.Unlock()
		if begun[node] = true; len(racks) > 1 {
			t.Errorf("%s began while nodes of two racks are in progress: %v", node, c.State.Slots)
		}
	}
	f.run(6, 2)
	f.wait(plan.ID, "finished the first rack", func(c *journal.Campaign) bool { return c.State.Done == 3 })
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	for range 5 { // db1 is silent: its rack is not available, and the other one must be
		if wait, err := c.Advance(t.Context()); err != nil || wait.Code != rollout.WaitPlace || wait.Place != "rack=r1" {
			t.Fatalf("it waits for %+v: %v", wait, err)
		}
	}
	mu.Lock()
	if len(begun) != 3 || begun["web2"] || begun["web4"] || begun["web6"] {
		t.Errorf("begun are %v", begun)
	}
	mu.Unlock()
	st := model.Status{
		Node: "db1", Role: "db", Machine: "m-db1", Phase: model.Idle, Target: f.old, LastGood: f.old, Enforcing: f.old, SeenAt: time.Now(), Settings: model.DefaultSettings(),
	}
	if err := control.In(f.s).Report(t.Context(), model.Identity{Node: "db1", Role: "db", Environment: "dev"}, st, nil, nil); err != nil {
		t.Fatal(err)
	}
	f.wait(plan.ID, "completed", func(c *journal.Campaign) bool { return c.State.Phase == rollout.Completed && c.State.Done == 6 })
}

// TestRolloutStopsAndReverts: a failure closes the gate; nodes that did not begin keep what they have; the revert brings the others
// back.
func TestRolloutStopsAndReverts(t *testing.T) {
	t.Parallel()
	f := begin(t, 6)
	plan := f.start(rollout.Policy{Canaries: "0", Batch: "1"})
	f.run(6, 2, "web3")
	c := f.wait(plan.ID, "stopped", func(c *journal.Campaign) bool { return c.Gate.State == model.GatePaused && c.State.Stop != nil })
	if c.State.Stop == nil || c.State.Stop.Code != rollout.StopFailures || c.State.Done != 2 || len(c.State.Failed) != 1 {
		t.Errorf("it stopped as %+v", c.State)
	}
	f.untouched("web4", "web5", "web6")
	if _, err := journal.In(f.s).Revert(t.Context(), dev, c, author()); err != nil {
		t.Fatal(err)
	}
	f.returned(6)
	if c := f.campaign(plan.ID); c.State.Phase != rollout.Reverted || c.Gate.Rollout != "" || c.Desires.Default != f.old {
		t.Errorf("reverted: %+v in gate %+v", c.State, c.Gate)
	}
}

// backup reads the keys of the environment. restore writes them again, and deletes what came since.
func (f *testFleet) backup() (restore func()) {
	f.t.Helper()
	const root = "/pulley/v1/environments/dev/"
	backup, err := f.client.Get(f.t.Context(), root, clientv3.WithPrefix())
	if err != nil {
		f.t.Fatal(err)
	}
	return func() {
		f.t.Helper()
		for _, from := range []string{root, root + "gate0"} { // all but the gate: a new one would be that of a new environment
			to := root + "gate"
			if from != root {
				to = clientv3.GetPrefixRangeEnd(root)
			}
			if _, err := f.client.Delete(f.t.Context(), from, clientv3.WithRange(to)); err != nil {
				f.t.Fatal(err)
			}
		}
		for _, kv := range backup.Kvs {
			if _, err := f.client.Put(f.t.Context(), string(kv.Key), string(kv.Value)); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

// TestRecoverEndsARevivedRollout: the pause of a rollout out of a backup names `pulley recover`. Without it, that command does nothing, or serve
// pauses the next rollout for the same cause. The command also ends a rollout or a job of which a key is lost, which would own the environment for ever.
func TestRecoverEndsARevivedRollout(t *testing.T) {
	t.Parallel()
	f := begin(t, 2)
	e, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1}\n"))
	if err == nil {
		err = specs.In(f.s).PutSpec(t.Context(), e, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	advance := func() rollout.Wait {
		t.Helper()
		wait, err := c.Advance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	plan := f.start(rollout.Policy{Canaries: "0"})
	restore := f.backup()
	if _, err := journal.In(f.s).Revert(t.Context(), dev, f.campaign(plan.ID), author()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d := f.desires()
		if _, err := targets.In(f.s).Promote(t.Context(), dev, d, etcd.Scope{}, targets.Promoted, f.old, author()); err != nil {
			t.Fatal(err)
		}
	}
	advance()
	reached := f.desires().Gate.Epoch
	restore()
	if wait := advance(); wait.Stop == nil || wait.Stop.Code != rollout.StopRestored {
		t.Fatalf("it waits for %+v", wait)
	}
	done, err := promotion.Recover(t.Context(), f.s, dev, time.Now().Add(time.Hour), false, promotion.Author{Author: author()})
	if err != nil || len(done.Scopes) != 1 || done.Scopes[0].Passed != reached {
		t.Fatalf("recovered %+v; %v", done, err)
	}
	if gate := f.desires().Gate; gate.State != model.GateOpen || gate.Rollout != "" || gate.Epoch <= reached {
		t.Errorf("the gate after the recovery: %+v", gate)
	}
	f.start(rollout.Policy{Canaries: "0"})
	if wait := advance(); wait.Code != rollout.WaitNodes {
		t.Errorf("the next rollout waits for %+v", wait)
	}
	plan = f.campaign(f.desires().Gate.Rollout).Plan
	for i, value := range []string{"", "x", `{"v":1}`} {
		for _, part := range []string{"plan", "state", "nodes"} {
			if value == `{"v":1}` && part == "state" {
				continue // nothing tells it from another one
			}
			key := campaignKeys + plan.ID + "/" + part
			if part == "nodes" {
				key = f.keys(plan.ID)[0]
			}
			_, err := f.client.Put(t.Context(), key, value)
			if err == nil && value == "" {
				_, err = f.client.Delete(t.Context(), key)
			}
			if err != nil {
				t.Fatal(err)
			}
			f.lost(plan, part+" "+value)
			if plan = f.start(rollout.Policy{Canaries: "0", Batch: "1"}); i == 1 {
				if _, err := journal.In(f.s).Revert(t.Context(), dev, f.campaign(plan.ID), author()); err != nil {
					t.Fatal(err)
				}
				plan = f.startJob(rollout.Policy{}, []string{"web1"}, []string{"web2"})
			}
			advance()
		}
	}
}

// lost demands that a rollout or job in progress that cannot be read gives no order, and that `pulley recover` ends it, as each command shows.
func (f *testFleet) lost(plan rollout.Plan, what string) {
	f.t.Helper()
	ctx, by := f.t.Context(), promotion.Author{Author: author()}
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	for name, do := range map[string]func() error{
		"serve":  func() error { _, err := c.Advance(ctx); return err },
		"show":   func() error { _, err := rollouts.LookAtRollout(ctx, f.s, dev, plan.Kind, "", time.Now()); return err },
		"status": func() error { _, err := rollouts.LookAtRollout(ctx, f.s, dev, "", plan.ID, time.Now()); return err },
		"abort":  func() error { _, err := rollouts.ActOnRollout(ctx, f.s, dev, rollouts.Abort, "", by); return err },
		"end":    func() error { _, err := rollouts.AbortJob(ctx, f.s, dev, by); return err },
		"revert": func() error { _, err := rollouts.PlanRevert(ctx, f.s, dev); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "end it: `pulley recover -e dev`") {
			f.t.Errorf("%s: %s of %s: %v", what, name, plan.ID, err)
		}
	}
	if _, err := targets.In(f.s).Promote(ctx, dev, f.desires(), etcd.Scope{}, targets.Promoted, f.new, author()); !errors.Is(err, targets.ErrCampaign) {
		f.t.Errorf("%s: a promotion: %v", what, err)
	}
	if d, err := control.In(f.s).Desire(ctx, model.Identity{Node: "web2", Role: "web", Environment: "dev"}); err != nil || d.Wanted() != f.old {
		f.t.Errorf("%s: web2 wants %+v: %v", what, d.Wanted(), err)
	}
	for _, lost := range []string{plan.ID, ""} {
		done, err := promotion.Recover(ctx, f.s, dev, time.Now().Add(time.Hour), false, by)
		if err != nil || lost != "" && (len(done.Scopes) != 1 || done.Scopes[0].Lost != lost) || lost == "" && len(done.Scopes) > 0 {
			f.t.Errorf("%s: recovered %+v; %v", what, done, err)
		}
		if gate := f.desires().Gate; gate.State != model.GateOpen || gate.Rollout != "" {
			f.t.Fatalf("%s: the gate after the recovery: %+v", what, gate)
		}
	}
	for _, node := range []string{"web1", "web2"} {
		d, err := control.In(f.s).Desire(ctx, model.Identity{Node: node, Role: "web", Environment: "dev"})
		if err != nil || d.Wanted() != f.old || d.Assignment() != nil {
			f.t.Errorf("%s: %s wants %+v after the recovery: %v", what, node, d.Wanted(), err)
		}
	}
}

// TestRevivedRolloutStops: etcd was restored from a backup of the time of a rollout, without Pulley. A serve that has seen its end orders
// nobody. Another serve learns it from the first node, which keeps its target.
func TestRevivedRolloutStops(t *testing.T) {
	t.Parallel()
	f := begin(t, 2)
	old := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	advance := func(c *Controller) rollout.Wait {
		t.Helper()
		wait, err := c.Advance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	plan := f.start(rollout.Policy{Canaries: "0", Batch: "1"})
	restored := f.backup()
	f.run(1, 0) // web1 takes it
	for end := time.Now().Add(time.Minute); f.campaign(plan.ID).State.Done == 0; time.Sleep(20 * time.Millisecond) {
		if advance(old); time.Now().After(end) {
			t.Fatal("web1 does not take it")
		}
	}
	if _, err := journal.In(f.s).Revert(t.Context(), dev, f.campaign(plan.ID), author()); err != nil {
		t.Fatal(err)
	}
	advance(old)
	f.returned(1)

	restored()
	if wait := advance(old); wait.Stop == nil || wait.Stop.Code != rollout.StopRestored || len(f.campaign(plan.ID).State.Slots) != 0 {
		t.Errorf("the serve that saw its end waits for %+v", wait)
	}
	restored()
	other := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		wait := advance(other)
		if wait.Stop != nil && wait.Stop.Code == rollout.StopRestored && wait.Stop.Node == "web1" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("another serve waits for %+v", wait)
		}
	}
	if _, ordered := f.campaign(plan.ID).State.Slots["web2"]; ordered {
		t.Error("web2 was ordered after the backup was restored")
	}
}

// TestEnvironmentMadeAgain: it is destroyed and made again while a controller drives it. Its epochs begin again, and its first rollout is not one of a backup.
func TestEnvironmentMadeAgain(t *testing.T) {
	t.Parallel()
	f := begin(t, 1)
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	advance := func() rollout.Wait {
		t.Helper()
		wait, err := c.Advance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	const root = "/pulley/v1/environments/dev/"
	former, err := f.client.Get(t.Context(), root, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p := f.start(rollout.Policy{Canaries: "0"})
		advance()
		if _, err := journal.In(f.s).Revert(t.Context(), dev, f.campaign(p.ID), author()); err != nil {
			t.Fatal(err)
		}
		advance()
	}
	if _, err := f.client.Delete(t.Context(), root, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	for _, kv := range former.Kvs {
		if _, err := f.client.Put(t.Context(), string(kv.Key), string(kv.Value)); err != nil {
			t.Fatal(err)
		}
	}
	p := f.start(rollout.Policy{Canaries: "0"})
	if wait := advance(); wait.Stop != nil || len(f.campaign(p.ID).State.Slots) != 1 {
		t.Errorf("the first rollout of the new environment waits for %+v", wait)
	}
}

// TestRolloutRevertsByItself: with on_failure: revert, the controllers bring every node back and nobody has to.
func TestRolloutRevertsByItself(t *testing.T) {
	t.Parallel()
	f := begin(t, 6)
	plan := f.start(rollout.Policy{Canaries: "0", Batch: "1", OnFailure: rollout.FailureReverts})
	f.run(6, 2, "web3")
	c := f.wait(plan.ID, "reverted", func(c *journal.Campaign) bool { return c.State.Phase == rollout.Reverted })
	if c.State.Stop == nil || c.State.Stop.Code != rollout.StopFailures || c.State.Done != 2 || c.Gate.Epoch != plan.Epoch+1 || c.Gate.State != model.GateOpen {
		t.Errorf("it ended as %+v in gate %+v", c.State, c.Gate)
	}
	f.untouched("web4", "web5", "web6")
	f.returned(6)
	history, _, err := targets.In(f.s).History(t.Context(), dev, 1)
	if err != nil || history[0].Kind != targets.Reverted || history[0].Rollout.ID != plan.ID || history[0].By != "pulley serve" {
		t.Errorf("history %+v: %v", history, err)
	}
}

// untouched checks that nodes never saw the rollout.
func (f *testFleet) untouched(nodes ...string) {
	f.t.Helper()
	states, err := fleet.In(f.s).State(f.t.Context(), dev)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, node := range nodes {
		if st := states.Statuses[node]; st.LastGood != f.old || st.Assignment != "" {
			f.t.Errorf("%s was touched: %+v", node, st)
		}
	}
}

// returned waits until nodes are on the old target.
func (f *testFleet) returned(nodes int) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		states, err := fleet.In(f.s).State(f.t.Context(), dev)
		returned := 0
		for _, st := range states.Statuses {
			if st.LastGood == f.old && st.Enforcing == f.old && st.Phase == model.Idle {
				returned++
			}
		}
		if err == nil && returned == nodes {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("%d of %d returned: %+v", returned, nodes, states.Statuses)
		}
	}
}

// TestAnswersOfGatesHaveAnAge: without it, a batch begins on what a gate answered before etcd hung, or before a slower gate answered.
func TestAnswersOfGatesHaveAnAge(t *testing.T) {
	t.Parallel()
	start := time.Now()
	var asked, later atomic.Int64
	now := func() time.Time { return start.Add(time.Duration(later.Load())) } // gates that no step waits for read it, too
	slow, first := make(chan rollout.AnswerCode), make(chan bool, 9)
	c := &Controller{Now: now, Ask: func(_ context.Context, _ rollout.Plan, gates []string) map[string]rollout.Answer {
		code := rollout.GatePassed
		if gates[0] == "slow" {
			code = <-slow
		}
		answer := rollout.Answer{Code: code, At: now()}
		if gates[0] == "quick" {
			asked.Add(1)
			first <- true
		}
		return map[string]rollout.Answer{gates[0]: answer}
	}}
	s := rollout.State{Asked: start}
	answers := func(ctx context.Context, gates ...string) string {
		got := c.ask(ctx, rollout.Plan{ID: "r1"}, s, gates)
		return strings.Join(slices.Sorted(maps.Keys(got)), " ")
	}
	away, cancel := context.WithCancel(t.Context())
	cancel() // the step does not wait for the answer
	answers(away, "quick")
	<-first
	passes := func(gates ...string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); answers(t.Context(), gates...) != strings.Join(gates, " "); {
			if time.Now().After(end) {
				t.Fatalf("%q never pass, after %d questions", gates, asked.Load())
			}
		}
	}
	later.Store(int64(44 * time.Second)) // etcd hangs
	if passes("quick"); asked.Load() != 2 {
		t.Errorf("an answer before 44 seconds decides, after %d questions", asked.Load())
	}
	if got := answers(t.Context(), "quick", "slow"); got != "quick" || asked.Load() != 2 {
		t.Errorf("beside a slow gate, after %d questions, it answers %q", asked.Load(), got)
	}
	later.Add(int64(rollout.AnswerAge + time.Second))
	go func() { slow <- rollout.GatePassed }()
	if passes("quick", "slow"); asked.Load() != 3 {
		t.Errorf("the quick gate was asked %d times", asked.Load())
	}
}

// TestAnswerOfAnotherBatch: without it, the third batch begins on what the gate answered before the second one, if both were asked within
// one second: another serve asked for it the second time.
func TestAnswerOfAnotherBatch(t *testing.T) {
	t.Parallel()
	f := begin(t, 3)
	now, code := time.Now().UTC().Truncate(time.Second), rollout.GatePassed
	serve := func() *Controller {
		return &Controller{DB: f.s, Ref: dev, Now: func() time.Time { return now }, Ask: func(_ context.Context, _ rollout.Plan, gates []string) map[string]rollout.Answer {
			return map[string]rollout.Answer{gates[0]: {Code: code, At: now}}
		}}
	}
	advance := func(c *Controller) {
		t.Helper()
		if _, err := c.Advance(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a, b := serve(), serve()
	plan := f.start(rollout.Policy{Canaries: "0", Batch: "1", Gates: []string{"g"}})
	takes := func(name string) {
		t.Helper()
		who := model.Identity{Node: name, Role: "web", Environment: "dev"}
		d, err := control.In(f.s).Desire(t.Context(), who)
		if err != nil || d.Assignment() == nil {
			t.Fatalf("%s has no order; %v", name, err)
		}
		st := model.Status{Node: name, Role: "web", Phase: model.Idle, Target: d.Wanted(), LastGood: f.new, Enforcing: f.new, SeenAt: now, Settings: model.DefaultSettings(), Machine: "m-" + name, Assignment: d.Assignment().ID}
		if err := control.In(f.s).Report(t.Context(), who, st, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	advance(a)
	takes("web1")
	now = now.Add(10 * time.Second)
	advance(a)
	takes("web2")
	code = rollout.GateRefused
	for _, c := range []*Controller{b, a} {
		advance(c)
		if s := f.campaign(plan.ID).State; len(s.Slots) > 0 || s.Batch != 2 {
			t.Fatalf("the gate refuses, and the rollout proceeds: batch %d, %v", s.Batch, s.Slots)
		}
		now = now.Add(time.Second / 2)
	}
}
