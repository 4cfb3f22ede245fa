//go:build bench

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

const finds = 7 // runs of each command

// Measures an operator's commands on fleets of 1,000 and 10,000 nodes: seconds of the whole process, also those of a processor, bytes
// from etcd, and lines on a terminal. One node in a hundred failed.
func TestBenchFind(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "pulley")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "../../cmd/pulley")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build: %v\n%s", err, out)
	}
	fmt.Printf("\ncommands on a fleet (whole process, plain text to etcd on loopback, %d runs, median); %s, %d CPUs\n\n", finds, runtime.Version(), runtime.NumCPU())
	fmt.Println("| nodes | command | seconds | CPU seconds | bytes from etcd | lines on a terminal |\n|---|---|---|---|---|---|")
	for _, nodes := range []int{1000, 10000} {
		server := etcdtest.Start(t)
		registered(t, server, nodes)
		through := startTap(t, server.Endpoint)
		for _, args := range []string{
			"status", "status --summary", "status --state failed", "status --node compute500", "nodes", "nodes --node compute500",
			"explain compute500", "runs compute500", "hold --node compute500 --why bench --replace", "history",
			"__complete explain compute50", "__complete hold --role c", "__complete promote 1", "__complete status -e d",
		} {
			command := func(terminal bool) (lines int, cpu time.Duration) {
				line := "stty cols 120 && " + bin + " " + args
				cmd := exec.Command(bin, strings.Fields(args)...)
				if terminal {
					cmd = exec.Command("script", "-qec", line, "/dev/null")
				}
				cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+through.endpoint, "PULLEY_ENVIRONMENT=dev", "HOME="+t.TempDir())
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%.2000s", args, err, out)
				}
				return strings.Count(string(out), "\n"), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			}
			var took, used, read []float64
			for range finds {
				before, start := through.settledBytes(), time.Now()
				_, cpu := command(false)
				used = append(used, cpu.Seconds())
				took = append(took, time.Since(start).Seconds())
				read = append(read, float64(through.settledBytes()-before))
			}
			lines, _ := command(true)
			fmt.Printf("| %d | `%s` | %.3f | %.3f | %.0f | %d |\n", nodes, args, percentile(took, 50), percentile(used, 50), percentile(read, 50), lines)
		}
		printShells(t, bin, server.Endpoint, nodes)
	}
	fmt.Println()
}

// registered writes a fleet as its nodes would: a host entry and a status of each node.
func registered(t *testing.T, server *etcdtest.Server, count int) {
	t.Helper()
	st, err := store.Open(store.Config{Endpoints: []string{server.Endpoint}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	ctx, now, target := t.Context(), time.Now().UTC(), agent.Target{Release: "1.0.0", Tree: fmt.Sprintf("%064d", 1)}
	e := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "compute", Cardinality: count, Flavor: "bare-metal"}}}
	if err := st.Environments.PutSpec(ctx, e, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/desired/default", fmt.Sprintf(`{"v":1,"release":"1.0.0","tree":"%064d"}`, 1)); err != nil {
		t.Fatal(err)
	}
	for n := range e.Nodes() {
		node, id := n.String(), fmt.Sprintf("%036d", n.Num)
		host := agent.Host{Node: node, Role: "compute", Hostname: n.Hostname(), Addresses: []string{"10.0.0.1"}, MachineID: fmt.Sprintf("%032d", n.Num), At: now}
		said := agent.Status{
			Node: node, Role: "compute", Phase: agent.Idle, Action: "nothing", Cause: agent.Cause{Reason: agent.ReasonUpToDate}, Target: target, LastGood: target, Enforcing: target,
			SeenAt: now, RanAt: now, Outcome: agent.Unchanged, LastRun: "20261120T222330Z-0001", Settings: agent.DefaultSettings(), Version: "1.0.0", Machine: host.MachineID, Boot: id,
		}
		if n.Num%100 == 0 {
			said.Outcome, said.Attempt = agent.Failed, &agent.Attempt{Target: target, Started: 1, Finished: 1}
		}
		if err := st.Fleet.Register(ctx, "dev", host); err != nil {
			t.Fatal(err)
		}
		if err := st.Node.Report(ctx, agent.Identity{Node: node, Environment: "dev"}, said, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
}
