//go:build e2e

package cmd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pulley/agent"
	"pulley/internal/model"
	"pulley/internal/release/content"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/puppettest"
)

// A crash is the death of the real agent by SIGKILL at one place, during one kind of release.
type crash struct{ place, role, node string }

// The roles are kinds of releases, each with the site.pp that its nodes apply when they die.
var crashRoles = []struct{ name, second string }{
	{"good", "# fake: file $MACHINE/%{certname} two\n"},
	{"between", "# fake: file $MACHINE/%{certname} two\n# fake: fail Service[nginx] no such unit\n"},
	{"untouched", "# fake: compile-error Syntax error\n"},
}

// crashes returns the crash points at which the agent dies: before and after it writes its state or runs Puppet, and between the two
// renames of an installation. TestTickResumesAfterAnyCrash and TestCrashAnywhere try every one, without the whole program. Where
// PULLEY_TEST_CRASHES is "all", they are those of each step and of an installation, with every kind of release.
func crashes() []crash {
	var places []string
	for _, step := range agent.Steps(model.Take) {
		places = append(places, "before:"+step, "after:"+step)
	}
	places = append(places, content.CrashPoints...)
	chosen := map[string][]string{
		"good":      {"before:admit", "after:admit", "before:apply", "after:apply", "after:commit", "before:report", "install:between-renames", "install:after-swap"},
		"between":   {"after:apply", "before:report"},
		"untouched": {"after:apply", "before:report"},
	}
	every := os.Getenv("PULLEY_TEST_CRASHES") == "all"
	var all []crash
	for _, role := range crashRoles {
		n := 1 // the first node of a role survives
		for _, place := range places {
			if !every && !slices.Contains(chosen[role.name], place) || role.name != "good" && strings.HasSuffix(place, "-swap") {
				continue // a failed release is never activated
			}
			n++
			all = append(all, crash{place, role.name, fmt.Sprintf("%s%d", role.name, n)})
		}
	}
	return all
}

// TestCrashes proves that the next runs complete a tick after a power cut, an OOM kill or a reboot, with a good release, one that
// fails in the middle and one that does not compile. The node must end like one that did not die.
func TestCrashes(t *testing.T) {
	t.Parallel()
	f := newCrashFleet(t)
	all := crashes()
	f.prepare(all)
	t.Run("at", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.role+"/"+c.place, func(t *testing.T) {
				t.Parallel()
				f.die(t, c)
				// A crashed run is repeated immediately. If it fails, the next run must wait.
				f.tick(t, c.node)
				f.tick(t, c.node)
				if got, want := f.end(t, c.node), f.end(t, c.role+"1"); got != want {
					t.Errorf("on the machine:\n%s\nwithout the crash:\n%s", got, want)
				}
			})
		}
	})
	seen := f.status()
	for _, c := range all {
		if got, want := seen[c.node], seen[c.role+"1"]; got != want || got == "" {
			t.Errorf("%s at %s: in etcd\n%s\nwithout the crash\n%s", c.role, c.place, got, want)
		}
	}
}

// crashFleet is one environment with a node for each crash.
type crashFleet struct {
	t    *testing.T
	dir  string
	env  []string
	etcd *etcdtest.Server
}

func newCrashFleet(t *testing.T) *crashFleet {
	dir := t.TempDir()
	server := etcdtest.Start(t)
	for _, d := range []string{"fake", "machine"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	puppettest.Write(t, filepath.Join(dir, "fake"))
	return &crashFleet{t, dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
		"PULLEY_ENDPOINTS="+server.Endpoint, "PULLEY_ENVIRONMENT=crash", "SUDO_USER=ann"), server}
}

// prepare puts every node on release 1.0.0, and then promotes each role's second release.
func (f *crashFleet) prepare(all []crash) {
	count := map[string]int{}
	for _, c := range all {
		count[c.role]++
	}
	spec := "roles:\n"
	for _, role := range crashRoles {
		spec += fmt.Sprintf("  %s: {cardinality: %d, flavor: bare-metal}\n", role.name, count[role.name]+1)
	}
	f.write("crash.yaml", spec)
	f.must("pulley", "env", "apply", "crash.yaml")
	f.must("pulley", "init", "R")
	if err := os.RemoveAll(filepath.Join(f.dir, "R", "validate.d")); err != nil {
		f.t.Fatal(err)
	}
	site := func(version, directives string) {
		f.write("R/manifests/site.pp", "node default { }\n"+strings.ReplaceAll(directives, "$MACHINE", filepath.Join(f.dir, "machine")))
		f.must("pulley", "publish", "R", "--version", version, "--no-puppet")
	}
	site("1.0.0", "# fake: file $MACHINE/%{certname} one\n")
	f.must("pulley", "promote", "1.0.0", "--foreign")
	for _, role := range crashRoles {
		for n := range count[role.name] + 1 {
			f.join(fmt.Sprintf("%s%d", role.name, n+1))
		}
	}
	for i, role := range crashRoles {
		version := fmt.Sprintf("2.%d.0", i)
		site(version, role.second)
		f.must("pulley", "promote", version, "--role", role.name)
		f.tick(f.t, role.name+"1")
		f.tick(f.t, role.name+"1")
	}
}

func (f *crashFleet) join(node string) {
	f.write(node+"/etc/pulley/agent.yaml", fmt.Sprintf("node: %s\nenvironment: crash\npuppet:\n  program: %s\n  state_dirs: [%s]\n",
		node, filepath.Join(f.dir, "fake", "puppet"), filepath.Join(f.dir, "fake", "var")))
	f.must("pulley", "nodes", "add", node)
	f.must("pulley-agent", "run", "--root", node)
}

// die kills the agent of a node, and checks that it died at this place by SIGKILL.
func (f *crashFleet) die(t *testing.T, c crash) {
	t.Helper()
	if c.place == "install:previous-taken" {
		f.previous(c.node)
	}
	out, err := f.command([]string{"PULLEY_FAILPOINT=" + c.place}, "pulley-agent", "run", "--root", c.node)
	if !killed(err) {
		t.Fatalf("the agent was not killed at %s: %v\n%s", c.place, err, out)
	}
}

// killed reports whether a process ended by SIGKILL.
func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// previous gives a node an old, unneeded tree, as on a node with several earlier releases.
func (f *crashFleet) previous(node string) {
	state := filepath.Join(f.dir, node, "var", "lib", "pulley")
	manifests, err := filepath.Glob(filepath.Join(state, "releases", "*.manifest"))
	if err != nil || len(manifests) != 1 {
		f.t.Fatalf("releases of %s: %q, %v", node, manifests, err)
	}
	if err := os.Mkdir(filepath.Join(state, "previous"), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-al", strings.TrimSuffix(manifests[0], ".manifest"), manifests[0], filepath.Join(state, "previous")).CombinedOutput(); err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
}

// tick is an undisturbed run. Its release may be broken.
func (f *crashFleet) tick(t *testing.T, node string) {
	t.Helper()
	out, err := f.command(nil, "pulley-agent", "run", "--root", node)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// end returns the final state of a node's disk: its targets, the current tree, Puppet's output. No run may be open.
func (f *crashFleet) end(t *testing.T, node string) string {
	t.Helper()
	state := filepath.Join(f.dir, node, "var", "lib", "pulley")
	b, err := os.ReadFile(filepath.Join(state, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s model.State
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	current, err := os.Readlink(filepath.Join(state, "current"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(f.dir, "machine", node))
	if err != nil {
		t.Fatal(err)
	}
	var attempts []string
	for _, a := range s.Attempts {
		attempts = append(attempts, fmt.Sprintf("%s %s open=%t %s", a.Target, a.Kind, a.Open, a.Problem))
	}
	spooled, err := filepath.Glob(filepath.Join(state, "spool", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(fmt.Sprintf("last good %+v\nenforcing %+v\nopen run %q, %d unsent\noutcome %s\nattempts %q\ncurrent %s\nfile %s",
		s.LastGood, s.Enforcing, s.OpenRun, len(spooled), again(s.Outcome), attempts, current, file), node, "NODE")
}

// again normalises the outcome of a repeated run, which may find the changes of the interrupted one in place.
func again(o model.Outcome) model.Outcome {
	if o == model.Unchanged {
		return model.Changed
	}
	return o
}

// volatile matches irrelevant differences between runs: counts, times and numbers.
var volatile = regexp.MustCompile(`attempt \d+ at|; next one at \S+|20\d{6}T\d{6}Z-\d+|20\d\d-\d\d-\d\dT[0-9:.]+Z`)

// status returns each node's `pulley status -o json`, without times and ids.
func (f *crashFleet) status() map[string]string {
	f.t.Helper()
	out := f.must("pulley", "status", "-o", "json")
	var fleet struct {
		Nodes []map[string]any `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(out), &fleet); err != nil {
		f.t.Fatal(err)
	}
	seen := map[string]string{}
	for _, n := range fleet.Nodes {
		name := fmt.Sprint(n["node"])
		n["outcome"] = again(model.Outcome(fmt.Sprint(n["outcome"])))
		var fields []string
		for key, value := range n {
			fields = append(fields, fmt.Sprintf("%s: %s", key, volatile.ReplaceAllString(fmt.Sprint(value), "…")))
		}
		slices.Sort(fields)
		seen[name] = strings.ReplaceAll(strings.Join(fields, "\n"), name, "NODE")
	}
	return seen
}

func (f *crashFleet) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// command runs one of the two programs in the fleet's folder and returns its output.
func (f *crashFleet) command(env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, program), args...)
	cmd.Dir, cmd.Env = f.dir, append(slices.Clone(f.env), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (f *crashFleet) must(program string, args ...string) string {
	f.t.Helper()
	out, err := f.command(nil, program, args...)
	if err != nil {
		f.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}
