package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// setBack is a fleet whose etcd goes back in time. Its nodes keep their state.
type setBack struct {
	t      *testing.T
	server *etcdtest.Server
	s      *etcd.DB
	to     map[string]model.Target // by version
	nodes  []string
	log    *observe.Log
	past   string

	mu      sync.Mutex
	applied []string // runs, as NODE VERSION
	turns   []string // answered turns of jobs, as NODE ORDER
	hang    bool     // nodes do not answer turns
}

func beginSetBack(t *testing.T) *setBack {
	t.Helper()
	server := etcdtest.Start(t)
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f := &setBack{t: t, server: server, s: s, to: map[string]model.Target{}, nodes: []string{"web1", "web2"}, log: &observe.Log{}, past: filepath.Join(t.TempDir(), "reached")}
	spec, err := environments.Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 2}\n"))
	if err == nil {
		err = specs.In(s).PutSpec(t.Context(), spec, 0)
	}
	for i, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		r := release.Release{Version: version, Author: "ann", At: time.Now().UTC(), Content: content.Record{Tree: fmt.Sprintf("%064x", i+1)}}
		p, publishing := release.In(s).BeginPublish(t.Context(), "ann")
		if err = errors.Join(err, publishing); err == nil {
			_, err = release.In(s).Put(t.Context(), p, r, nil, nil)
			err = errors.Join(err, p.Close())
		}
		f.to[version] = r.Target()
	}
	for _, name := range f.nodes {
		err = errors.Join(err, fleet.In(s).Register(t.Context(), "dev", model.Host{Node: name, Role: "web", MachineID: "m-" + name, At: time.Now()}))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.promote("1.0.0")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, name := range f.nodes {
		all.Go(func() { f.node(ctx, name) })
	}
	t.Cleanup(func() { cancel(); all.Wait() })
	f.until("nodes apply 1.0.0", func() bool { return f.ran("1.0.0") == len(f.nodes) })
	return f
}

func (f *setBack) me() targets.Author { return targets.Author{By: "ann", At: time.Now()} }

func (f *setBack) desires() targets.Desires {
	f.t.Helper()
	d, err := targets.In(f.s).Desires(f.t.Context(), dev)
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

func (f *setBack) promote(version string) {
	f.t.Helper()
	if _, err := targets.In(f.s).Promote(f.t.Context(), dev, f.desires(), etcd.Scope{}, targets.Promoted, f.to[version], f.me()); err != nil {
		f.t.Fatal(err)
	}
}

// start starts a rollout of a version, or a job.
func (f *setBack) start(version string) rollout.Plan {
	f.t.Helper()
	var members []rollout.Member
	var candidates []rollout.Candidate
	for _, name := range f.nodes {
		members = append(members, rollout.Member{Node: name, Machine: "m-" + name})
		candidates = append(candidates, rollout.Candidate{Node: name, Role: "web", Machine: "m-" + name})
	}
	p, err := rollout.MakeJob(rollout.Order{By: "ann", At: time.Now()}, [][]rollout.Member{members})
	d := f.desires()
	if version != "" {
		p, err = rollout.Make(rollout.Order{Target: f.to[version], Origin: d.Default, By: "ann", At: time.Now()}, candidates)
	}
	if err == nil {
		p, err = journal.In(f.s).Start(f.t.Context(), dev, d, p, f.me())
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// node ticks as an agent does, with the agent's own decision, until ctx ends. What it knows outlives etcd's data.
func (f *setBack) node(ctx context.Context, name string) {
	st, who := model.State{}, model.Identity{Node: name, Role: "web", Environment: "dev"}
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		d, err := control.In(f.s).Desire(ctx, who)
		if err != nil {
			continue
		}
		dec := model.Decide(model.Observed{Identity: who, State: st, Settings: model.DefaultSettings(), Machine: "m-" + name}, d, time.Now())
		report := model.Status{
			Node: name, Role: "web", Phase: model.Running, Cause: dec.Cause, Target: d.Wanted(), LastGood: st.LastGood, Enforcing: st.Enforcing, SeenAt: time.Now(),
			Settings: model.DefaultSettings(), Machine: "m-" + name, LastRun: "run", Ran: st.Ran,
		}
		a := d.Assignment()
		if a != nil {
			report.Assignment, report.Phase = a.ID, model.Idle
			st.Epoch = max(st.Epoch, d.Gate.Epoch)
		}
		turn := a != nil && a.Kind == model.AssignRun && (st.Ran == nil || st.Ran.ID != a.ID)
		f.mu.Lock()
		hangs := turn && f.hang
		f.mu.Unlock()
		if (dec.Action == model.Take || dec.Action == model.Enforce && turn) && !hangs {
			report.Phase = model.Running
			if control.In(f.s).Admit(ctx, who, d, report) != nil {
				continue
			}
			f.mu.Lock()
			f.applied = append(f.applied, name+" "+dec.Target.Release)
			if turn {
				f.turns = append(f.turns, name+" "+a.ID)
				st.Ran = &model.Answer{ID: a.ID}
			}
			f.mu.Unlock()
			st.LastGood, st.Enforcing, st.RanAt = dec.Target, dec.Target, time.Now()
			report.LastGood, report.Enforcing, report.Ran = dec.Target, dec.Target, st.Ran
		}
		report.Phase = model.Idle
		_ = control.In(f.s).Report(ctx, who, report, nil, nil) // while etcd is down, the next tick reports
	}
}

// ran returns how many runs applied a version.
func (f *setBack) ran(version string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, run := range f.applied {
		if strings.HasSuffix(run, " "+version) {
			n++
		}
	}
	return n
}

func (f *setBack) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied, f.turns, f.hang = nil, nil, false
}

func (f *setBack) until(what string, ready func() bool) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); !ready(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("never: %s\n%s", what, f.log)
		}
	}
}

func (f *setBack) ended(p rollout.Plan) {
	f.t.Helper()
	f.until(p.ID+" completes", func() bool {
		c, err := journal.In(f.s).Get(f.t.Context(), dev, p.ID, nil)
		return err == nil && c.Plan.Nonce == p.Nonce && c.State.Phase == rollout.Completed
	})
}

func newTasks(t *testing.T, f *setBack) *Tasks {
	t.Helper()
	k, err := NewTasks(TasksConfig{DB: f.s, Now: time.Now, Log: f.log.Logger(), Past: f.past})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// serve runs the background tasks of one serve until stop is called.
func (f *setBack) serve() (stop func()) {
	f.t.Helper()
	k := newTasks(f.t, f)
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() { k.Run(ctx); close(done) }()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	f.t.Cleanup(stop)
	return stop
}

// TestEtcdSetBackUnderServe: etcd gets the data of yesterday, while serve runs or before it starts again, with a rollout that completed since then and a
// job in progress. Serve notices it, pauses what it drives and names the command that continues. The next rollout and the next job are carried out as
// they were ordered, whatever nodes and serve remember.
func TestEtcdSetBackUnderServe(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("serve restarted %t", restarted), func(t *testing.T) {
			t.Parallel()
			f := beginSetBack(t)
			yesterday := f.server.Keep()
			stop := f.serve()
			f.ended(f.start("2.0.0"))
			f.mu.Lock()
			f.hang = true
			f.mu.Unlock()
			job := f.start("")
			f.until("the job orders", func() bool {
				c, err := journal.In(f.s).Get(t.Context(), dev, job.ID, nil)
				return err == nil && len(c.State.Slots) > 0
			})
			if restarted {
				stop()
			}
			f.server.SetBack(yesterday)
			f.forget()
			if restarted {
				stop = f.serve()
			}
			f.until("serve pauses dev", func() bool {
				rewound, err := targets.In(f.s).Rewound(t.Context(), dev)
				return err == nil && rewound
			})
			d := f.desires()
			if d.Gate.By != "pulley serve" || !strings.Contains(string(d.Gate.Why), "went back in time") || d.Gate.Epoch < 1_000_000 {
				t.Errorf("the gate is %+v", d.Gate)
			}
			f.until("the log names the command", func() bool { return strings.Contains(f.log.String(), "pulley recover -e dev") })
			f.promote("1.0.0") // the operator continues
			f.until("nodes return to what is desired", func() bool { return f.ran("1.0.0") == len(f.nodes) })
			f.ended(f.start("3.0.0"))
			next := f.start("")
			f.ended(next)
			f.mu.Lock()
			defer f.mu.Unlock()
			if slices.ContainsFunc(f.applied, func(run string) bool { return strings.HasSuffix(run, "2.0.0") }) || len(f.turns) != len(f.nodes) {
				t.Errorf("after etcd went back nodes ran %v, and %s had the turns %v", f.applied, next.ID, f.turns)
			}
			for _, turn := range f.turns {
				if _, order, _ := strings.Cut(turn, " "); !next.Ordered(order) {
					t.Errorf("%s is not of the new job", turn)
				}
			}
			stop()
			if b, err := os.ReadFile(f.past); err != nil || !strings.Contains(string(b), `"dev"`) {
				t.Errorf("serve remembers %s: %v", b, err)
			}
		})
	}
}

// TestLostAbortIsNoticed: etcd gets the data of before an abort, a hold or a skip, none of which raises the epoch, and the writes of nodes have overtaken the
// lost revisions when serve looks again. Nodes that did not begin must not take the release that the operator stopped.
func TestLostAbortIsNoticed(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(f *setBack, c *journal.Campaign) error{
		"abort": func(f *setBack, c *journal.Campaign) error {
			return journal.In(f.s).Set(f.t.Context(), dev, c, model.GateAborted, nil, f.me())
		},
		"hold": func(f *setBack, _ *journal.Campaign) error {
			return fleet.In(f.s).Hold(f.t.Context(), dev, etcd.Scope{Node: "web2"}, model.Hold{Mode: model.Freeze}, 0, 0)
		},
		"skip": func(f *setBack, c *journal.Campaign) error {
			next := c.State
			next.Moved = time.Now().UTC()
			return journal.In(f.s).Update(f.t.Context(), dev, c, next)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := beginSetBack(t)
			hold := model.Hold{Mode: model.Stop}
			if err := fleet.In(f.s).Hold(t.Context(), dev, etcd.Scope{Node: "web1"}, hold, 0, 0); err != nil {
				t.Fatal(err)
			}
			p := f.start("2.0.0")
			stop := f.serve()
			f.until("web1 is ordered", func() bool {
				c, err := journal.In(f.s).Get(t.Context(), dev, p.ID, nil)
				return err == nil && c.State.Slots["web1"].ID != ""
			})
			kept := f.server.Keep()
			f.until("the operator acts", func() bool {
				c, err := journal.In(f.s).Get(t.Context(), dev, p.ID, nil)
				return err == nil && act(f, c) == nil
			})
			if name != "skip" { // the file has it at once, also if serve is killed now
				moment, err := targets.In(f.s).Moment(t.Context(), []model.Ref{dev}, targets.Moment{})
				if err != nil {
					t.Fatal(err)
				}
				acted := time.Now()
				f.until("serve remembers it", func() bool {
					var p past
					return p.load(f.past) == nil && p.seen.Reached["dev"].SameActs(moment.Reached["dev"])
				})
				if took := time.Since(acted); took >= pastInterval/2 {
					t.Errorf("serve wrote the file after %s", took)
				}
			}
			lookTwice := newTasks(t, f)
			if err := errors.Join(lookTwice.lookBack(t.Context()), lookTwice.lookBack(t.Context())); err != nil {
				t.Fatal(err)
			}
			stop()
			var was past
			if err := errors.Join(lookTwice.past.remember(f.past, time.Now()), was.load(f.past)); err != nil {
				t.Fatal(err)
			}
			f.server.SetBack(kept)
			client := f.server.Client()
			f.until("etcd is farther than serve saw it", func() bool {
				resp, err := client.Put(t.Context(), "/pulley/v1/other", "x")
				return err == nil && resp.Header.Revision > was.seen.Revision
			})
			f.serve()
			f.until("serve pauses dev", func() bool {
				rewound, err := targets.In(f.s).Rewound(t.Context(), dev)
				return err == nil && rewound
			})
		})
	}
}

// TestRunningEtcdIsNotBehind: a serve that restarts, an environment that was made again and a history that was shortened are no etcd that went back.
func TestRunningEtcdIsNotBehind(t *testing.T) {
	t.Parallel()
	reach := func(epoch model.Epoch, change string) targets.Moment {
		return targets.Moment{Revision: 100, Reached: map[string]targets.Reach{"dev": {Epoch: epoch, Change: change}}}
	}
	if behind := reach(5, "a").Behind(targets.Moment{}); len(behind) > 0 {
		t.Errorf("the first look finds %v", behind)
	}
	later := reach(7, "b")
	if behind := later.Behind(reach(9, "x")); !slices.Equal(behind, []string{"dev"}) {
		t.Errorf("a lower epoch: %v", behind)
	}
	later.Revision = 99
	if behind := later.Behind(reach(7, "")); !slices.Equal(behind, []string{"dev"}) {
		t.Errorf("a lower revision: %v", behind)
	}
}
