//go:build e2e

// Package puppetserver_test runs the commands beside real Puppet servers and a real PuppetDB: classes and data that the servers read,
// and nodes that are removed. It must never replace a part of a server.
package puppetserver_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/pki"
	"pulley/internal/puppetserver"
	"pulley/internal/testbed/puppetservertest"
)

// patience is for machines that are much slower than this one.
const patience = 3 * time.Minute

// bench is a fleet whose serve runs beside the servers of a site.
type bench struct {
	t           *testing.T
	dir         string
	site        *puppetservertest.Site
	listen      string
	credentials string // folder
	own         puppetserver.Credentials
	serve       *exec.Cmd
}

const site = `
class role_web($port) {
  fail("port=${port} type=${type($port, 'generalized')} east=${datacenter} role=${pulley_role} in=${pulley_environment} live=${lookup('app::message', { default_value => 'none' })} site=${lookup('app::site', { default_value => 'none' })}")
}
node default { }
`

const environment = `
puppet:
  servers: {eu1: {address: %[1]s}}
  ca: {url: "%[2]s"}
  puppetdb: https://%[3]s
enc: {parameters: {datacenter: east}}
roles:
  web: {cardinality: 2, enc: {classes: {role_web: {port: 8080}}}}
`

const hiera = `
version: 5
hierarchy:
  - name: Live data
    data_hash: yaml_data
    datadir: %s/live/%%{pulley_environment}/current
    mapped_paths: [pulley_layers, layer, "%%{layer}.yaml"]
`

// Nodes of an existing Puppet server must get the classes and the live data of their fleet, also while etcd is away, and a removed
// node must get nothing: no server may accept its certificate, and PuppetDB must have it as deactivated, also if the CA and PuppetDB were
// away when it was removed.
func TestClassesDataAndRemovalAtRealServers(t *testing.T) {
	b := &bench{t: t, dir: t.TempDir(), site: puppetservertest.New(t)}
	first := b.site.First
	ca := puppetservertest.NewWay(t, net.JoinHostPort(first.Address, puppetservertest.Port))
	var up sync.WaitGroup
	b.configure()
	up.Go(func() { b.site.Up(t) })
	database := b.site.PuppetDB(t, puppetservertest.Allowed)
	up.Go(func() { database.Up(t) })
	b.start()
	b.write("dev.yaml", fmt.Sprintf(environment, first.Address, "https://"+ca.Address, database.Address))
	b.pulley("env", "apply", b.path("dev.yaml"), "--yes")
	b.pulley("nodes", "add", "web1")
	b.pulley("data", "set", "app::message", "hello")
	b.pulley("data", "set", "app::site", "ams1", "--node", "web1")
	b.pulley("data", "export", b.path("live/dev"), "--for-server")
	up.Wait()
	if t.Failed() {
		t.FailNow()
	}

	client := b.client(first.URL(), b.own)
	p, err := client.Presign(t.Context(), "web1", nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.NewIdentity(p.Key, p.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	node := b.client(first.URL(), puppetserver.Credentials{Identity: id, CA: b.own.CA})
	b.compiles(node, "port=8080 type=Integer east=east role=web in=dev live=hello site=ams1")

	// A change of data is in the next catalog.
	b.pulley("data", "set", "app::message", "more", "--role", "web")
	b.pulley("data", "export", b.path("live/dev"), "--for-server")
	b.compiles(node, "live=more site=ams1")

	// Without etcd, the server compiles with the kept answer and the data that it has.
	b.stop()
	b.compiles(node, "port=8080 type=Integer east=east role=web in=dev live=more site=ams1")

	// The CA and PuppetDB are away when the node is removed: the removal is done, and they still have the node.
	database.Facts(t, "web1", time.Now())
	b.start()
	if out := b.pulley("nodes", "remove", "web1", "--yes"); !strings.Contains(out, "pulley serve removes web1 from 2 Puppet servers") {
		t.Errorf("nodes remove prints %s", out)
	}
	b.until("may still have valid certificates of removed nodes: web1: cannot read the state of web1: cannot connect to the Puppet server", "doctor")
	b.until("PuppetDB https://"+database.Address+" still has removed nodes: web1: cannot deactivate web1 in PuppetDB: cannot connect to PuppetDB", "doctor")
	if refuses, err := b.client(b.site.Second.URL(), b.own).Refuses(t.Context(), id); refuses || err != nil {
		t.Errorf("the second server refuses the node before its list has it: %v, %v", refuses, err)
	}
	if database.Deactivated(t, "web1") {
		t.Error("PuppetDB has the node as deactivated before it can be reached")
	}
	database.Open(t)
	ca.Open(t)
	b.gone("still has removed nodes", "doctor")
	if !database.Deactivated(t, "web1") {
		t.Error("PuppetDB still has the removed node")
	}
	b.gone("may still have valid certificates", "doctor")
	_, crl, err := client.CRL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	listed := false
	for _, e := range crl.RevokedCertificateEntries {
		listed = listed || e.SerialNumber.Cmp(id.Leaf().SerialNumber) == 0
	}
	if !listed {
		t.Error("the list of the CA does not have the certificate of the removed node")
	}
	b.site.CopyCRL(t)
	for _, server := range []*puppetservertest.Server{first, b.site.Second} {
		c := b.client(server.URL(), b.own)
		deadline := time.Now().Add(patience)
		for {
			refuses, err := c.Refuses(t.Context(), id)
			if refuses {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s still accepts the removed node: %v", server.Name, err)
			}
			<-time.After(500 * time.Millisecond) // between two questions
		}
	}

	// Its classes are gone, also from the kept answers.
	other := b.client(first.URL(), b.issue("web1"))
	if _, err := other.Compile(t.Context(), "production", nil); err == nil || strings.Contains(err.Error(), "port=8080") {
		t.Errorf("the server classifies a removed node: %v", err)
	}

	// The check names the classifier that fails for its own name. With --unknown empty, the server compiles for every name, also without
	// etcd, and gives the removed node no classes.
	check := []string{"puppetserver", "check", b.path("dev.yaml"), "--puppet-credentials", b.credentials, "--puppet-environment", "production"}
	out, err := b.command(check...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Failed to find "+puppetservertest.Allowed+" via exec: ") || !strings.Contains(string(out), ": pulley enc needs --unknown empty") {
		t.Errorf("the check of a server whose classifier fails: %v\n%s", err, out)
	}
	b.classifier("--unknown empty")
	b.pulley(check...)
	for range 2 {
		if c, err := other.Compile(t.Context(), "production", nil); err != nil {
			t.Errorf("the removed node with --unknown empty: %+v, %v", c, err)
		}
		b.stop()
	}

	b.deactivates(database)
}

// deactivates tries what PuppetDB answers to commands that it does not obey.
func (b *bench) deactivates(database *puppetservertest.PuppetDB) {
	b.t.Helper()
	client := func(own puppetserver.Credentials) *puppetserver.Client {
		c, err := puppetserver.NewPuppetDB("https://"+database.Address, own, time.Now)
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(c.Close)
		return c
	}
	refused := func(err error, code puppetserver.Code, text, hint string) {
		var e *puppetserver.Error
		if !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), text) || !strings.Contains(e.Hint(), hint) {
			b.t.Errorf("%v, want %s with %q and the remedy %q", err, code, text, hint)
		}
	}
	ctx, c, now := b.t.Context(), client(b.own), time.Now()

	// A node that reported with a later time than that of the command stays active, and PuppetDB reports no error.
	database.Facts(b.t, "web2", now.Add(time.Hour))
	refused(c.Deactivate(ctx, "web2", now), puppetserver.StillActive, `has data of "web2" that is newer than `, "clocks")
	refused(client(b.issue("plain.test")).Deactivate(ctx, "web2", now.Add(2*time.Hour)), puppetserver.NoRight, `not allow POST on /pdb/cmd/v1 to the certificate "plain.test": Permission denied`, "certificate-allowlist")
	if database.Deactivated(b.t, "web2") {
		b.t.Error("PuppetDB obeys a certificate that it does not allow, or an old command")
	}
	for range 2 { // it may be repeated
		if err := c.Deactivate(ctx, "web2", now.Add(2*time.Hour)); err != nil || !database.Deactivated(b.t, "web2") {
			b.t.Errorf("web2 is not deactivated: %v", err)
		}
	}
	if err := c.Deactivate(ctx, "unknown", now); err != nil || !database.Deactivated(b.t, "unknown") {
		b.t.Errorf("a node that PuppetDB does not know: %v", err)
	}
	refused(c.Deactivate(ctx, " ", now), puppetserver.Refused, "Certname must be a non-empty string", "")
	foreign := b.own
	foreign.Identity = b.load(b.site.Issue(b.t, puppetservertest.Client{Name: puppetservertest.Allowed, Foreign: true})).Identity
	refused(client(foreign).Deactivate(ctx, "web2", now), puppetserver.Unreachable, "cannot connect to PuppetDB", "certificate of this Puppet CA")
	elsewhere, err := puppetserver.NewPuppetDB(b.site.First.URL(), b.own, time.Now)
	if err != nil {
		b.t.Fatal(err)
	}
	defer elsewhere.Close()
	refused(elsewhere.Deactivate(ctx, "web2", now), puppetserver.NoService, "no PuppetDB answers at "+b.site.First.URL(), "8081")
}

// configure lets the first server read classes and live data from Pulley.
func (b *bench) configure() {
	b.classifier("")
	b.site.First.Classifier(b.t, "exec "+b.path("enc")+` "$1"`)
	if err := os.WriteFile(filepath.Join(b.site.Dir, puppetservertest.FirstName, "conf", "hiera.yaml"), fmt.Appendf(nil, hiera, b.dir), 0o644); err != nil {
		b.t.Fatal(err)
	}
	b.site.First.Put(b.t, "production", "manifests/site.pp", site)
	files := b.site.Issue(b.t, puppetservertest.Client{Name: puppetservertest.Allowed})
	b.credentials, b.own = files.Dir, b.load(files)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	b.listen = l.Addr().String()
	l.Close()
}

// classifier writes the script that the first server calls.
func (b *bench) classifier(flags string) {
	b.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nHOME=%s XDG_CONFIG_HOME=%[1]s/config XDG_CACHE_HOME=%[1]s/cache exec %s enc %s \"$@\"\n", b.dir, program, flags)
	if err := atomicfile.Write(b.path("enc"), []byte(script), 0o755); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) issue(name string) puppetserver.Credentials {
	b.t.Helper()
	return b.load(b.site.Issue(b.t, puppetservertest.Client{Name: name}))
}

func (b *bench) load(files puppetservertest.Credentials) puppetserver.Credentials {
	b.t.Helper()
	own, err := puppetserver.LoadCredentials(files.Dir)
	if err != nil {
		b.t.Fatal(err)
	}
	return own
}

func (b *bench) client(url string, own puppetserver.Credentials) *puppetserver.Client {
	b.t.Helper()
	c, err := puppetserver.New(url, own, time.Now)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	return c
}

// compiles lets the server compile a catalog, whose class fails with all that it was given.
func (b *bench) compiles(as *puppetserver.Client, want string) {
	b.t.Helper()
	if _, err := as.Compile(b.t.Context(), "production", nil); err == nil || !strings.Contains(err.Error(), want) {
		b.t.Errorf("the server answers %v, want %q\n%s", err, want, b.site.First.Log())
	}
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) command(args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Env = append(os.Environ(), "HOME="+b.dir, "XDG_CONFIG_HOME="+b.path("config"), "XDG_CACHE_HOME="+b.path("cache"), "PULLEY_ENVIRONMENT=dev")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

func (b *bench) pulley(args ...string) string {
	b.t.Helper()
	out, err := b.command(args...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("pulley %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// start starts serve, and waits until etcd answers.
func (b *bench) start() {
	b.t.Helper()
	if err := os.MkdirAll(b.path("cache"), 0o700); err != nil {
		b.t.Fatal(err)
	}
	var out bytes.Buffer
	b.serve = b.command("serve", "--auth", "--data-dir", b.path("data"), "--listen", b.listen, "--listen-https", "127.0.0.1:0",
		"--puppet-credentials", b.credentials, "--log-file", b.path("serve.log"))
	b.serve.Stdout, b.serve.Stderr = &out, &out
	if err := b.serve.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(b.stop)
	b.until("", "env", "list")
}

func (b *bench) stop() {
	if b.serve == nil {
		return
	}
	_ = b.serve.Process.Signal(syscall.SIGTERM)
	_ = b.serve.Wait()
	b.serve = nil
}

// until repeats a command until it succeeds with a text in its output, or with any exit code if the text is not empty.
func (b *bench) until(text string, args ...string) { b.t.Helper(); b.repeat(text, true, args...) }

// gone repeats a command until it no longer prints a text.
func (b *bench) gone(text string, args ...string) { b.t.Helper(); b.repeat(text, false, args...) }

func (b *bench) repeat(text string, wanted bool, args ...string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		out, err := b.command(args...).CombinedOutput()
		if (err == nil || text != "") && strings.Contains(string(out), text) == wanted {
			return
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(b.path("serve.log"))
			b.t.Fatalf("pulley %s: %v, want %v of %q\n%s\n%s", strings.Join(args, " "), err, wanted, text, out, log)
		}
		<-time.After(300 * time.Millisecond) // between two looks
	}
}

var program string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pulley-puppetserver-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "pulley")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "pulley/cmd/pulley")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build pulley: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
