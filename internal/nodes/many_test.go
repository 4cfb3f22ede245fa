package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

var dev = environments.Ref{Environment: "dev"}

// crowd are nodes that answer requests, on a real etcd.
type crowd struct {
	t     *testing.T
	s     *store.Store
	runs  sync.WaitGroup
	mutex sync.Mutex
	now   int
	most  int
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	s, err := store.Open(store.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &crowd{t: t, s: s}
}

// node registers a node that reports a status. A mute one answers nothing from then on.
func (c *crowd) node(name string, st agent.Status, answer func(r agent.Request) *agent.Answer) {
	c.t.Helper()
	if err := c.s.Fleet.Register(c.t.Context(), "dev", agent.Host{Node: name, Role: "web", At: time.Now()}); err != nil {
		c.t.Fatal(err)
	}
	id := agent.Identity{Node: name, Role: "web", Environment: "dev"}
	st.Node, st.Settings = name, agent.DefaultSettings()
	if st.SeenAt.IsZero() {
		st.SeenAt = time.Now()
	}
	report := func(st agent.Status) { _ = c.s.Node.Report(c.t.Context(), id, st, nil, nil) }
	report(st)
	if answer == nil {
		return
	}
	c.runs.Go(func() {
		for ; c.t.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
			d, err := c.s.Node.Desire(c.t.Context(), id)
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
			st.Answer, st.Outcome, st.SeenAt = answer(*d.Host.Request), agent.Changed, time.Now()
			report(st)
		}
	})
}

func good(r agent.Request) *agent.Answer { return &agent.Answer{ID: r.ID} }

// An operator who runs a thousand nodes must get each one counted, and never more than allowed at a time.
func TestManyRunsCountEachNode(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("web%d", i+1))
		c.node(names[i], agent.Status{}, good)
	}
	c.node("bad", agent.Status{}, func(r agent.Request) *agent.Answer {
		return &agent.Answer{ID: r.ID, Problem: agent.Problem{Code: agent.RestartsFailed, Number: 1}}
	})
	c.node("stopped", agent.Status{}, func(r agent.Request) *agent.Answer {
		return &agent.Answer{ID: r.ID, Cause: &agent.Cause{Reason: agent.ReasonStopped}}
	})
	c.node("old", agent.Status{SeenAt: time.Now().Add(-time.Hour)}, good)
	c.node("busy", agent.Status{Phase: agent.Running}, nil)
	c.node("mute", agent.Status{}, nil)
	if err := c.s.Fleet.Register(t.Context(), "dev", agent.Host{Node: "new", Role: "web"}); err != nil {
		t.Fatal(err)
	}
	order := append([]string{"busy", "mute", "old", "new", "bad", "stopped", "gone"}, names...)
	all, err := Many{Concurrency: 4, Deadline: 3 * time.Second, Kind: agent.RequestRun, By: "ann", Now: time.Now, Poll: 5 * time.Millisecond}.Run(t.Context(), c.s, dev, order)
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
	hosts, err := c.s.Fleet.Hosts(t.Context(), dev)
	if err != nil || hosts["mute"].Request != nil || hosts["busy"].Request != nil || hosts["old"].Request != nil {
		t.Errorf("a node would run when nobody expects it: %+v, %v", hosts, err)
	}
}

// Ctrl-C ends the loop, and must name the nodes that will still run.
func TestInterruptedRunsNameWhatIsPending(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	for _, name := range []string{"web1", "web2", "web3"} {
		c.node(name, agent.Status{}, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for hosts := map[string]agent.Host(nil); hosts["web2"].Request == nil && t.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
			hosts, _ = c.s.Fleet.Hosts(t.Context(), dev)
		}
		cancel()
	}()
	all, err := Many{Concurrency: 2, Deadline: time.Hour, Kind: agent.RequestNoop, By: "ann", Now: time.Now, Poll: 5 * time.Millisecond}.Run(ctx, c.s, dev, []string{"web1", "web2", "web3"})
	if got := fmt.Sprint(all); err != nil || strings.Count(got, "pending") != 2 || strings.Contains(got, "web3") {
		t.Errorf("%s: %v", got, err)
	}
	hosts, err := c.s.Fleet.Hosts(t.Context(), dev)
	if err != nil || hosts["web1"].Request == nil || hosts["web1"].Request.Do != agent.RequestNoop || hosts["web3"].Request != nil {
		t.Errorf("%+v: %v", hosts, err)
	}
}
