//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines/drivers/local"
)

// bin is the folder of the released commands.
var bin string

const (
	patience = 15 * time.Minute // limits each command, on a busy machine
	waiting  = 5 * time.Minute  // limits each wait for a tick, which cron starts each minute
)

func TestMain(m *testing.M) {
	local.MaybeInit()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pulley-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config")); err != nil { // not the contexts of this machine's user
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := flag.Set("test.parallel", "4"); err != nil { // scenarios that wait leave their processor to others
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	bin = dir
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "../cmd/pulley", "../cmd/pulley-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the commands: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// fleet is a `pulley serve`, a control repository, and machines.
type testFleet struct {
	t        *testing.T
	endpoint string
	dir      string // scratch folder
	repo     string
	listen   string
	env      []string // of operators, in addition
	serve    *exec.Cmd
	machines map[string]*local.Machine
}

const agentPath = "/usr/local/bin/pulley-agent"

// newFleet starts a server with the environment dev and the published release 1.0.0, and no machines.
func newFleet(t *testing.T) *testFleet {
	t.Helper()
	if err := local.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := &testFleet{t: t, dir: t.TempDir(), listen: "127.0.0.1:0", machines: map[string]*local.Machine{}}
	f.repo = filepath.Join(f.dir, "repo")
	f.up()
	t.Cleanup(f.down)
	f.pulley("init", f.repo)
	f.pulley("publish", f.repo, "--version", "1.0.0", "--no-validate") // the demo's tests validate the starter
	f.pulley("env", "apply", filepath.Join(f.repo, "environments/dev.yaml"))
	return f
}

// up starts `pulley serve`. A second start uses the address and the data of the first.
func (f *testFleet) up() {
	f.t.Helper()
	f.serve = exec.Command(filepath.Join(bin, "pulley"), "serve", "--data-dir", filepath.Join(f.dir, "data"), "--listen", f.listen)
	f.serve.Stderr = os.Stderr
	out, err := f.serve.StdoutPipe()
	if err == nil {
		err = f.serve.Start()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if endpoint, ok := strings.CutPrefix(lines.Text(), "export PULLEY_ENDPOINTS="); ok {
			f.endpoint = endpoint
			f.listen = strings.TrimPrefix(endpoint, "http://")
			return
		}
	}
	f.t.Fatal("pulley serve ended before it printed its endpoints")
}

// down stops the server and waits for its end.
func (f *testFleet) down() {
	f.t.Helper()
	if f.serve == nil {
		return
	}
	_ = f.serve.Process.Signal(os.Interrupt)
	if err := f.serve.Wait(); err != nil {
		f.t.Errorf("pulley serve did not end cleanly: %v", err)
	}
	f.serve = nil
}

// pulley runs an operator's command, which must succeed, and returns its output.
func (f *testFleet) pulley(args ...string) string {
	f.t.Helper()
	out, err := f.try(args...)
	if err != nil {
		f.t.Fatalf("pulley %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (f *testFleet) try(args ...string) (string, error) { return f.tryWith("", args...) }

// tryWith runs an operator's command with this text on its standard input.
func (f *testFleet) tryWith(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pulley"), args...)
	cmd.Env = append(append(os.Environ(), "PULLEY_ENDPOINTS="+f.endpoint, "PULLEY_ENVIRONMENT=dev"), f.env...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// machine starts a machine and bootstraps it as a node.
func (f *testFleet) machine(node string, binds ...local.Bind) {
	f.t.Helper()
	f.start(node, binds...)
	f.agent(node, 0, "bootstrap", "--node", node, "-e", "dev", "--endpoints", f.endpoint)
}

// start starts a machine that has the agent but is not a node yet.
func (f *testFleet) start(node string, binds ...local.Bind) {
	f.t.Helper()
	m, err := local.Start(f.t.Context(), local.Config{
		Hostname: strings.ReplaceAll(node, "_", "-"),
		Empty:    []string{"/etc/cron.d", "/var/spool/cron/crontabs", "/etc/puppet", "/var/lib/puppet", "/var/cache/puppet", "/etc/pulley", "/var/lib/pulley"},
		Binds:    append(binds, local.Bind{From: filepath.Join(bin, "pulley-agent"), To: agentPath}),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = m.Close() })
	f.machines[node] = m
}

// agent runs the agent in a node's machine and checks its exit code. It returns the agent's output.
func (f *testFleet) agent(node string, want int, args ...string) string {
	f.t.Helper()
	return f.in(node, want, agentPath, args...)
}

// in runs a program in a node's machine.
func (f *testFleet) in(node string, want int, name string, args ...string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	out, err := f.machines[node].Command(ctx, name, args...).CombinedOutput()
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		f.t.Fatal(err)
	}
	if code != want {
		f.t.Fatalf("%s: %s %s ended with %d, want %d\n%s", node, name, strings.Join(args, " "), code, want, out)
	}
	return string(out)
}

func (f *testFleet) write(node, path, content string) {
	f.t.Helper()
	if err := f.machines[node].WriteFile(path, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *testFleet) read(node, path string) string {
	f.t.Helper()
	b, err := f.machines[node].ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// settings adds lines to a node's agent.yaml.
func (f *testFleet) settings(node string, lines ...string) {
	f.t.Helper()
	f.write(node, "/etc/pulley/agent.yaml", f.read(node, "/etc/pulley/agent.yaml")+strings.Join(lines, "\n")+"\n")
}

// publish replaces the control repository's site.pp and publishes it as a release.
func (f *testFleet) publish(version, site string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.repo, "manifests", "site.pp"), []byte(site), 0o644); err != nil {
		f.t.Fatal(err)
	}
	// The checks of the starter fit only its own manifests.
	if err := os.RemoveAll(filepath.Join(f.repo, "validate.d")); err != nil {
		f.t.Fatal(err)
	}
	f.pulley("publish", f.repo, "--version", version, "--no-validate")
}

// status is one node of `pulley status -o json`.
type status struct {
	Node, State, Release, Desired, Outcome, Reason string
	Data                                           int
	LastRun                                        string `json:"last_run"`
}

func (f *testFleet) status(node string) status {
	f.t.Helper()
	var all struct{ Nodes []status }
	if err := json.Unmarshal([]byte(f.pulley("status", "-o", "json")), &all); err != nil {
		f.t.Fatal(err)
	}
	for _, n := range all.Nodes {
		if n.Node == node {
			return n
		}
	}
	f.t.Fatalf("no node %s in %+v", node, all)
	return status{}
}

// expect checks a node's state, release and outcome.
func (f *testFleet) expect(node, state, release, outcome string) {
	f.t.Helper()
	s := f.status(node)
	if s.State != state || s.Release != release || s.Outcome != outcome {
		f.t.Fatalf("%s is %s on %s, %s (%s); want %s on %s, %s", node, s.State, s.Release, s.Outcome, s.Reason, state, release, outcome)
	}
}

// until polls for a condition. The text is the present state.
func (f *testFleet) until(what string, ok func() (bool, string)) {
	f.t.Helper()
	for end := time.Now().Add(waiting); ; time.Sleep(500 * time.Millisecond) {
		is, now := ok()
		if is {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("waited %s for %s: %s", waiting, what, now)
		}
	}
}

// contains fails the test unless text has the part.
func contains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%q is not in:\n%s", part, text)
	}
}
