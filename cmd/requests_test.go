package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/puppettest"
)

// Each node of a fleet makes every request of an idle tick every five minutes.
func TestIdleTickIsOneRequestAndAHeartbeatOneMore(t *testing.T) {
	server := etcdtest.Start(t)
	root, fake := t.TempDir(), t.TempDir()
	program := puppettest.Write(t, fake)
	command := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+server.Endpoint, "PULLEY_ENVIRONMENT=dev")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	settings := func(heartbeat string) {
		t.Helper()
		dir := filepath.Join(root, "etc/pulley")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("node: controller1\nheartbeat: %s\npuppet: {program: %s, state_dirs: [%s]}\n", heartbeat, program, filepath.Join(fake, "state"))
		if err := os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	repo := filepath.Join(t.TempDir(), "repo")
	command("pulley", "init", repo)
	if err := os.RemoveAll(filepath.Join(repo, "validate.d")); err != nil {
		t.Fatal(err)
	}
	command("pulley", "publish", repo, "--version", "1.0.0", "--no-puppet")
	command("pulley", "env", "apply", filepath.Join(repo, "environments/dev.yaml"))
	command("pulley", "promote", "1.0.0")
	command("pulley", "nodes", "add", "controller1")
	settings("5m")
	command("pulley-agent", "run", "--root", root)

	tick := func() int {
		t.Helper()
		before := server.Requests()
		if out := command("pulley-agent", "run", "--root", root); !strings.Contains(out, "nothing to do") {
			t.Fatalf("the node is not at rest: %s", out)
		}
		return server.Requests() - before
	}
	tick() // reports the idle state
	for range 5 {
		if n := tick(); n != 1 {
			t.Errorf("a tick with nothing to do makes %d requests, want 1", n)
		}
	}
	// So does a node that verifies a statement of its target in every tick.
	key := filepath.Join(t.TempDir(), "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	command("pulley", "key", "allow", key+".pub", "--name", "ann", "--environments", "dev", "--signers", filepath.Join(root, "etc/pulley/allowed_signers"))
	file := filepath.Join(repo, "environments/dev.yaml")
	spec, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(spec, "statement: 24h\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	command("pulley", "env", "apply", file)
	command("pulley", "sign", "--sign-key", key)
	tick() // remembers the statement
	for range 3 {
		if n := tick(); n != 1 {
			t.Errorf("a tick that verifies a statement makes %d requests, want 1", n)
		}
	}
	if out := command("pulley", "explain", "controller1"); !strings.Contains(out, "statements of the targets required, newest of epoch 1") {
		t.Errorf("the node verifies no statement: %s", out)
	}
	settings("1ns") // a heartbeat is due in every tick
	tick()
	if n := tick(); n != 2 {
		t.Errorf("a tick with a heartbeat makes %d requests, want 2", n)
	}
	if starts := puppettest.Starts(t, fake); len(starts) != 1 {
		t.Errorf("Puppet was started %d times, want once", len(starts))
	}
}
