//go:build e2e

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pulley/internal/machines/drivers/local"
	"pulley/internal/testbed/etcdtest"
)

// The first run of a new machine sets up cron as the release and the live data say, and nothing else. The first tick then
// finds everything on disk. Otherwise a machine ticks on a schedule that nobody wrote, and each new one fetches twice.
func TestFirstBootUsesPromotedRelease(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.pulley("promote", "1.0.0")
	f.pulley("data", "set", "pulley::schedule", "17 */3 * * *", "--role", "controller")
	f.pulley("data", "set", "pulley::schedule", "whenever", "--role", "compute")
	f.start("controller1")
	said := f.agent("controller1", 0, "bootstrap", "--node", "controller1", "-e", "dev", "--endpoints", f.endpoint)
	contains(t, said, `msg="staged the promoted release"`)
	contains(t, f.read("controller1", "/etc/cron.d/pulley-agent"), "17 */3 * * * root ")
	f.in("controller1", 1, "test", "-e", "/etc/pulley-demo") // of the role
	if s := f.status("controller1"); s.State != "pending" {
		t.Errorf("before the first tick: %+v", s)
	}

	// A release that cannot set up the schedule does not stop a first boot.
	f.start("compute1")
	said = f.agent("compute1", 0, "bootstrap", "--node", "compute1", "-e", "dev", "--endpoints", f.endpoint)
	contains(t, said, "the schedule is the one of the plan until the first run")
	contains(t, said, "pulley::schedule whenever: cron would not start the agent")
	contains(t, f.read("compute1", "/etc/cron.d/pulley-agent"), "*/5 * * * * root ")

	onDisk := []string{"-c", `stat -c '%n %i %Y' /var/lib/pulley/releases/* /var/lib/pulley/data/*`}
	before := f.in("controller1", 0, "sh", onDisk...)
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.0.0 with data ")
	f.expect("controller1", "converged", "1.0.0", "changed")
	if after := f.in("controller1", 0, "sh", onDisk...); after != before {
		t.Errorf("the first tick fetched: on disk is\n%sbefore it was\n%s", after, before)
	}
	f.in("controller1", 0, "test", "-e", "/etc/pulley-demo/motd")
}

// A data centre that comes up boots a thousand machines at once. Each would fetch the release, its data and the host list
// twice: for the first run that sets up cron, and again in the first tick.
func TestFirstTickReadsOnlyWhatIsWanted(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t) // in this process, which counts its requests
	f := &testFleet{t: t, dir: t.TempDir(), endpoint: server.Endpoint, machines: map[string]*local.Machine{}}
	f.repo = filepath.Join(f.dir, "repo")
	f.signs()
	f.pulley("init", f.repo)
	f.spec("hosts: {settle: 1h}\nroles:\n  controller: {cardinality: 1, sees: [compute]}\n  compute: {cardinality: 3}\n")
	if err := os.WriteFile(filepath.Join(f.repo, "hieradata/roles/controller.yaml"), []byte("pulley::log_tag: \"%{lookup('pulley::hosts.compute.0.name')}\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.publish("1.0.0", "node default {\n  include pulley\n  notify { lookup('pulley::hosts')['compute'][0]['name']: }\n}\n")
	f.pulley("promote", "1.0.0")
	f.pulley("data", "set", "pulley::schedule", "17 */3 * * *", "--role", "controller")
	f.pulley("nodes", "add", "compute1")

	f.start("controller1")
	f.plan("controller1", "node: controller1", "endpoints: ["+f.endpoint+"]")
	contains(t, f.agent("controller1", 0, "bootstrap"), `msg="staged the promoted release" release=1.0.0 data=1`)
	schedule := f.read("controller1", "/etc/cron.d/pulley-agent")
	contains(t, schedule, "17 */3 * * * root ")
	contains(t, schedule, "logger -t compute1 ") // the first run has pulley::hosts

	revision := func() int {
		resp, err := server.Client().Get(t.Context(), "/pulley")
		if err != nil {
			t.Fatal(err)
		}
		return int(resp.Header.Revision)
	}
	tick := func(want string) (reads, writes int) {
		t.Helper()
		was, before := revision(), server.Requests()
		contains(t, f.agent("controller1", 0, "run"), want)
		requests := server.Requests() - before
		writes = revision() - was
		t.Logf("%s: %d reads, %d writes", want, requests-writes, writes)
		return requests - writes, writes
	}
	// It reads what is wanted, the record of the release for its signature, and once more what is wanted, to verify the new
	// target. It writes that it starts, and its report. No cron runs here, and the first boot reported that, with the node's facts.
	if reads, writes := tick("changed on 1.0.0 with data 1"); reads != 3 || writes != 2 {
		t.Errorf("the first tick makes %d reads and %d writes, want 3 and 2", reads, writes)
	}
	if reads, _ := tick("nothing to do"); reads != 1 {
		t.Errorf("the second tick makes %d reads, want 1", reads)
	}
}

// signs makes operators sign, with a key that the file signers allows.
func (f *testFleet) signs() {
	f.t.Helper()
	key := filepath.Join(f.dir, "key")
	f.pulley("key", "create", key, "--no-passphrase")
	f.pulley("key", "allow", key+".pub", "--name", "ann", "--environments", "dev", "--signers", filepath.Join(f.dir, "signers"))
	f.env = append(f.env, "PULLEY_SIGN_KEY="+key)
}

// spec replaces the environment file of dev, and applies it.
func (f *testFleet) spec(text string) {
	f.t.Helper()
	file := filepath.Join(f.repo, "environments/dev.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	f.pulley("env", "apply", file)
}

// plan writes the plan of a machine's first boot, with the allowed signers.
func (f *testFleet) plan(node string, lines ...string) {
	f.t.Helper()
	signers, err := os.ReadFile(filepath.Join(f.dir, "signers"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.write(node, "/root/signers", string(signers))
	f.write(node, "/etc/pulley/first-boot.yaml", strings.Join(append(lines, "environment: dev", "allowed_signers: /root/signers"), "\n")+"\n")
}

// A fleet with certificates and signatures must boot its machines in the same way: nodes that need a secret, and see others. The
// first run decrypts nothing that it does not need, and the first tick fetches nothing.
func TestFirstBootOfASecuredFleet(t *testing.T) {
	t.Parallel()
	f, server, pin := newSecuredFleet(t)
	f.signs()
	f.env = append(f.env, "PULLEY_SERVERS="+server)
	f.pulley("init", f.repo)
	f.spec("hosts: {settle: 1h}\nroles:\n  controller: {cardinality: 1, sees: [compute]}\n  compute: {cardinality: 1}\n")
	f.publish("1.0.0", `node default {
  include pulley
  $password = lookup('app::password', Sensitive[String])
  $seen = lookup('pulley::hosts')['compute'].map |$h| { $h['name'] }.join(' ')
  file { '/etc/pulley-demo': ensure => directory }
  file { '/etc/pulley-demo/app': mode => '0600', content => Sensitive("${password.unwrap} ${seen}\n") }
}
`)
	f.pulley("promote", "1.0.0")
	f.pulley("nodes", "add", "compute1")
	f.pulley("data", "set", "pulley::schedule", "17 */3 * * *", "--role", "controller")
	if out, err := f.tryWith("hunter41-s3cret", "secret", "set", "app::password", "--role", "controller"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	token := regexp.MustCompile(`plt_\S+`).FindString(f.pulley("token", "create", "--role", "controller"))

	f.start("controller1")
	f.plan("controller1", "role: controller", "servers: ["+server+"]", "ca: ["+pin+"]", "token: "+token)
	said := f.agent("controller1", 0, "bootstrap")
	contains(t, said, `msg="staged the promoted release" release=1.0.0 data=2`)
	contains(t, f.read("controller1", "/etc/cron.d/pulley-agent"), "17 */3 * * * root ")
	f.in("controller1", 1, "test", "-e", "/etc/pulley-demo") // of the role
	f.in("controller1", 1, "grep", "-rl", "hunter41-s3cret", "/etc", "/var/lib/pulley")

	onDisk := []string{"-c", `stat -c '%n %i %Y' /var/lib/pulley/releases/* /var/lib/pulley/data/* /var/lib/pulley/hosts/list.json /var/lib/pulley/identity/*`}
	before := f.in("controller1", 0, "sh", onDisk...)
	said = f.agent("controller1", 0, "run")
	contains(t, said, "changed on 1.0.0 with data 2")
	if strings.Contains(said, "identities of secrets received") {
		t.Errorf("the first tick requests identities:\n%s", said)
	}
	if after := f.in("controller1", 0, "sh", onDisk...); after != before {
		t.Errorf("the first tick fetched: on disk is\n%sbefore it was\n%s", after, before)
	}
	if got := f.read("controller1", "/etc/pulley-demo/app"); got != "hunter41-s3cret compute1\n" {
		t.Errorf("the first tick wrote %q", got)
	}
	f.expect("controller1", "converged", "1.0.0", "changed")
}

// newSecuredFleet starts a server with certificates, for an operator who is its administrator. It returns the URL where machines
// join, and the pin of its CA.
func newSecuredFleet(t *testing.T) (f *testFleet, server, pin string) {
	t.Helper()
	f = &testFleet{t: t, dir: t.TempDir(), machines: map[string]*local.Machine{}}
	f.repo = filepath.Join(f.dir, "repo")
	log := filepath.Join(f.dir, "serve.log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	f.serve = exec.Command(filepath.Join(bin, "pulley"), "serve", "--auth", "--data-dir", filepath.Join(f.dir, "data"), "--listen", "127.0.0.1:0", "--listen-https", "127.0.0.1:0")
	f.serve.Env = append(os.Environ(), "HOME="+f.dir, "XDG_CONFIG_HOME="+f.dir)
	f.serve.Stdout, f.serve.Stderr = out, out
	if err := errors.Join(f.serve.Start(), out.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.down)
	var text []byte
	f.until("serve", func() (bool, string) {
		text, _ = os.ReadFile(log)
		at, fingerprint := regexp.MustCompile(`serve at (https://[0-9.:]+) with`).FindSubmatch(text), regexp.MustCompile(`fingerprints? (?:are|is) (sha256:[0-9a-f]{64})`).FindSubmatch(text)
		if at == nil || fingerprint == nil || !strings.Contains(string(text), "PULLEY_ENDPOINTS=") {
			return false, string(text)
		}
		server, pin = string(at[1]), string(fingerprint[1])
		return true, ""
	})
	for _, m := range regexp.MustCompile(`(?m)^export (PULLEY_\w+=.*)$`).FindAllStringSubmatch(string(text), -1) {
		f.env = append(f.env, m[1])
	}
	return f, server, pin
}
