//go:build e2e

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// rolloutsEnv is the number of rollouts over 14 nodes; unset: one over 6.
const rolloutsEnv = "PULLEY_CLUSTER_ROLLOUTS"

// A rollout over real agents continues while a member of etcd and a serve are killed every few seconds. At no revision of etcd are
// more nodes in progress than the batch permits, or nodes of two groups, and no node begins while the rollout is paused.
func TestRolloutSurvivesKills(t *testing.T) {
	rollouts, nodes := 1, 6
	if s := os.Getenv(rolloutsEnv); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("%s=%s is no number of rollouts", rolloutsEnv, s)
		}
		rollouts, nodes = n, 14
	}
	w := newWorld(t, fmt.Sprintf("rollout: {canaries: 1, batch: 2}\nroles:\n  compute: {cardinality: %d, flavor: bare-metal}\n", nodes))
	w.release("1.0.0")
	w.must("pulley", "promote", "1.0.0")
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	w.joinAll(ctx, &all, 1, 0, nodes)

	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for n := range rollouts {
		version := fmt.Sprintf("2.%d.0", n)
		w.release(version)
		r := w.watchRollout(ctx, &all)
		began, kills, resumed := time.Now(), 0, 0
		w.must("pulley", "rollout", "start", version)
		for round := 0; ; round++ {
			if time.Since(began) > 5*time.Minute {
				t.Fatalf("not within five minutes:\n%s", w.must("pulley", "rollout", "show"))
			}
			if round == 1 {
				w.act("act", "pause", "rollout", "pause")
			}
			members := w.members()
			member, serve := members[random.IntN(len(members))], w.serves[random.IntN(len(w.serves))]
			member.kill()
			serve.signal(syscall.SIGKILL)
			kills++
			rest(time.Duration(500+random.IntN(1000)) * time.Millisecond)
			w.allAnswer() // it starts the member
			state := w.rolloutState()
			if state.State == "completed" {
				break
			}
			if state.State == "paused" {
				if round > 1 && (state.Wait.Stop == nil || state.Wait.Stop.Code != rollout.StopDoubtful) {
					t.Fatalf("it paused: %+v", state.Wait)
				}
				resumed++
				w.act("act", "resume", "rollout", "resume")
			}
			rest(time.Duration(500+random.IntN(1000)) * time.Millisecond)
		}
		took := time.Since(began)
		for _, node := range w.allNodes() {
			w.eventually(node.name+" runs "+version, func() error { return node.runs(version) })
		}
		seen := r.end()
		if len(seen.begun) != nodes || seen.most > 2 || seen.most < 1 {
			t.Errorf("%d of %d nodes began, at most %d at a time", len(seen.begun), nodes, seen.most)
		}
		t.Logf("rollout %d of %d nodes in batches of 2: %s; %d members and %d serves killed, %d times resumed; %d revisions seen, at most %d nodes in progress",
			n+1, nodes, took.Round(time.Millisecond), kills, kills, resumed, seen.revisions, seen.most)
	}
	killed := 0
	for _, n := range w.allNodes() {
		killed += n.kills
	}
	t.Logf("%d agents killed", killed)
}

type shownRollout struct {
	State string
	Wait  struct{ Stop *rollout.Stop }
}

func (w *world) rolloutState() (s shownRollout) {
	w.t.Helper()
	w.eventually("the rollout is shown", func() error {
		out, err := w.run("pulley", "rollout", "show", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &s)
		}
		return err
	})
	return s
}

// observer follows a rollout revision by revision, and judges each.
type observer struct {
	w    *world
	stop context.CancelFunc
	done chan struct{}

	gate     model.Gate
	state    rollout.State
	plan     *rollout.Plan
	assigned map[string]model.Assignment
	ended    map[string]bool // nodes with the ids of their assignments
	ran      map[string]string
	seen     sighting
}

type sighting struct {
	revisions, most int
	begun           map[string]bool
}

const keysOfDev = "/pulley/v1/environments/dev/"

// watchRollout begins to follow the next rollout of the environment, from etcd's present revision.
func (w *world) watchRollout(ctx context.Context, all *sync.WaitGroup) *observer {
	w.t.Helper()
	c := w.client(w.members()...)
	ctx, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	o := &observer{
		w: w, stop: stop, done: make(chan struct{}), assigned: map[string]model.Assignment{}, ended: map[string]bool{}, ran: map[string]string{},
		seen: sighting{begun: map[string]bool{}},
	}
	first, err := c.Get(ctx, keysOfDev+"gate")
	if err == nil && len(first.Kvs) == 1 {
		err = json.Unmarshal(first.Kvs[0].Value, &o.gate)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	all.Go(func() {
		defer close(o.done)
		next := first.Header.Revision + 1
		for ctx.Err() == nil { // a member that is killed ends the watch of its clients
			for answer := range c.Watch(ctx, "/pulley/v1/", clientv3.WithPrefix(), clientv3.WithRev(next)) {
				if answer.CompactRevision > 0 {
					w.t.Errorf("revisions from %d to %d were not seen", next, answer.CompactRevision)
				}
				next = max(next, answer.CompactRevision)
				for i, e := range answer.Events {
					if err := o.read(e); err != nil {
						w.t.Errorf("cannot read %s: %v", e.Kv.Key, err)
					}
					next = e.Kv.ModRevision + 1
					if i+1 == len(answer.Events) || answer.Events[i+1].Kv.ModRevision > e.Kv.ModRevision {
						o.judge(ctx, e.Kv.ModRevision)
					}
				}
			}
		}
	})
	return o
}

// end waits until the watch has seen the end of the rollout.
func (o *observer) end() sighting {
	o.w.t.Helper()
	select {
	case <-o.done:
	case <-time.After(time.Minute):
		o.w.t.Error("the watch does not see the end")
		o.stop()
		<-o.done
	}
	return o.seen
}

func (o *observer) read(e *clientv3.Event) error {
	key, gone := string(e.Kv.Key), e.Type == clientv3.EventTypeDelete
	node := path.Base(key)
	switch {
	case key == keysOfDev+"gate":
		o.gate = model.Gate{}
		err := json.Unmarshal(e.Kv.Value, &o.gate)
		if err == nil && o.gate.Rollout == "" {
			o.stop()
		}
		return err
	case strings.HasPrefix(key, keysOfDev+"campaigns/") && node == "state":
		o.state = rollout.State{}
		return json.Unmarshal(e.Kv.Value, &o.state)
	case strings.HasPrefix(key, keysOfDev+"assigned/"):
		var a model.Assignment
		if delete(o.assigned, node); gone {
			return nil
		}
		err := json.Unmarshal(e.Kv.Value, &a)
		o.assigned[node] = a
		return err
	case strings.HasPrefix(key, "/pulley/v1/status/dev/") && !gone:
		var s model.Status
		if err := json.Unmarshal(e.Kv.Value, &s); err != nil {
			return err
		}
		o.status(e.Kv.ModRevision, s)
	}
	return nil
}

// status reads what a node reports. A node that begins writes a status with the number of a new run.
func (o *observer) status(revision int64, s model.Status) {
	a := o.assigned[s.Node]
	if a.Epoch != o.gate.Epoch || a.ID == "" {
		return
	}
	if s.Phase == model.Running && s.Action == model.Take && s.LastRun != o.ran[s.Node] {
		if o.ran[s.Node] = s.LastRun; s.Assignment != a.ID || s.Target.Release != a.Target.Release {
			o.w.t.Errorf("revision %d: %s began %s for %q, and has assignment %q", revision, s.Node, s.Target.Release, s.Assignment, a.ID)
		}
		if o.gate.State != model.GateOpen {
			o.w.t.Errorf("revision %d: %s began while the gate is %s", revision, s.Node, o.gate.State)
		}
		if _, slot := o.state.Slots[s.Node]; !slot {
			o.w.t.Errorf("revision %d: %s began without a slot", revision, s.Node)
		}
		o.seen.begun[s.Node] = true
	}
	if s.Assignment == a.ID && s.Phase == model.Idle && s.LastGood.Release == a.Target.Release && s.Enforcing == s.LastGood {
		o.ended[s.Node+" "+a.ID] = true
	}
}

// judge counts the nodes that are assigned and have not ended.
func (o *observer) judge(ctx context.Context, revision int64) {
	o.seen.revisions++
	if o.gate.Rollout == "" {
		return
	}
	if o.plan == nil || o.plan.ID != o.gate.Rollout {
		o.plan = o.fetch(ctx, o.gate.Rollout)
	}
	if o.plan == nil {
		return
	}
	groups, count := map[int]bool{}, 0
	for node, a := range o.assigned {
		if a.Epoch != o.gate.Epoch || o.ended[node+" "+a.ID] {
			continue
		}
		for i, g := range o.plan.Groups {
			if slices.ContainsFunc(g.Nodes, func(m rollout.Member) bool { return m.Node == node }) {
				groups[i] = true
			}
		}
		count++
	}
	o.seen.most = max(o.seen.most, count)
	g, _ := o.state.Current(*o.plan)
	if len(groups) > 1 || count > max(g.Batch, 1) {
		o.w.t.Errorf("revision %d: %d nodes of %d groups are in progress, in a batch of %d: %v", revision, count, len(groups), g.Batch, o.assigned)
	}
}

// fetch reads the plan, which never changes.
func (o *observer) fetch(ctx context.Context, id string) *rollout.Plan {
	var plan *rollout.Plan
	err := o.w.again("the plan of the rollout", func() error {
		st, err := o.w.store()
		if err != nil {
			return err
		}
		defer st.Close()
		c, err := journal.In(st).Get(ctx, model.Ref{Environment: "dev"}, id, nil)
		if err == nil {
			plan = &c.Plan
		}
		return err
	})
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		o.w.t.Error(err)
	}
	return plan
}
