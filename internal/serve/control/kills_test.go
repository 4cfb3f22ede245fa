package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

var errKilled = errors.New("the process was killed")

// mortal is the connection of a process that is killed at one of its requests to etcd: before etcd carries it out, or after.
type mortal struct {
	clientv3.KV
	clientv3.Lease
	left  int // requests until then
	after bool
}

// request carries out one request, unless the process is dead.
func request[T any](m *mortal, do func() (T, error)) (none T, err error) {
	m.left--
	switch {
	case m.left == 0 && m.after:
		_, _ = do()
		return none, errKilled
	case m.left <= 0:
		return none, errKilled
	}
	return do()
}

func (m *mortal) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return request(m, func() (*clientv3.GetResponse, error) { return m.KV.Get(ctx, key, opts...) })
}

func (m *mortal) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return request(m, func() (*clientv3.LeaseGrantResponse, error) { return m.Lease.Grant(ctx, ttl) })
}

func (m *mortal) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	return request(m, func() (*clientv3.LeaseKeepAliveResponse, error) { return m.Lease.KeepAliveOnce(ctx, id) })
}

func (m *mortal) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	return request(m, func() (*clientv3.LeaseRevokeResponse, error) { return m.Lease.Revoke(ctx, id) })
}

func (m *mortal) Txn(ctx context.Context) clientv3.Txn { return &mortalTxn{m.KV.Txn(ctx), m} }

type mortalTxn struct {
	clientv3.Txn
	m *mortal
}

func (t *mortalTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.Txn = t.Txn.If(cs...); return t }
func (t *mortalTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(ops...); return t }
func (t *mortalTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }
func (t *mortalTxn) Commit() (*clientv3.TxnResponse, error) {
	return request(t.m, t.Txn.Commit)
}

// mortal returns the store of a process that is killed at its n-th request.
func (f *testFleet) mortal(n int, after bool) (*etcd.DB, *mortal) {
	client := clientv3.NewCtxClient(f.t.Context())
	m := &mortal{f.client.KV, f.client.Lease, n, after}
	client.KV, client.Lease = m, m
	return etcd.Over(client, nil, "test", etcd.DefaultPrefix, 10*time.Second), m
}

// hand lets the nodes tick once each, as their agents would: a node at its turn runs, and answers.
type hand struct {
	f     *testFleet
	state map[string]*model.State
	ran   []string // nodes, in the order of their runs
}

func (h *hand) tick(names ...string) {
	h.f.t.Helper()
	for _, name := range names {
		st, who := h.state[name], model.Identity{Node: name, Role: "web", Environment: "dev"}
		d, err := control.In(h.f.s).Desire(h.f.t.Context(), who)
		if err != nil {
			h.f.t.Fatal(err)
		}
		dec := model.Decide(model.Observed{Identity: who, State: *st, Settings: model.DefaultSettings(), Machine: "m-" + name}, d, time.Now())
		report := model.Status{
			Node: name, Role: "web", Phase: model.Idle, Cause: dec.Cause, Target: d.Wanted(), LastGood: h.f.old, Enforcing: h.f.old, SeenAt: time.Now(),
			Settings: model.DefaultSettings(), Machine: "m-" + name,
		}
		if a := d.Assignment(); a != nil {
			report.Assignment = a.ID
		}
		if dec.Reason == model.ReasonTurn {
			h.ran, st.Ran = append(h.ran, name), &model.Answer{ID: d.Assigned.ID}
		}
		report.Ran = st.Ran
		if err := control.In(h.f.s).Report(h.f.t.Context(), who, report, nil, nil); err != nil {
			h.f.t.Fatal(err)
		}
	}
}

// killed runs one job, in which a process is killed at its n-th request: the operator's that starts it or aborts it, or serve. It returns whether the process lived on.
func killed(t *testing.T, who string, n int, after bool) (lived bool) {
	f := begin(t, 4)
	nodes := []string{"web1", "web2", "web3", "web4"}
	h := &hand{f: f, state: map[string]*model.State{}}
	for _, name := range nodes {
		h.state[name] = &model.State{LastGood: f.old, Enforcing: f.old, RanAt: time.Now()}
	}
	h.tick(nodes...)
	hold := model.Hold{Mode: model.Freeze, Kind: model.OperatorHold, Who: "bob", Why: "disk swap"}
	dying, m := f.mortal(n, after)
	layers := [][]rollout.Member{{{Node: "web1", Machine: "m-web1"}}, {{Node: "web2", Machine: "m-web2"}, {Node: "web3", Machine: "m-web3"}}}
	p, err := rollout.MakeJob(rollout.Order{By: "ann", At: time.Now()}, layers)
	if err != nil {
		t.Fatal(err)
	}
	starter, first := f.s, &Controller{DB: dying, Ref: dev, Now: time.Now}
	if who == "operator" {
		starter = dying
	}
	if who != "serve" {
		first.DB = f.s
	}
	d, err := targets.In(starter).Desires(t.Context(), dev)
	if err == nil {
		_, err = journal.In(starter).Start(t.Context(), dev, d, p, author())
	}
	if err != nil && m.left > 0 {
		t.Fatal(err)
	}
	lived = m.left > 0
	second := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	c := first
	held := false // web2, in the middle: it runs what it has
	for i := range 20 {
		if f.desires().Gate.Rollout == "" {
			break
		}
		if held = held || i == 1; i == 1 {
			if err := fleet.In(f.s).Hold(t.Context(), dev, etcd.Scope{Node: "web2"}, hold, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		_, err := c.Advance(t.Context())
		switch {
		case m.left <= 0: // another serve goes on, or the same one after its restart
			c = second
		case err != nil:
			t.Fatal(err)
		}
		if who == "abort" && m.left == n { // in the middle: web1 may run
			if campaign, _, err := journal.In(dying).Open(t.Context(), dev, nil); err == nil {
				_, _ = journal.In(dying).Abort(t.Context(), dev, campaign, author())
			}
		}
		h.tick(nodes...)
	}
	if who != "operator" {
		lived = m.left > 0
	}
	all, _, err := journal.In(f.s).List(t.Context(), dev)
	switch started := len(all) > 0; {
	case err != nil:
		t.Fatal(err)
	case !started && (who != "operator" || len(h.ran) > 0):
		t.Errorf("the job never was, and %v ran", h.ran)
	case started && all[0].State.Phase == rollout.Aborted && who == "abort" && len(h.ran) == 0: // before web1 saw its turn
	case lived && who == "abort":
		t.Errorf("the job is %+v after an abort, and %v ran", all[0].State, h.ran)
	case started && (all[0].State.Phase != rollout.Completed || len(h.ran) != 3 || h.ran[0] != "web1"):
		t.Errorf("the job is %+v, and %v ran", all[0].State, h.ran)
	}
	f.free(nodes...)
	if still, _, err := fleet.In(f.s).HoldOf(t.Context(), dev, etcd.Scope{Node: "web2"}); err != nil || held && (still == nil || still.Who != "bob" || still.Why != "disk swap") {
		t.Errorf("the operator's hold is %+v: %v", still, err)
	}
	return lived
}

// TestJobSurvivesKills: the operator's process that starts or aborts a job, or serve, is killed at each request that it makes, before and
// after etcd carried it out. Either the job never began, or it was aborted, or another serve completes it, in order and each node once.
// Afterwards no node waits, and holds are as before.
func TestJobSurvivesKills(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"operator", "serve", "abort"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			kills := 0
			for n := 1; ; n++ {
				lived := false
				for _, after := range []bool{false, true} {
					t.Run(fmt.Sprintf("%d after %t", n, after), func(t *testing.T) { lived = killed(t, who, n, after) })
					kills++
				}
				if lived || t.Failed() {
					t.Logf("%d kills", kills)
					if n < 4 {
						t.Errorf("it made only %d requests", n)
					}
					return
				}
			}
		})
	}
}

// TestKeepWaitingKeepsHoldsOfOthers: a job that holds its failed nodes for an investigation must not replace what another operator ordered, and its
// own holds end by themselves.
func TestKeepWaitingKeepsHoldsOfOthers(t *testing.T) {
	t.Parallel()
	f := begin(t, 2)
	plan := f.startJob(rollout.Policy{KeepWaiting: model.Duration(time.Hour)}, []string{"web1", "web2"})
	if err := fleet.In(f.s).Hold(t.Context(), dev, etcd.Scope{Node: "web1"}, model.Hold{Mode: model.Freeze, Kind: model.OperatorHold, Who: "bob", Why: "disk swap"}, 0, 0); err != nil {
		t.Fatal(err)
	}
	all := &turns{now: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for _, name := range []string{"web1", "web2"} {
		running.Go(func() { f.worker(ctx, name, true, all, map[string]int{}) })
	}
	c := &Controller{DB: f.s, Ref: dev, Now: time.Now}
	f.wait(plan.ID, "failed", func(campaign *journal.Campaign) bool {
		if _, err := c.Advance(ctx); err != nil {
			t.Fatal(err)
		}
		return campaign.State.Phase == rollout.Failed
	})
	for node, who := range map[string]string{"web1": "bob", "web2": "ann"} {
		held, _, err := fleet.In(f.s).HoldOf(ctx, dev, etcd.Scope{Node: node})
		if err != nil || held == nil || held.Who != who || held.Until.IsZero() != (who == "bob") {
			t.Errorf("%s has %+v: %v", node, held, err)
		}
	}
}

// TestKilledEndHoldsNoNode: the end of a job that is killed at any of its requests must not leave holds while the job continues: its nodes
// would never have their turn.
func TestKilledEndHoldsNoNode(t *testing.T) {
	t.Parallel()
	f := begin(t, 1)
	nodes := []string{"web1", "web2", "web3"}
	for n := 1; ; n++ {
		for _, after := range []bool{false, true} {
			plan := f.startJob(rollout.Policy{KeepWaiting: model.Duration(time.Hour)}, nodes)
			c := f.campaign(plan.ID)
			c.State.Failed = map[string]rollout.Failure{}
			for _, node := range nodes {
				c.State.Failed[node] = rollout.Failure{Code: rollout.DeadlineEnded}
			}
			if err := journal.In(f.s).Update(t.Context(), dev, c, c.State); err != nil {
				t.Fatal(err)
			}
			dying, m := f.mortal(n, after)
			if c, _, err := journal.In(dying).Open(t.Context(), dev, nil); err == nil {
				_, _ = journal.In(dying).Abort(t.Context(), dev, c, author())
			}
			want, phase := len(nodes), f.campaign(plan.ID).State.Phase
			if phase == rollout.Advancing {
				want = 0
			}
			all, _, err := fleet.In(f.s).Holds(t.Context(), dev)
			if err != nil || len(all) != want {
				t.Errorf("killed at request %d (after it: %t), the job is %s with %d holds: %v", n, after, phase, len(all), err)
			}
			if phase == rollout.Advancing {
				if _, err := journal.In(f.s).Abort(t.Context(), dev, f.campaign(plan.ID), author()); err != nil {
					t.Fatal(err)
				}
			} else if m.left > 0 {
				return
			}
			for _, node := range nodes {
				if err := fleet.In(f.s).Unhold(t.Context(), dev, etcd.Scope{Node: node}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestKeepWaitingHoldsManyNodes: a job with more failed nodes than one transaction of etcd can hold must end all the same, also by an abort, and
// an unreadable hold must not keep it from its end.
func TestKeepWaitingHoldsManyNodes(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testFleet, *journal.Campaign) error{
		"by itself": func(f *testFleet, _ *journal.Campaign) error {
			_, err := (&Controller{DB: f.s, Ref: dev, Now: time.Now}).Advance(f.t.Context())
			return err
		},
		"by an abort": func(f *testFleet, c *journal.Campaign) error {
			_, err := journal.In(f.s).Abort(f.t.Context(), dev, c, author())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := begin(t, 1)
			var nodes []string
			for i := range 200 {
				nodes = append(nodes, fmt.Sprintf("web%d", i+1))
			}
			plan := f.startJob(rollout.Policy{KeepWaiting: model.Duration(time.Hour)}, nodes)
			c := f.campaign(plan.ID)
			c.State.Failed, c.State.Stop = map[string]rollout.Failure{}, &rollout.Stop{Code: rollout.StopFailures}
			for _, node := range nodes {
				c.State.Failed[node] = rollout.Failure{Code: rollout.DeadlineEnded}
			}
			if err := journal.In(f.s).Update(t.Context(), dev, c, c.State); err != nil {
				t.Fatal(err)
			}
			const holds = "/pulley/v1/environments/dev/holds/"
			if _, err := f.client.Put(t.Context(), holds+"nodes/web7", "damaged"); err != nil {
				t.Fatal(err)
			}
			if err := end(f, f.campaign(plan.ID)); err != nil {
				t.Fatal(err)
			}
			all, damaged, err := fleet.In(f.s).Holds(t.Context(), dev)
			if phase := f.campaign(plan.ID).State.Phase; err != nil || phase == rollout.Advancing || len(all) != 199 || len(damaged) != 1 {
				t.Errorf("the job is %s with %d holds, unreadable %v: %v", phase, len(all), damaged, err)
			}
			f.free("web1")
		})
	}
}
