//go:build e2e

package nspawn

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// packages is the repository of Puppet's packages in the image.
const packages = "deb [trusted=yes] file:/srv/packages ./"

// Fleet is a `pulley serve` with TLS and users on its own address, with a control repository. Its operator has the
// identity from the first start of the server.
type Fleet struct {
	Address string   // of serve: "10.77.0.1"
	Env     []string // of an operator's shell: PULLEY_ENDPOINTS and so on

	t       *testing.T
	dir     string
	repo    string
	signers string // allowed_signers
	key     string // path of the key that signs releases
	serve   *exec.Cmd
	ended   chan error
}

// newFleet starts a server with the environment dev, which has this number of nodes of role compute, and with the
// signed and promoted release 1.0.0.
func newFleet(t *testing.T, compute int) *Fleet {
	t.Helper()
	f := newServer(t)
	f.file("environments/dev.yaml", fmt.Sprintf("roles:\n  compute:\n    cardinality: %d\n    flavor: bare-metal\n", compute))
	f.pulley("env", "apply", filepath.Join(f.repo, "environments/dev.yaml"))
	f.Release("1.0.0")
	return f
}

// newServer starts a server without environments, with a control repository and a key that signs for dev. The flags are further ones of
// `pulley serve`.
func newServer(t *testing.T, flags ...string) *Fleet {
	t.Helper()
	f := &Fleet{Address: serverAddress(t), t: t, dir: t.TempDir()}
	f.repo, f.signers, f.key = filepath.Join(f.dir, "repo"), filepath.Join(f.dir, "allowed_signers"), filepath.Join(f.dir, "key")
	f.start(flags)
	t.Cleanup(f.stop)
	f.pulley("init", f.repo)
	// The tests wait for cron: it starts the agent each minute, without splay.
	f.replace("hieradata/common.yaml", "'*/5 * * * *'", "'* * * * *'\npulley::command: '/usr/local/bin/pulley-agent run'")
	f.pulley("key", "create", f.key, "--no-passphrase")
	f.pulley("key", "allow", f.key+".pub", "--name", "ada@example.com", "--environments", "dev", "--signers", f.signers)
	return f
}

// Release publishes and promotes the signed content of the repository. The e2e tests of the parent package validate it.
func (f *Fleet) Release(version string) {
	f.t.Helper()
	f.pulley("publish", f.repo, "--version", version, "--sign-key", f.key, "--no-validate")
	f.pulley("promote", version)
}

func (f *Fleet) start(flags []string) {
	f.t.Helper()
	log, err := os.Create(filepath.Join(f.dir, "serve.log"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.serve = exec.Command(filepath.Join(binDir, "pulley"), append([]string{"serve", "--data-dir", filepath.Join(f.dir, "data"),
		"--listen", f.Address + ":2379", "--listen-https", f.Address + ":8443", "--agent", filepath.Join(binDir, "pulley-agent")}, flags...)...)
	f.serve.Env = operatorEnv()
	f.serve.Stderr = log
	out, err := f.serve.StdoutPipe()
	if err == nil {
		err = f.serve.Start()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.ended = make(chan error, 1)
	ready := make(chan []string, 1)
	go func() {
		var env []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Fprintln(log, lines.Text())
			if setting, ok := strings.CutPrefix(lines.Text(), "export "); ok {
				env = append(env, setting)
			}
			if strings.HasPrefix(lines.Text(), "export PULLEY_ENDPOINTS=") { // the last line
				ready <- env
			}
		}
		f.ended <- f.serve.Wait()
		_ = log.Close()
	}()
	select {
	case env := <-ready:
		f.Env = append(operatorEnv(), append(env, "PULLEY_ENVIRONMENT=dev", "PULLEY_SERVERS=https://"+f.Address+":8443")...)
	case err := <-f.ended:
		f.serve = nil
		f.t.Fatalf("pulley serve ended: %v\n%s", err, f.log())
	case <-time.After(patience):
		f.t.Fatalf("pulley serve is not ready in %s\n%s", patience, f.log())
	}
}

// operatorEnv returns the environment of a shell without settings of Pulley.
func operatorEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "TMPDIR=" + os.TempDir(), "LANG=C.UTF-8", "XDG_CONFIG_HOME=" + filepath.Join(binDir, "config")}
}

// stop stops the server, which must end cleanly.
func (f *Fleet) stop() {
	if f.serve == nil {
		return
	}
	if f.t.Failed() {
		f.t.Logf("log of pulley serve:\n%s", f.log())
	}
	_ = f.serve.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-f.ended:
		if err != nil {
			f.t.Errorf("pulley serve did not end cleanly: %v\n%s", err, f.log())
		}
	case <-time.After(patience):
		_ = f.serve.Process.Kill()
		f.t.Errorf("pulley serve does not end\n%s", f.log())
	}
	f.serve = nil
}

func (f *Fleet) log() string {
	text, _ := os.ReadFile(filepath.Join(f.dir, "serve.log"))
	return tail(string(text), 60)
}

// pulley runs an operator's command, which must succeed, and returns its standard output.
func (f *Fleet) pulley(args ...string) string {
	f.t.Helper()
	out, problem, err := f.try(args...)
	if err != nil {
		f.t.Fatalf("pulley %s: %v\n%s%s", strings.Join(args, " "), err, out, problem)
	}
	return out
}

// try runs an operator's command.
func (f *Fleet) try(args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "pulley"), args...)
	cmd.Env = f.Env
	if f.Env == nil {
		cmd.Env = operatorEnv()
	}
	var out, problem strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problem
	err = cmd.Run()
	return out.String(), problem.String(), err
}

// json runs a command with `-o json` and decodes its output.
func (f *Fleet) json(into any, args ...string) {
	f.t.Helper()
	if err := json.Unmarshal([]byte(f.pulley(append(args, "-o", "json")...)), into); err != nil {
		f.t.Fatalf("pulley %s -o json: %v", strings.Join(args, " "), err)
	}
}

// Userdata returns the userdata of a machine, with a new token. The arguments name the node or group and the form.
func (f *Fleet) Userdata(args ...string) string {
	f.t.Helper()
	return f.pulley(append([]string{"userdata", "--new-token", "--agent", filepath.Join(binDir, "pulley-agent"),
		"--allowed-signers", f.signers, "--package-repo", packages, "--schedule", "* * * * *", "--post", f.noSplay()}, args...)...)
}

// noSplay returns the path of a script that makes the ticks before the first release start at the full minute too.
func (f *Fleet) noSplay() string {
	f.t.Helper()
	path := f.Path("no-splay")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n[ ! -e /etc/cron.d/pulley-agent ] || sed -i 's/ --splay//' /etc/cron.d/pulley-agent\n"), 0o755); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// run runs a program outside the machines.
func (f *Fleet) run(program string, args ...string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		f.t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
	return string(out)
}

// file writes a file of the control repository.
func (f *Fleet) file(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.repo, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *Fleet) replace(name, from, to string) {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.repo, name))
	if err != nil {
		f.t.Fatal(err)
	}
	if !strings.Contains(string(text), from) {
		f.t.Fatalf("%s has no %q", name, from)
	}
	f.file(name, strings.ReplaceAll(string(text), from, to))
}

// status is one node of `pulley status -o json`.
type status struct {
	Node, State, Release, Reason, Outcome string
}

// status returns the operators' view of a node, or the zero value if it has no status.
func (f *Fleet) Status(node string) status {
	f.t.Helper()
	var all struct{ Nodes []status }
	f.json(&all, "status")
	for _, n := range all.Nodes {
		if n.Node == node {
			return n
		}
	}
	return status{}
}

// converged is a condition for Machine.Wait.
func (f *Fleet) converged(node, release string) func() string {
	return func() string {
		if s := f.Status(node); s.State != "converged" || s.Release != release {
			return fmt.Sprintf("%s is %s on %q: %s", node, s.State, s.Release, s.Reason)
		}
		return ""
	}
}

// finding is one of `pulley doctor -o json`.
type finding struct{ Check, Severity, Text, Node string }

// doctor returns the findings that are not "ok".
func (f *Fleet) doctor() []finding {
	f.t.Helper()
	out, problem, err := f.try("doctor", "-o", "json")
	var all struct{ Findings []finding }
	if json.Unmarshal([]byte(out), &all) != nil { // a finding also makes the exit code nonzero
		f.t.Fatalf("pulley doctor -o json: %v\n%s%s", err, out, problem)
	}
	return slices.DeleteFunc(all.Findings, func(f finding) bool { return f.Severity == "ok" })
}

// metrics returns the metrics of serve.
func (f *Fleet) metrics() string {
	f.t.Helper()
	return f.run("curl", "--silent", "--show-error", "--fail", "--cacert", filepath.Join(f.dir, "data", "pki", "bundle.pem"), "https://"+f.Address+":8443/metrics")
}

// For returns the same fleet for a subtest. Failures are reported to the subtest.
func (f *Fleet) For(t *testing.T) *Fleet {
	g := *f
	g.t = t
	return &g
}

// host is one node of `pulley nodes -o json`.
type host struct {
	Node, Role, Hostname string
	MachineID            string `json:"machine_id"`
	Addresses            []string
	Registered           bool
	FirstBoot            struct {
		Finished time.Time
		Error    string
	} `json:"first_boot"`
	Joined struct{ User string }
}

// host returns a node's entry of the host list.
func (f *Fleet) host(node string) host {
	f.t.Helper()
	var all []host
	f.json(&all, "nodes")
	for _, h := range all {
		if h.Node == node {
			return h
		}
	}
	return host{}
}

// useCoreTypes lets a role use types that Debian splits from Puppet. The image has their packages, and does not install them.
func (f *Fleet) useCoreTypes(role string) {
	f.t.Helper()
	f.replace("modules/role/manifests/"+role+".pp", "include profile::base", `include profile::base
  cron { 'yearly': command => '/bin/true', special => 'yearly' }
  host { 'books.example': ip => '192.0.2.7' }
  mount { '/mnt': ensure => mounted, device => 'tmpfs', fstype => 'tmpfs', options => 'size=1m' }`)
}

// useEyaml gives a role keys of its own, and data with an encrypted value. docs/eyaml.md describes the layout.
func (f *Fleet) useEyaml(role, format, secret string) {
	f.t.Helper()
	private, public := "--pkcs7-private-key="+f.Path(role+".pem"), "--pkcs7-public-key="+f.Path(role+".crt")
	f.run("eyaml", "createkeys", private, public)
	encrypted := f.run("eyaml", "encrypt", "--quiet", "--output=string", "--string="+secret, private, public)
	f.file("hieradata/secrets/"+role+".yaml", fmt.Sprintf(format, strings.TrimSpace(encrypted)))
	f.replace("hiera.yaml", "hierarchy:\n", `hierarchy:
  - name: secrets of the role
    lookup_key: eyaml_lookup_key
    path: "secrets/%{facts.pulley.role}.yaml"
    options:
      pkcs7_private_key: "/etc/pulley/eyaml/%{facts.pulley.role}.pem"
      pkcs7_public_key: "/etc/pulley/eyaml/%{facts.pulley.role}.crt"
`)
}

// putKeys copies the keys of a role to a machine that is on, as its root does.
func (m *Machine) putKeys(f *Fleet, role string) {
	m.t.Helper()
	for _, name := range []string{role + ".pem", role + ".crt"} {
		text, err := os.ReadFile(f.Path(name))
		if err != nil {
			m.t.Fatal(err)
		}
		script := `umask 077; mkdir -p /etc/pulley/eyaml; printf %s "$2" >"/etc/pulley/eyaml/$1"`
		if out, err := m.In("sh", "-c", script, "sh", name, string(text)); err != nil {
			m.t.Fatalf("cannot put %s: %v: %s", name, err, out)
		}
	}
}
