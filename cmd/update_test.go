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

// Every node reads each published change, for example twenty times a day. Each additional request means ten thousand
// more at a time. The check of the signature must not need one.
func TestUpdateReadsContentOnce(t *testing.T) {
	server := etcdtest.Start(t)
	root, fake := t.TempDir(), t.TempDir()
	program := puppettest.Write(t, fake)
	key := filepath.Join(t.TempDir(), "alice")
	command := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PULLEY_ENDPOINTS="+server.Endpoint, "PULLEY_ENVIRONMENT=dev", "PULLEY_SIGN_KEY="+key)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(t.TempDir(), "repo")
	command(filepath.Join(bin, "pulley"), "init", repo)
	if err := os.RemoveAll(filepath.Join(repo, "validate.d")); err != nil {
		t.Fatal(err)
	}
	publish := func(version string) {
		t.Helper()
		write(filepath.Join(repo, "manifests/site.pp"), "node default { } # "+version+"\n")
		command(filepath.Join(bin, "pulley"), "publish", repo, "--version", version, "--no-puppet")
		command(filepath.Join(bin, "pulley"), "promote", version)
	}
	command(filepath.Join(bin, "pulley"), "env", "apply", filepath.Join(repo, "environments/dev.yaml"))
	publish("1.0.0")
	command(filepath.Join(bin, "pulley"), "nodes", "add", "controller1")
	write(filepath.Join(root, "etc/pulley/agent.yaml"), fmt.Sprintf("node: controller1\npuppet: {program: %s, state_dirs: [%s]}\n", program, filepath.Join(fake, "state")))
	tick := func(says string) int {
		t.Helper()
		before := server.Requests()
		if out := command(filepath.Join(bin, "pulley-agent"), "run", "--root", root); !strings.Contains(out, says) {
			t.Fatalf("the node did not take it: %s", out)
		}
		return server.Requests() - before
	}
	tick("on 1.0.0")
	// The five requests: the desired state, the record with its delta, the admission, the check that etcd still answers,
	// and the report. A node without signers also asks whether its environment demands signatures.
	update := func(version string, want int) {
		t.Helper()
		publish(version)
		if n := tick("on " + version); n != want {
			t.Errorf("the update to %s makes %d requests, want %d", version, n, want)
		}
	}
	update("1.0.1", 6)
	write(filepath.Join(root, "etc/pulley/allowed_signers"), "alice@* "+string(public))
	update("1.0.2", 5)
}
