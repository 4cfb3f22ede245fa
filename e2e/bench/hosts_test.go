//go:build bench

package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

const (
	consumers    = 500
	consumerTick = 10 * time.Second
	settleTime   = 20 * time.Second // the default of a fleet is a minute: a third of the load
	arrivals     = 1000             // a minute
	arrivalRound = 30 * time.Second
	arrivalPairs = 2
)

// Measures etcd's reads while nodes arrive that many others see, in turn with no arrivals, and counts the runs that the
// arrivals cause. The nodes share one processor, and etcd with the readers has the other, as in benchFleet.
func TestBenchArrivals(t *testing.T) {
	if runtime.NumCPU() > 1 {
		pin(t, etcdCPU)
		defer pin(t, etcdCPU, nodesCPU)
	}
	m := startMember(t)
	st := m.open(t)
	dir := t.TempDir()
	m.publishSeen(t, dir)
	w := m.startConsumers(t, dir)
	reads := startReaders(t, m)
	var quietly, during, ratios figures
	arrived, perRound := 0, int(arrivalRound*arrivals/time.Minute)
	for range arrivalPairs {
		reads.take()
		<-time.After(arrivalRound)
		before, begun := reads.take(), time.Now()
		for i := range perRound {
			<-time.After(time.Until(begun.Add(time.Duration(i) * arrivalRound / time.Duration(perRound))))
			arrived++
			name := fmt.Sprint("controller", arrived)
			h := model.Host{Node: name, Role: "controller", Hostname: name, Addresses: []string{fmt.Sprintf("10.0.%d.%d", arrived>>8, arrived&255)}, MachineID: fmt.Sprintf("%032d", arrived), At: time.Now()}
			if err := fleet.In(st).Register(t.Context(), "dev", h); err != nil {
				t.Fatal(err)
			}
		}
		then := reads.take()
		quietly, during = append(quietly, before...), append(during, then...)
		ratios = append(ratios, then.percentile(99)/before.percentile(99))
		<-time.After(settleTime + consumerTick) // the runs for the last ones
	}
	runs, lists, missed := w.end()
	// A round of 30 s has one settle time, and each node runs once more for the last arrivals.
	limit := arrivalPairs * (int(arrivalRound/settleTime) + 1)
	fmt.Printf("\n%d nodes see the nodes that arrive, %d a minute, in %d rounds of %s, in turn with none; settle time %s, a tick each %s; %s, %d CPUs\n\n",
		consumers, arrivals, arrivalPairs, arrivalRound, settleTime, consumerTick, runtime.Version(), runtime.NumCPU())
	fmt.Println("| the read of a tick, by others | reads | median, ms | p99, ms |\n|---|---|---|---|")
	fmt.Printf("| no arrivals | %d | %.2f | %.2f |\n", len(quietly), 1e3*quietly.median(), 1e3*quietly.percentile(99))
	fmt.Printf("| arrivals | %d | %.2f | %.2f |\n", len(during), 1e3*during.median(), 1e3*during.percentile(99))
	fmt.Printf("| ratio of the p99, round by round | | | %s, wanted: < 2 |\n\n", ratios.spread(2))
	fmt.Printf("%d arrivals; runs of a consumer: %d to %d, and reads of the host list: %d to %d; wanted: at most %d; %d ticks did not reach etcd\n\n",
		arrived, runs[0], runs[len(runs)-1], lists[0], lists[len(lists)-1], limit, missed)
}

func (m *benchEtcd) open(t *testing.T) *etcd.DB {
	t.Helper()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{m.endpoint}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// publishSeen publishes and promotes a release in which balancers see controllers, and registers the balancers.
func (m *benchEtcd) publishSeen(t *testing.T, dir string) {
	t.Helper()
	repo, bin := filepath.Join(dir, "repo"), builtPulley(t)
	file := filepath.Join(repo, "environments/dev.yaml")
	text := fmt.Sprintf("hosts: {settle: %s}\nroles:\n  controller: {cardinality: %d}\n  balancer: {cardinality: %d, sees: [controller]}\n", settleTime, 10*arrivals, consumers)
	pulley := func(args ...string) {
		t.Helper()
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+m.endpoint, "PULLEY_ENVIRONMENT=dev")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("pulley %v: %v\n%s", args, err, out)
		}
	}
	pulley("init", repo)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	pulley("publish", repo, "--version", "1.0.0", "--no-validate")
	pulley("env", "apply", file)
	pulley("promote", "1.0.0")
	st := m.open(t)
	for n := range consumers {
		name := fmt.Sprint("balancer", n+1)
		if err := fleet.In(st).Register(t.Context(), "dev", model.Host{Node: name, Role: "balancer", Hostname: name, MachineID: fmt.Sprintf("%032d", n+1), At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
}

// consuming is the process of the consumers.
type consuming struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func (m *benchEtcd) startConsumers(t *testing.T, dir string) *consuming {
	t.Helper()
	program := filepath.Join(dir, "consumers")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./consumers")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build: %v\n%s", err, out)
	}
	args := []string{"nice", "-n", "10", program, m.endpoint, filepath.Join(dir, "nodes"), "balancer", strconv.Itoa(consumers), strconv.Itoa(int(consumerTick.Seconds()))}
	if runtime.NumCPU() > 1 {
		args = append([]string{"taskset", "--cpu-list", strconv.Itoa(nodesCPU)}, args...)
	}
	c := &consuming{t: t, cmd: exec.CommandContext(t.Context(), args[0], args[1:]...)}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if c.lines = bufio.NewScanner(out); !c.lines.Scan() || c.lines.Text() != "ready" {
		t.Fatalf("the consumers do not start: %q", c.lines.Text())
	}
	return c
}

// end ends the consumers, and returns the runs and the reads of the host list of each, in order, and the ticks that did not
// reach etcd.
func (c *consuming) end() (runs, lists []int, missed int) {
	c.t.Helper()
	if err := c.in.Close(); err != nil {
		c.t.Fatal(err)
	}
	for c.lines.Scan() {
		var run, list, failed int
		if _, err := fmt.Sscan(c.lines.Text(), &run, &list, &failed); err != nil {
			c.t.Fatal(err)
		}
		runs, lists, missed = append(runs, run), append(lists, list), missed+failed
	}
	if err := c.cmd.Wait(); err != nil || len(runs) != consumers {
		c.t.Fatalf("%d consumers of %d have ended: %v", len(runs), consumers, err)
	}
	slices.Sort(runs)
	slices.Sort(lists)
	return runs, lists, missed
}

// readers are nodes that read as in their ticks, 50 times a second each.
type readers struct {
	mu  sync.Mutex
	all figures
}

func startReaders(t *testing.T, m *benchEtcd) *readers {
	t.Helper()
	r := &readers{}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	for range bystanders {
		st := m.open(t)
		group.Go(func() {
			ticker := time.NewTicker(20 * time.Millisecond)
			defer ticker.Stop()
			for ctx.Err() == nil {
				begun := time.Now()
				_, err := control.In(st).Desire(ctx, model.Identity{Node: "balancer1", Role: "balancer", Environment: "dev"})
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Errorf("a node cannot read: %v", err)
				}
				r.mu.Lock()
				r.all = append(r.all, time.Since(begun).Seconds())
				r.mu.Unlock()
				<-ticker.C
			}
		})
	}
	return r
}

// take returns the durations since the last call.
func (r *readers) take() figures {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}
