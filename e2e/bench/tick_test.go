//go:build bench

// Package bench contains the benchmarks. It prints figures and must never fail because of one. docs/performance.md
// contains the latest table.
package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/puppettest"
)

func TestMain(m *testing.M) {
	puppettest.RunAsPuppet()
	os.Exit(m.Run())
}

const ticks = 200

// Measures the idle tick that ten thousand nodes run every five minutes, against a minimal Go program that reads the
// same keys.
func TestBenchIdleTick(t *testing.T) {
	w := newWorld(t)
	w.converge()
	agent := []string{w.bin("pulley-agent"), "run", "--root", w.dir("node")}
	bare := []string{w.bin("bare"), w.server.Endpoint, w.pki.CA, w.pki.ClientCert, w.pki.ClientKey}
	for _, key := range []string{
		"hosts/nodes/controller1", "gate", "desired/default", "desired/roles/controller", "desired/nodes/controller1",
		"assigned/controller1", "holds/nodes/controller1", "holds/roles/controller", "holds/all", "job", "statement", "agent", "hosts/head",
	} {
		bare = append(bare, "/pulley/v1/environments/dev/"+key)
	}
	samples := w.meter(agent, bare)
	fmt.Printf("\na tick with nothing to do (whole process, mTLS to etcd on loopback), %d runs each, in turn; %s, %d CPUs\n\n", ticks, runtime.Version(), runtime.NumCPU())
	fmt.Println("|                     | wall median | wall p90 | CPU median | peak memory |")
	fmt.Println("|---|---|---|---|---|")
	for i, name := range []string{"pulley-agent run", "bare Go client"} {
		fmt.Printf("| %s | %.1f ms | %.1f ms | %.1f ms | %.1f MiB |\n", name, 1e3*samples.wall(i, 50), 1e3*samples.wall(i, 90), 1e3*samples.cpu(i, 50), samples.peak(i))
	}
	fmt.Printf("| ratio, pair by pair | %.2f | | | wanted: at most 1.5, and 20 MiB |\n\n", samples.ratio())
}

// world is an etcd with TLS, the built commands, and a node.
type world struct {
	t      *testing.T
	root   string
	pki    etcdtest.PKI
	server *etcdtest.Server
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, root: t.TempDir(), pki: etcdtest.NewPKI(t)}
	w.server = etcdtest.StartTLS(t, w.pki)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", w.root+"/", "../../cmd/pulley", "../../cmd/pulley-agent", "./bare", "./meter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build: %v\n%s", err, out)
	}
	return w
}

func (w *world) bin(name string) string { return filepath.Join(w.root, name) }
func (w *world) dir(name string) string { return filepath.Join(w.root, "d", name) }

// converge publishes the starter, promotes it and runs one node, with the scripted Puppet, until a tick has no work.
func (w *world) converge() {
	w.t.Helper()
	fake := w.dir("fake")
	w.mkdir(fake)
	program := puppettest.Write(w.t, fake)
	repo := w.dir("repo")
	w.run("pulley", "init", repo)
	if err := os.RemoveAll(filepath.Join(repo, "validate.d")); err != nil {
		w.t.Fatal(err)
	}
	w.run("pulley", "publish", repo, "--version", "1.0.0", "--no-puppet")
	w.run("pulley", "env", "apply", filepath.Join(repo, "environments/dev.yaml"))
	w.run("pulley", "promote", "1.0.0", "-e", "dev")
	w.run("pulley", "nodes", "add", "controller1", "-e", "dev")
	w.mkdir(w.dir("node/etc/pulley"))
	config := fmt.Sprintf("node: controller1\nenvironment: dev\nendpoints: [%s]\ncacert: %s\ncert: %s\nkey: %s\nenforce_interval: 24h\nheartbeat: 24h\npuppet:\n  program: %s\n  state_dirs: [%s]\n",
		w.server.Endpoint, w.pki.CA, w.pki.ClientCert, w.pki.ClientKey, program, w.dir("fake/var/state"))
	if err := os.WriteFile(w.dir("node/etc/pulley/agent.yaml"), []byte(config), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.run("pulley-agent", "run", "--root", w.dir("node"))
	if out := w.run("pulley-agent", "run", "--root", w.dir("node")); !strings.Contains(out, "nothing to do") {
		w.t.Fatalf("the node did not come to rest: %s", out)
	}
}

func (w *world) mkdir(dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) run(name string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command(w.bin(name), args...)
	cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+w.server.Endpoint, "PULLEY_CACERT="+w.pki.CA, "PULLEY_CERT="+w.pki.ClientCert, "PULLEY_KEY="+w.pki.ClientKey)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

type sample struct {
	Command   int
	Wall, CPU float64
	PeakKiB   int64 `json:"peak_kib"`
}

type samples [2][]sample

func (w *world) meter(a, b []string) samples {
	w.t.Helper()
	work, err := json.Marshal(map[string]any{"runs": ticks, "commands": [][]string{a, b}})
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(w.bin("meter"))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(work), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatal(err)
	}
	var all samples
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var s sample
		if err := dec.Decode(&s); err != nil {
			w.t.Fatal(err)
		}
		all[s.Command] = append(all[s.Command], s)
	}
	return all
}

func percentile(values []float64, p int) float64 {
	slices.Sort(values)
	return values[min(len(values)-1, len(values)*p/100)]
}

func (s samples) wall(i, p int) float64 {
	var v []float64
	for _, x := range s[i] {
		v = append(v, x.Wall)
	}
	return percentile(v, p)
}

func (s samples) cpu(i, p int) float64 {
	var v []float64
	for _, x := range s[i] {
		v = append(v, x.CPU)
	}
	return percentile(v, p)
}

// peak returns the maximum peak of all runs, in MiB.
func (s samples) peak(i int) float64 {
	var most int64
	for _, x := range s[i] {
		most = max(most, x.PeakKiB)
	}
	return float64(most) / 1024
}

// ratio returns the median of the ratios of neighbouring runs: a disturbance affects both.
func (s samples) ratio() float64 {
	var v []float64
	for i := range s[0] {
		v = append(v, s[0][i].Wall/s[1][i].Wall)
	}
	return percentile(v, 50)
}
