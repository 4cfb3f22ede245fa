//go:build bench

package bench

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/facts"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/shellquote"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

const finds = 7 // runs of each command

// Measures an operator's commands on fleets of 1,000 and 10,000 nodes: seconds of the whole process, also those of a processor, bytes
// from etcd, and lines on a terminal. One node in a hundred failed.
func TestBenchFind(t *testing.T) {
	bin := builtPulley(t)
	printFindHead()
	for _, nodes := range []int{1000, 10000} {
		server := etcdtest.Start(t)
		registered(t, server, nodes)
		through := startTap(t, server.Endpoint)
		for _, args := range [][]string{
			{"status"}, {"status", "--summary"}, {"status", "--state", "failed"}, {"status", "--node", "compute500"}, {"nodes"}, {"nodes", "--node", "compute500"},
			{"explain", "compute500"}, {"runs", "compute500"}, {"hold", "--node", "compute500", "--why", "bench", "--replace"}, {"history"},
			{"__complete", "explain", "compute50"}, {"__complete", "hold", "--role", "c"}, {"__complete", "promote", "1"}, {"__complete", "status", "-e", "d"},
		} {
			printFind(t, bin, through, nodes, args)
		}
		printShells(t, bin, server.Endpoint, nodes)
	}
	fmt.Println()
}

// Measures the selection of nodes by their facts, as TestBenchFind. The facts are those of this machine, with other names and
// addresses. A quarter of the nodes is of another release of the system.
func TestBenchWhere(t *testing.T) {
	bin := builtPulley(t)
	printFindHead()
	for _, nodes := range []int{1000, 10000} {
		server := etcdtest.Start(t)
		registered(t, server, nodes)
		size := publishedFacts(t, server, nodes)
		through := startTap(t, server.Endpoint)
		for _, args := range [][]string{
			{"nodes"}, {"nodes", "--where", `os.release.major == "11"`}, {"nodes", "--where", `os.family == "Debian" && release != "1.5.0"`},
			{"status"}, {"status", "--where", `os.release.major == "11"`}, {"facts", "--group", "os.release.major"}, {"facts", "compute500"},
		} {
			printFind(t, bin, through, nodes, args)
		}
		fmt.Printf("\nfacts of one node: %d bytes in etcd\n\n", size)
	}
}

func builtPulley(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "pulley")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "../../cmd/pulley")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build: %v\n%s", err, out)
	}
	return bin
}

func printFindHead() {
	fmt.Printf("\ncommands on a fleet (whole process, plain text to etcd on loopback, %d runs, median); %s, %d CPUs\n\n", finds, runtime.Version(), runtime.NumCPU())
	fmt.Println("| nodes | command | seconds | CPU seconds | bytes from etcd | lines on a terminal |\n|---|---|---|---|---|---|")
}

// printFind measures a command and prints its row.
func printFind(t *testing.T, bin string, through *tap, nodes int, args []string) {
	t.Helper()
	command := func(terminal bool) (lines int, cpu time.Duration) {
		cmd := exec.Command(bin, args...)
		if terminal {
			cmd = exec.Command("script", "-qec", "stty cols 120 && "+shellquote.Join(append([]string{bin}, args...)), "/dev/null")
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
	fmt.Printf("| %d | `%s` | %.3f | %.3f | %.0f | %d |\n", nodes, strings.Join(args, " "), percentile(took, 50), percentile(used, 50), percentile(read, 50), lines)
}

// publishedFacts writes the facts of a fleet as its nodes would, and returns the size of one value.
func publishedFacts(t *testing.T, server *etcdtest.Server, count int) (size int) {
	t.Helper()
	out, err := exec.Command("facter", "--json", "--show-legacy").Output() // it exits with 1 if it may not read one of its sources
	var all map[string]json.RawMessage
	if unreadable := json.Unmarshal(out, &all); unreadable != nil {
		t.Fatalf("there is no Facter here: %v\napt-get install puppet-agent", errors.Join(err, unreadable))
	}
	st, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	at := time.Now()
	for n := range count {
		name, major := fmt.Sprintf("compute%d", n+1), 12
		if n%4 == 0 {
			major = 11
		}
		all["hostname"] = json.RawMessage(strconv.Quote(name))
		all["os"] = json.RawMessage(fmt.Sprintf(`{"architecture":"amd64","distro":{"codename":"x","id":"Debian"},"family":"Debian","name":"Debian","release":{"full":"%d.%d","major":"%[1]d","minor":"%d"}}`, major, n%9, n%9))
		all["dmi"] = json.RawMessage(fmt.Sprintf(`{"product":{"uuid":"%x","serial_number":"%x"}}`, sha256.Sum256([]byte(name)), sha256.Sum256([]byte(name+"s"))))
		p, err := facts.Source{Facts: all, Trusted: json.RawMessage(`{"authenticated":"local","certname":"` + name + `","extensions":{}}`)}.From(nil, at)
		if err != nil {
			t.Fatal(err)
		}
		packed, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := control.In(st).PublishFacts(t.Context(), model.Identity{Node: name, Environment: "dev"}, packed); err != nil {
			t.Fatal(err)
		}
		size = len(packed)
	}
	return size
}

// registered writes a fleet as its nodes would: a host entry and a status of each node.
func registered(t *testing.T, server *etcdtest.Server, count int) {
	t.Helper()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	ctx, now, target := t.Context(), time.Now().UTC(), model.Target{Release: "1.0.0", Tree: fmt.Sprintf("%064d", 1)}
	e := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "compute", Cardinality: count, Flavor: "bare-metal"}}}
	if err := specs.In(st).PutSpec(ctx, e, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/desired/default", fmt.Sprintf(`{"v":1,"release":"1.0.0","tree":"%064d"}`, 1)); err != nil {
		t.Fatal(err)
	}
	for n := range e.Nodes() {
		node, id := n.String(), fmt.Sprintf("%036d", n.Num)
		host := model.Host{Node: node, Role: "compute", Hostname: n.Hostname(), Addresses: []string{"10.0.0.1"}, MachineID: fmt.Sprintf("%032d", n.Num), At: now}
		said := model.Status{
			Node: node, Role: "compute", Phase: model.Idle, Action: "nothing", Cause: model.Cause{Reason: model.ReasonUpToDate}, Target: target, LastGood: target, Enforcing: target,
			SeenAt: now, RanAt: now, Outcome: model.Unchanged, LastRun: "20261120T222330Z-0001", Settings: model.DefaultSettings(), Version: "1.0.0", Machine: host.MachineID, Boot: id,
		}
		if n.Num%100 == 0 {
			said.Outcome, said.Attempt = model.Failed, &model.Attempt{Target: target, Started: 1, Finished: 1}
		}
		if err := fleet.In(st).Register(ctx, "dev", host); err != nil {
			t.Fatal(err)
		}
		if err := control.In(st).Report(ctx, model.Identity{Node: node, Environment: "dev"}, said, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
}
