package nodes

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
)

var dev = model.Ref{Environment: "dev"}

// crowd are nodes that answer requests, on a real etcd.
type crowd struct {
	t     *testing.T
	s     *etcd.DB
	runs  sync.WaitGroup
	mutex sync.Mutex
	now   int
	most  int
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	return crowdOn(t, etcdtest.Start(t), 30*time.Second)
}

func crowdOn(t *testing.T, server *etcdtest.Server, timeout time.Duration) *crowd {
	t.Helper()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &crowd{t: t, s: s}
}

// clock is a clock that a test moves.
type clock struct{ ahead, read atomic.Int64 }

func (c *clock) now() time.Time {
	c.read.Add(1)
	return time.Now().Add(time.Duration(c.ahead.Load()))
}
func (c *clock) jump(d time.Duration) { c.ahead.Add(int64(d)) }

// node registers a node that reports a status. A mute one answers nothing from then on.
func (c *crowd) node(name string, st model.Status, answer func(r model.Request) *model.Answer) {
	c.t.Helper()
	if err := fleet.In(c.s).Register(c.t.Context(), "dev", model.Host{Node: name, Role: "web", At: time.Now()}); err != nil {
		c.t.Fatal(err)
	}
	id := model.Identity{Node: name, Role: "web", Environment: "dev"}
	st.Node, st.Settings = name, model.DefaultSettings()
	if st.SeenAt.IsZero() {
		st.SeenAt = time.Now()
	}
	report := func(st model.Status) {
		for control.In(c.s).Report(c.t.Context(), id, st, nil, nil) != nil && c.t.Context().Err() == nil {
			runtime.Gosched()
		}
	}
	report(st)
	if answer == nil {
		return
	}
	c.runs.Go(func() {
		for ; c.t.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
			d, err := control.In(c.s).Desire(c.t.Context(), id)
			if err != nil || d.Host == nil || d.Host.Request == nil || st.Answer != nil && st.Answer.ID == d.Host.Request.ID {
				continue
			}
			c.mutex.Lock()
			c.now++
			c.most = max(c.most, c.now)
			c.mutex.Unlock()
			<-time.After(20 * time.Millisecond) // a run takes its time
			c.mutex.Lock()
			c.now--
			c.mutex.Unlock()
			st.Answer, st.Outcome, st.SeenAt = answer(*d.Host.Request), model.Changed, time.Now()
			report(st)
		}
	})
}

func good(r model.Request) *model.Answer { return &model.Answer{ID: r.ID} }

// An operator who runs a thousand nodes must get each one counted, and never more than allowed at a time.
func TestManyRunsCountEachNode(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("web%d", i+1))
		c.node(names[i], model.Status{}, good)
	}
	c.node("bad", model.Status{}, func(r model.Request) *model.Answer {
		return &model.Answer{ID: r.ID, Problem: model.Problem{Code: model.RestartsFailed, Number: 1}}
	})
	c.node("stopped", model.Status{}, func(r model.Request) *model.Answer {
		return &model.Answer{ID: r.ID, Cause: &model.Cause{Reason: model.ReasonStopped}}
	})
	c.node("old", model.Status{SeenAt: time.Now().Add(-time.Hour)}, good)
	c.node("busy", model.Status{Phase: model.Running}, nil)
	c.node("mute", model.Status{}, nil)
	if err := fleet.In(c.s).Register(t.Context(), "dev", model.Host{Node: "new", Role: "web"}); err != nil {
		t.Fatal(err)
	}
	order := append([]string{"busy", "mute", "old", "new", "bad", "stopped", "gone"}, names...)
	all, err := Many{Concurrency: 4, Deadline: 3 * time.Second, Kind: model.RequestRun, By: "ann", Now: time.Now, Poll: 5 * time.Millisecond}.Run(t.Context(), c.s, dev, order)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, one := range all {
		got[string(one.End)] = append(got[string(one.End)], one.Node)
	}
	for _, list := range got {
		slices.Sort(list)
	}
	slices.Sort(names)
	want := map[string]string{"ran": fmt.Sprint(names), "failed": "[bad]", "refused": "[stopped]", "busy": "[busy]", "silent": "[gone mute new old]"}
	for end, nodes := range want {
		if fmt.Sprint(got[end]) != nodes {
			t.Errorf("%s: %v, want %s", end, got[end], nodes)
		}
	}
	if len(got) != len(want) || c.most > 4 || c.most < 2 {
		t.Errorf("%v; %d at a time", got, c.most)
	}
	hosts, err := fleet.In(c.s).Hosts(t.Context(), dev)
	if err != nil || hosts["mute"].Request != nil || hosts["busy"].Request != nil || hosts["old"].Request != nil {
		t.Errorf("a node would run when nobody expects it: %+v, %v", hosts, err)
	}
}

// Ctrl-C ends the loop, and must name the nodes that will still run.
func TestInterruptedRunsNameWhatIsPending(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	for _, name := range []string{"web1", "web2", "web3"} {
		c.node(name, model.Status{}, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for hosts := map[string]model.Host(nil); hosts["web2"].Request == nil && t.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
			hosts, _ = fleet.In(c.s).Hosts(t.Context(), dev)
		}
		cancel()
	}()
	all, err := Many{Concurrency: 2, Deadline: time.Hour, Kind: model.RequestNoop, By: "ann", Now: time.Now, Poll: 5 * time.Millisecond}.Run(ctx, c.s, dev, []string{"web1", "web2", "web3"})
	if got := fmt.Sprint(all); err != nil || strings.Count(got, "pending") != 2 || strings.Contains(got, "web3") {
		t.Errorf("%s: %v", got, err)
	}
	hosts, err := fleet.In(c.s).Hosts(t.Context(), dev)
	if err != nil || hosts["web1"].Request == nil || hosts["web1"].Request.Do != model.RequestNoop || hosts["web3"].Request != nil {
		t.Errorf("%+v: %v", hosts, err)
	}
}

// until polls until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// requested returns the request of a node; "" for none.
func (c *crowd) requested(node string) string {
	hosts, err := fleet.In(c.s).Hosts(c.t.Context(), dev)
	if err != nil || hosts[node].Request == nil {
		return ""
	}
	return hosts[node].Request.ID
}

// A restart of etcd in the night must not end the loop: the nodes that had no request would never run.
func TestManyRunsSurviveRestartOfEtcd(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := crowdOn(t, server, 2*time.Second)
	const deadline = time.Minute
	var now clock
	names := []string{"web1", "web2", "web3"}
	var back atomic.Bool
	for _, name := range names {
		c.node(name, model.Status{}, func(r model.Request) *model.Answer {
			for !back.Load() && t.Context().Err() == nil {
				runtime.Gosched()
			}
			return good(r)
		})
	}
	away, result := make(chan error, 1), make(chan string, 1)
	go func() {
		all, err := Many{
			Concurrency: 2, Deadline: deadline, Kind: model.RequestRun, Now: now.now, Poll: 5 * time.Millisecond,
			Away: func(err error) { now.jump(9 * deadline / 10); away <- err },
		}.Run(t.Context(), c.s, dev, names)
		result <- fmt.Sprint(all, err)
	}()
	until(t, "two requests", func() bool { return c.requested("web1") != "" && c.requested("web2") != "" })
	now.jump(deadline / 2)
	read := now.read.Load()
	until(t, "two looks", func() bool { return now.read.Load() > read+10 })
	server.Down()
	if err := <-away; err == nil {
		t.Error("etcd was away without an error")
	}
	server.Up()
	back.Store(true)
	if got := <-result; strings.Count(got, " ran ") != 3 {
		t.Errorf("%s", got)
	}
}

// An etcd that stays away ends the loop, with the nodes that may still run.
func TestManyRunsEndWithoutEtcd(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := crowdOn(t, server, time.Second)
	c.node("web1", model.Status{}, nil)
	var now clock
	go func() {
		until(t, "a request", func() bool { return c.requested("web1") != "" })
		server.Down()
	}()
	all, err := Many{
		Concurrency: 1, Deadline: time.Minute, Kind: model.RequestRun, Now: now.now, Poll: 5 * time.Millisecond,
		Away: func(error) { now.jump(time.Minute) },
	}.Run(t.Context(), c.s, dev, []string{"web1", "web2"})
	if !errors.Is(err, model.ErrUnreachable) || len(all) != 1 || all[0].Node != "web1" || all[0].End != Pending {
		t.Errorf("%+v: %v", all, err)
	}
}

// A write without an answer may have reached etcd: it is repeated as the same request, and the node runs once.
func TestUnansweredRequestIsRepeated(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.node("web1", model.Status{}, nil)
	r := NewRun("ann", "", time.Now())
	m := Many{Deadline: time.Hour, Now: time.Now, busy: map[string]time.Time{}, asked: map[string]asked{}}
	fail, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.request(fail, c.s, dev, "web1", r, nil); err == nil || len(m.asked) != 1 {
		t.Fatalf("%+v: %v", m.asked, err)
	}
	for range 2 {
		if err := m.look(t.Context(), c.s, dev, nil); err != nil || c.requested("web1") != r.ID || m.asked["web1"].at.IsZero() {
			t.Fatalf("%+v: %v", m.asked, err)
		}
	}
}

// A node in a long run keeps its place: otherwise more nodes than allowed run at a time.
func TestRunningNodesKeepTheirPlace(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	const deadline = time.Minute
	var now clock
	for _, name := range []string{"long", "stuck", "web1"} {
		c.node(name, model.Status{}, nil)
	}
	report := func(name string, st model.Status) {
		st.Node, st.Settings, st.SeenAt = name, model.DefaultSettings(), time.Now()
		if err := control.In(c.s).Report(t.Context(), model.Identity{Node: name, Role: "web", Environment: "dev"}, st, nil, nil); err != nil {
			t.Error(err)
		}
	}
	var ended sync.Map
	done := make(chan error, 1)
	go func() {
		_, err := Many{
			Concurrency: 2, Deadline: deadline, Kind: model.RequestRun, Now: now.now, Poll: 5 * time.Millisecond,
			Tell: func(one RanNode) { ended.Store(one.Node, one.End) },
		}.Run(t.Context(), c.s, dev, []string{"long", "stuck", "web1"})
		done <- err
	}()
	end := func(name string) any { v, _ := ended.Load(name); return v }
	until(t, "requests", func() bool { return c.requested("long") != "" && c.requested("stuck") != "" })
	answer := &model.Answer{ID: c.requested("long")}
	report("long", model.Status{Phase: model.Running})
	report("stuck", model.Status{Phase: model.Running})
	now.jump(3 * deadline / 2)
	report("long", model.Status{Answer: answer})
	until(t, "the end of a long run", func() bool { return end("long") != nil })
	if end("long") != Ran || end("stuck") != nil {
		t.Errorf("long: %v, stuck: %v", end("long"), end("stuck"))
	}
	until(t, "the next node", func() bool { return c.requested("web1") != "" })
	report("web1", model.Status{Answer: &model.Answer{ID: c.requested("web1")}})
	now.jump(deadline)
	if err := <-done; err != nil || end("web1") != Ran || end("stuck") != Unfinished || c.requested("stuck") != "" {
		t.Errorf("web1: %v, stuck: %v with request %q: %v", end("web1"), end("stuck"), c.requested("stuck"), err)
	}
}
