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
	"time"
)

// What an operator writes into a file becomes machines that are converged, more of them, fewer, and other ones; and who was
// there before is left alone.
func TestAnEnvironmentBecomesLocalMachines(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := newSite(f)
	f.program("retire.d/10-tell", "#!/bin/sh\nexec curl -fsS \"$TELL/$PULLEY_NODE\"\n", s.tellURL())
	f.pulley("publish", f.repo, "--version", "1.1.0", "--no-validate")
	f.pulley("promote", "1.1.0")

	s.apply(2)
	s.is("controller1", "controller2", "compute1")
	s.apply(3)
	s.is("controller1", "controller2", "controller3", "compute1")
	first := s.ids()

	// Fewer: nobody agreed, so nothing happens; then the highest numbers go, after their release's own hooks.
	if out, err := s.run("3\n", "apply", s.file(1)); err == nil {
		t.Fatalf("the wrong number was taken for an agreement:\n%s", out)
	}
	s.is("controller1", "controller2", "controller3", "compute1")
	out, err := s.run("2\n", "apply", s.file(1))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.is("controller1", "compute1")
	if told := s.told(); !slices.Equal(told, []string{"controller2", "controller3"}) {
		t.Errorf("retire hooks ran on %v", told)
	}

	// And back: new machines of the same names, beside one that stayed the same.
	s.apply(2)
	s.is("controller1", "controller2", "compute1")
	again := s.ids()
	if again["controller1"] != first["controller1"] || again["controller2"] == first["controller2"] {
		t.Errorf("machines were %v and are %v", first, again)
	}
	if out, err := s.run("", "plan", s.file(2), "--detailed-exitcodes"); err != nil {
		t.Errorf("a plan afterwards has something to do: %v\n%s", err, out)
	}
	out, err = s.run("", "destroy", s.file(2), "--yes")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(s.folder, "*", "*", "[a-z]*")); len(left) > 0 {
		t.Errorf("machines are left: %v", left)
	}
}

// site is an environment whose machines are local ones.
type site struct {
	*fleet
	folder string
	hooks  *httptest.Server
	mu     sync.Mutex
	heard  []string
}

func newSite(f *fleet) *site {
	s := &site{fleet: f, folder: filepath.Join(f.dir, "machines")}
	s.hooks = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heard = append(s.heard, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	f.t.Cleanup(s.hooks.Close)
	f.t.Cleanup(func() { _, _ = s.run("", "destroy", s.file(2), "--yes", "--no-drain", "--max-retire", "100") }) // of a test that failed
	return s
}

func (s *site) tellURL() string { return s.hooks.URL }

// told names the nodes whose hooks ran, each once, in the order of their names.
func (s *site) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(s.heard)))
}

// program adds a program to the control repository, with TELL said in it.
func (f *fleet) program(path, text, tell string) {
	f.t.Helper()
	path = filepath.Join(f.repo, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	text = strings.Replace(text, "$TELL", tell, 1)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

// file writes the environment with so many controllers.
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
    rollout: {timeout: 10m}
`, s.folder, filepath.Join(bin, "pulley-agent"), controllers)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *site) apply(controllers int) {
	s.t.Helper()
	if out, err := s.run("", "apply", s.file(controllers), "--yes"); err != nil {
		s.t.Fatalf("with %d controllers: %v\n%s", controllers, err, out)
	}
}

// run runs a verb of env with this as its standard input.
func (s *site) run(input string, args ...string) (string, error) {
	// Not the test's own context: it is over when what is left is cleaned up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pulley"), append([]string{"env"}, args...)...)
	cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+s.endpoint)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// is checks that these nodes are all that there are, converged.
func (s *site) is(nodes ...string) {
	s.t.Helper()
	var fleet struct {
		Whole bool
		Nodes []status
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
	if !slices.Equal(have, nodes) || !fleet.Whole {
		s.t.Errorf("there are %v, whole is %v; want %v", have, fleet.Whole, nodes)
	}
}

// ids are the provider's own names of the machines.
func (s *site) ids() map[string]string {
	s.t.Helper()
	var machines []struct{ Name, ID string }
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
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
