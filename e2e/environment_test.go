//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// `env apply` must create the machines of an environment file, converge them, and retire the highest numbers. Other
// machines stay. TestAppliesConvergeWhateverHappens and the scenarios env_apply_* of cmd have more changes and answers.
func TestEnvironmentBecomesLocalMachines(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := newSite(f)
	f.hook(s.hooks.URL)
	f.pulley("publish", f.repo, "--version", "1.1.0", "--no-validate")
	f.pulley("promote", "1.1.0")

	s.apply(2)
	s.is("controller1", "controller2", "compute1")
	first := s.ids()
	if out := s.pulley("provider", "enter", s.file(2), "controller1", "--", "hostname"); out != "controller1\n" {
		t.Errorf("the entered machine is %q", out)
	}
	s.entersLikeAShell("controller1")

	// The machine with the highest number is retired, after the hooks of its release.
	s.apply(1)
	s.is("controller1", "compute1")
	if retired := s.retired(); !slices.Equal(retired, []string{"controller2"}) {
		t.Errorf("retire hooks ran on %v", retired)
	}
	if again := s.ids(); again["controller1"] != first["controller1"] {
		t.Errorf("machines were %v and are %v", first, again)
	}
	if out, err := s.run("plan", s.file(1), "--detailed-exitcodes"); err != nil {
		t.Errorf("the plan after an apply is not empty: %v\n%s", err, out)
	}
	out, err := s.run("destroy", s.file(1), "--yes")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(s.folder, "*", "*", "[a-z]*")); len(left) > 0 {
		t.Errorf("machines are left: %v", left)
	}
}

// entersLikeAShell checks input and exit codes of a command in a machine, and a machine that does not exist.
func (s *site) entersLikeAShell(node string) {
	s.t.Helper()
	enter := func(input string, args ...string) (code int, out string) {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "pulley"), append([]string{"provider", "enter", s.file(2)}, args...)...)
		cmd.Env, cmd.Stdin = append(os.Environ(), "PULLEY_ENDPOINTS="+s.endpoint), strings.NewReader(input)
		b, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(b)
	}
	if code, out := enter("id -un; hostname; exit 7\n", node); code != 7 || out != "root\n"+node+"\n" {
		s.t.Errorf("a shell with input exits with %d\n%s", code, out)
	}
	if code, out := enter("", node, "--", "sh", "-c", "exit 4"); code != 4 || out != "" {
		s.t.Errorf("a command exits with %d\n%s", code, out)
	}
	if code, out := enter("", "controller9", "--", "true"); code != 1 || !strings.Contains(out, "cannot enter the machine of controller9: there is no machine controller9") {
		s.t.Errorf("a machine that does not exist: %d\n%s", code, out)
	}
}

// site is an environment with local machines.
type site struct {
	*testFleet
	folder string
	hooks  *httptest.Server
	mu     sync.Mutex
	heard  []string // request paths of retire hooks
}

func newSite(f *testFleet) *site {
	s := &site{testFleet: f, folder: filepath.Join(f.dir, "machines")}
	s.hooks = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heard = append(s.heard, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	f.t.Cleanup(s.hooks.Close)
	// Removes the machines of a failed test.
	f.t.Cleanup(func() { _, _ = s.run("destroy", s.file(2), "--yes", "--no-drain", "--max-retire", "100") })
	return s
}

// retired returns the sorted names of the nodes whose hooks ran.
func (s *site) retired() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(s.heard)))
}

// hook adds a retire hook that sends its node's name to a URL.
func (f *testFleet) hook(url string) {
	f.t.Helper()
	path := filepath.Join(f.repo, "retire.d", "10-report")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	text := "#!/bin/sh\nexec curl -fsS \"" + url + "/$PULLEY_NODE\"\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

// file writes the environment file with that many controllers.
func (s *site) file(controllers int) string {
	s.t.Helper()
	path := filepath.Join(s.repo, "environments", "dev.yaml")
	text := fmt.Sprintf(`provider: {driver: local, folder: %s, agent: %s, interval: "@every 2s"}
roles:
  controller:
    cardinality: %d
  compute:
    cardinality: 1
    after: [controller]
    replace: {timeout: 10m}
`, s.folder, filepath.Join(bin, "pulley-agent"), controllers)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *site) apply(controllers int) {
	s.t.Helper()
	if out, err := s.run("apply", s.file(controllers), "--yes"); err != nil {
		s.t.Fatalf("with %d controllers: %v\n%s", controllers, err, out)
	}
}

// run runs a command of `pulley env`.
func (s *site) run(args ...string) (string, error) {
	// The test's own context ends before its cleanup runs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pulley"), append([]string{"env"}, args...)...)
	cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+s.endpoint)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// is checks that the environment has exactly these nodes, converged.
func (s *site) is(nodes ...string) {
	s.t.Helper()
	var fleet struct {
		Healthy bool
		Nodes   []status
	}
	if err := json.Unmarshal([]byte(s.pulley("status", "-o", "json")), &fleet); err != nil {
		s.t.Fatal(err)
	}
	var have []string
	for _, n := range fleet.Nodes {
		if n.State != "converged" {
			s.t.Errorf("%s is %s: %s", n.Node, n.State, n.Reason)
		}
		have = append(have, n.Node)
	}
	slices.Sort(have)
	slices.Sort(nodes)
	if !slices.Equal(have, nodes) || !fleet.Healthy {
		s.t.Errorf("the nodes are %v, healthy: %v; want %v", have, fleet.Healthy, nodes)
	}
}

// ids returns the provider's IDs of the machines.
func (s *site) ids() map[string]string {
	s.t.Helper()
	var machines []struct{ Name, ID string }
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pulley"), "provider", "list", filepath.Join(s.repo, "environments", "dev.yaml"), "-o", "json")
	cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+s.endpoint)
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &machines)
	}
	if err != nil {
		s.t.Fatalf("cannot list machines: %v\n%s", err, out)
	}
	ids := map[string]string{}
	for _, m := range machines {
		ids[m.Name] = m.ID
	}
	return ids
}
