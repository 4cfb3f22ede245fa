package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/desired/control"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	controlling "pulley/internal/serve/control"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/puppettest"
)

// counted is a fleet whose requests to etcd are counted.
type counted struct {
	t      *testing.T
	server *etcdtest.Server
	dir    string // has a folder for each node, and one for its Puppet
	repo   string // of release 1.0.0, which dev is on
}

func newCounted(t *testing.T) *counted {
	c := &counted{t: t, server: etcdtest.Start(t), dir: t.TempDir()}
	c.repo = filepath.Join(c.dir, "repo")
	c.command("pulley", "init", c.repo)
	if err := os.RemoveAll(filepath.Join(c.repo, "validate.d")); err != nil {
		t.Fatal(err)
	}
	c.command("pulley", "publish", c.repo, "--version", "1.0.0", "--no-puppet")
	c.command("pulley", "env", "apply", filepath.Join(c.repo, "environments/dev.yaml"))
	c.command("pulley", "promote", "1.0.0")
	return c
}

func (c *counted) command(name string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+c.server.Endpoint, "PULLEY_ENVIRONMENT=dev")
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (c *counted) root(node string) string { return filepath.Join(c.dir, node) }

// node adds a node with the scripted Puppet, and runs it once.
func (c *counted) node(name string) {
	c.t.Helper()
	if err := os.MkdirAll(c.root(name+"-puppet"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	puppettest.Write(c.t, c.root(name+"-puppet"))
	c.command("pulley", "nodes", "add", name)
	c.settings(name, "5m")
	c.command("pulley-agent", "run", "--root", c.root(name))
}

func (c *counted) settings(node, heartbeat string) {
	c.t.Helper()
	dir, puppet := filepath.Join(c.root(node), "etc/pulley"), c.root(node+"-puppet")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	text := fmt.Sprintf("node: %s\nheartbeat: %s\npuppet: {program: %s/puppet, state_dirs: [%[3]s/state]}\n", node, heartbeat, puppet)
	if err := os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// tick runs a tick that starts no Puppet, and returns its number of requests.
func (c *counted) tick(node string) int {
	c.t.Helper()
	before := c.server.Requests()
	if out := c.command("pulley-agent", "run", "--root", c.root(node)); !strings.Contains(out, "nothing to do") && !strings.Contains(out, "changes nothing for this node") {
		c.t.Fatalf("%s is not at rest: %s", node, out)
	}
	return c.server.Requests() - before
}

func (c *counted) starts(node string) int {
	c.t.Helper()
	return len(puppettest.Starts(c.t, c.root(node+"-puppet")))
}

// revision returns etcd's revision: each write raises it by one.
func (c *counted) revision() int64 {
	c.t.Helper()
	resp, err := c.server.Client().Get(c.t.Context(), "/pulley")
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.Header.Revision
}

// Each node of a fleet makes every request of an idle tick every five minutes.
func TestIdleTickIsOneRequestAndAHeartbeatOneMore(t *testing.T) {
	const node = "controller1"
	c := newCounted(t)
	c.node(node)
	c.tick(node) // reports the idle state
	for range 5 {
		if n := c.tick(node); n != 1 {
			t.Errorf("a tick with nothing to do makes %d requests, want 1", n)
		}
	}
	// So does a node that verifies a statement of its target in every tick.
	key := filepath.Join(t.TempDir(), "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.command("pulley", "key", "allow", key+".pub", "--name", "ann", "--environments", "dev", "--signers", filepath.Join(c.root(node), "etc/pulley/allowed_signers"))
	file := filepath.Join(c.repo, "environments/dev.yaml")
	spec, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(spec, "statement: 24h\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.command("pulley", "env", "apply", file)
	c.command("pulley", "sign", "--sign-key", key)
	c.tick(node) // remembers the statement
	for range 3 {
		if n := c.tick(node); n != 1 {
			t.Errorf("a tick that verifies a statement makes %d requests, want 1", n)
		}
	}
	if out := c.command("pulley", "explain", node); !strings.Contains(out, "statements of the targets required, newest of epoch 1") {
		t.Errorf("the node verifies no statement: %s", out)
	}
	c.settings(node, "1ns") // a heartbeat is due in every tick
	c.tick(node)
	if n := c.tick(node); n != 2 {
		t.Errorf("a tick with a heartbeat makes %d requests, want 2", n)
	}
	if n := c.starts(node); n != 1 {
		t.Errorf("Puppet was started %d times, want once", n)
	}
}

// A rollout may last for days. Neither the nodes that took its target nor those that wait for their turn may cost more meanwhile.
func TestIdleTickDuringARolloutIsOneRequest(t *testing.T) {
	c := newCounted(t)
	file := filepath.Join(c.repo, "environments/dev.yaml")
	if err := os.WriteFile(file, []byte("rollout: {promote: manual}\nroles:\n  controller: {cardinality: 2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.command("pulley", "env", "apply", file)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{c.server.Endpoint}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c.node("controller1")
	c.node("controller2")
	c.command("pulley", "publish", c.repo, "--version", "1.1.0", "--no-puppet")
	c.command("pulley", "rollout", "start", "1.1.0")
	serve := controlling.Controller{DB: st, Ref: model.Ref{Environment: "dev"}, Now: time.Now}
	advance := func(want rollout.WaitCode) {
		t.Helper()
		if wait, err := serve.Advance(t.Context()); err != nil || wait.Code != want {
			t.Fatalf("the rollout waits for %q: %v; want %q", wait.Code, err, want)
		}
	}
	advance(rollout.WaitNodes)
	c.command("pulley-agent", "run", "--root", c.root("controller1"))
	advance(rollout.WaitApproval)
	for _, node := range []string{"controller1", "controller2"} {
		c.tick(node) // reports the idle state
		for range 3 {
			if n := c.tick(node); n != 1 {
				t.Errorf("a tick of %s with nothing to do makes %d requests during a rollout, want 1", node, n)
			}
		}
	}
	if first, second := c.starts("controller1"), c.starts("controller2"); first != 2 || second != 1 {
		t.Errorf("Puppet was started %d and %d times, want 2 and 1", first, second)
	}
}

// Data changes are more frequent than releases. One of a role must not make a thousand other nodes compile a catalog, or
// read more than the change.
func TestDataOfOneRoleCostsOtherNodesFourRequests(t *testing.T) {
	const registered = 1000
	c := newCounted(t)
	file := filepath.Join(c.repo, "environments/dev.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "roles:\n  controller: {cardinality: 1}\n  compute: {cardinality: %d}\n", registered), 0o600); err != nil {
		t.Fatal(err)
	}
	c.command("pulley", "env", "apply", file)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{c.server.Endpoint}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for n := range registered {
		h := model.Host{Node: fmt.Sprint("compute", n+1), Role: "compute", Hostname: fmt.Sprint("compute", n+1), Addresses: []string{"10.0.0.1"}, MachineID: fmt.Sprintf("%032d", n), At: time.Now()}
		if err := fleet.In(st).Register(t.Context(), "dev", h); err != nil {
			t.Fatal(err)
		}
	}
	others := []string{"compute1", "compute500", "compute1000"}
	for _, node := range append([]string{"controller1"}, others...) {
		c.node(node)
		c.tick(node)
	}
	if hosts, _, _, err := control.In(st).Hosts(t.Context(), model.Identity{Environment: "dev"}); err != nil || len(hosts) != registered+1 {
		t.Fatalf("%d nodes are registered: %v", len(hosts), err)
	}
	for change := range 3 {
		c.command("pulley", "data", "set", "profile::base::message", fmt.Sprint("change ", change), "--role", "controller")
		for _, node := range others {
			before := c.revision()
			requests := c.tick(node)
			writes := int(c.revision() - before)
			t.Logf("%s, change %d: %d reads, %d writes", node, change, requests-writes, writes)
			if writes > 1 || requests-writes > 3 {
				t.Errorf("%s makes %d reads and %d writes for the data of another role; want at most 3 and 1", node, requests-writes, writes)
			}
			if n := c.tick(node); n != 1 {
				t.Errorf("the next tick of %s makes %d requests, want 1", node, n)
			}
		}
	}
	for _, node := range others {
		if n := c.starts(node); n != 1 {
			t.Errorf("Puppet was started %d times on %s, want once", n, node)
		}
	}
	if out := c.command("pulley-agent", "run", "--root", c.root("controller1")); !strings.Contains(out, "changed on 1.0.0 with data 3") || c.starts("controller1") != 2 {
		t.Errorf("the node of the role has run %d times: %s", c.starts("controller1"), out)
	}
}

// A daemon sees its turn in a job at once, and costs nothing while it waits. An order to wait wakes nobody: all nodes of a job receive it.
func TestDaemonSeesItsTurnAndIsIdleOtherwise(t *testing.T) {
	c := newCounted(t)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{c.server.Endpoint}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	dev, who := model.Ref{Environment: "dev"}, model.Identity{Environment: "dev", Node: "controller1", Role: "controller"}
	c.node("controller1")
	c.tick("controller1")
	before := c.server.Requests()
	daemon := exec.Command(filepath.Join(bin, "pulley-agent"), "daemon", "--root", c.root("controller1"), "--schedule", "@every 1h")
	daemon.Env = append(os.Environ(), "PULLEY_ENDPOINTS="+c.server.Endpoint, "PULLEY_ENVIRONMENT=dev")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = daemon.Process.Kill(), daemon.Wait() })
	for end := time.Now().Add(time.Minute); c.server.Requests()-before < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon never watched")
		}
	}
	layers := [][]rollout.Member{{{Node: "controller1"}}}
	plan, err := rollout.MakeJob(rollout.Order{By: "ann", At: time.Now()}, layers)
	if err != nil {
		t.Fatal(err)
	}
	d, err := targets.In(st).Desires(t.Context(), dev)
	if err == nil {
		plan, err = journal.In(st).Start(t.Context(), dev, d, plan, targets.Author{By: "ann", At: time.Now()})
	}
	if err != nil {
		t.Fatal(err)
	}
	serve := controlling.Controller{DB: st, Ref: dev, Now: time.Now}
	ordered := time.Now()
	if wait, err := serve.Advance(t.Context()); err != nil || wait.Code != rollout.WaitNodes {
		t.Fatalf("the job waits for %+v: %v", wait, err)
	}
	ran := func() bool {
		status, _, err := control.In(st).Status(t.Context(), who)
		return err == nil && status.Ran != nil && plan.Ordered(status.Ran.ID)
	}
	for end := time.Now().Add(time.Minute); !ran(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the node did not see its turn, and its schedule has none for an hour")
		}
	}
	t.Logf("its run ended %v after the order", time.Since(ordered))
	if n := c.starts("controller1"); n != 2 {
		t.Errorf("Puppet was started %d times, want 2", n)
	}
	if _, err := serve.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	quiet, revision := c.server.Requests(), c.revision()
	key := "/pulley/v1/environments/dev/assigned/controller1"
	if _, err := c.server.Client().Put(t.Context(), key, `{"id":"j9.wait","kind":"wait","rollout":"j9","epoch":9,"target":{}}`); err != nil {
		t.Fatal(err)
	}
	if _, err := c.server.Client().Put(t.Context(), "/pulley/v1/environments/dev/gate-of-nobody", "x"); err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * time.Second) // an absence has no event to poll for
	if n := c.server.Requests() - quiet - 3; n != 0 || c.revision() != revision+2 {
		t.Errorf("an idle daemon makes %d requests in two seconds, want none", n)
	}
}
