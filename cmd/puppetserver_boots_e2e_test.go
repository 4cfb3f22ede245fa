//go:build e2e

package cmd_test

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pulley/internal/access"
	"pulley/internal/failpoint"
	"pulley/internal/firstboot"
	"pulley/internal/model"
	"pulley/internal/puppetserver"
)

// published is a release that names an environment of the Puppet servers, for the fleets of this test.
func (f *serverFleet) published(version, environment string, files map[string]string) {
	f.t.Helper()
	for name, text := range files {
		f.write(filepath.Join("R", name), text)
	}
	f.must("pulley", "publish", "R", "--puppet-environment", environment, "--version", version)
}

// serverMachine creates the root of a machine of an environment, with the machine's own Puppet. Steps are lines of the plan.
func (f *serverFleet) serverMachine(name, env string, steps ...string) string {
	f.t.Helper()
	root := f.machine(name)
	token := strings.TrimSpace(f.quietly("pulley", "token", "create", "-e", env, "--role", "web"))
	f.write(filepath.Join(name, "etc/pulley/agent.yaml"), fmt.Sprintf("puppet: {program: /usr/bin/puppet, state_dirs: [%s/state]}\n", root))
	f.write(filepath.Join(name, firstboot.PlanPath), fmt.Sprintf("role: web\nenvironment: %s\nservers: [%s]\nca: [%s]\ntoken: %s\nsteps:\n  schedule: %s\n  %s\n",
		env, f.server, f.pin, token, filepath.Join(root, "schedule"), strings.Join(steps, "\n  ")))
	f.write(filepath.Join(name, "etc/hosts"), "127.0.0.1 localhost\n10.9.9.9 puppetdb\n")
	f.write(filepath.Join(name, "etc/puppet/puppet.conf"), "[main]\nvardir = /var/cache/puppet\n[agent]\nserver = old\nruninterval = 1h\n")
	return root
}

// crashFleets stores environments for first boots of folders of this host, and promotes a release for them: dev with certificate
// requests and made with certificates of serve, both without a bootstrap environment, and full with one. In away, one machine at a
// time has its turn, and the CA is away.
func (f *serverFleet) crashFleets(t *testing.T) {
	t.Helper()
	f.site.First.Put(t, "production", "manifests/site.pp", fmt.Sprintf("file { \"%s/machine/${trusted['certname']}\": content => 'served' }\n", f.dir))
	f.site.First.Put(t, "bootstrap", "manifests/site.pp", fmt.Sprintf("file { \"%s/machine/${trusted['certname']}.bootstrap\": content => 'yes' }\n", f.dir))
	files := map[string]string{}
	for i, env := range []string{"dev", "made", "full", "away"} {
		how, more := "csr", ""
		if env == "made" {
			how, more = "presigned", "  provision: {where: os.family == 'Debian'}\n" // a fact of machines that never ran Puppet
		}
		if env == "full" {
			more = "  bootstrap: bootstrap\n"
		}
		if env == "away" {
			more = "  provision: {concurrency: 1}\n"
		}
		files["environments/"+env+".yaml"] = fmt.Sprintf("stack: s%d\npuppet:\n  servers: {eu1: {address: %q}}\n  ca: {url: %q, how: %s}\n%sroles:\n  web: {cardinality: 60, flavor: bare-metal}\n",
			i, f.site.First.Address, f.site.First.URL(), how, more)
	}
	f.published("1.0.0", "production", files)
	f.write("without/away.yaml", strings.Replace(files["environments/away.yaml"], f.site.First.URL(), "https://127.0.0.1:1", 1))
	for i, env := range []string{"dev", "made", "full", "away"} {
		file := "R/environments/" + env + ".yaml"
		if env == "away" {
			file = "without/away.yaml"
		}
		f.must("pulley", "env", "apply", file)
		f.must("pulley", "promote", "1.0.0", "-e", fmt.Sprintf("%s@s%d", env, i))
	}
}

// A first boot with a Puppet server that dies at any point must end as without the crash: with one certificate, in one turn that is
// given to the next machine, and with no key left at serve. It dies by SIGKILL, as in a power cut, and by SIGTERM, as in a reboot: then
// its own shutdown runs and may report to serve, which an exit at that place would not do. SIGTERM where serve waits for a word about
// the certificate or the turn, and at all places where PULLEY_TEST_CRASHES is "all".
//
// Meanwhile, two machines wait for a CA that is away, with one turn at a time: neither must keep the other from trying, or use up its turns.
func TestServerFirstBootCrashes(t *testing.T) {
	f := newServerFleet(t)
	f.crashFleets(t)
	const quick = "first-run: \"off\""
	type crash struct {
		env, place, step string
		made             []string
	}
	var all []crash
	for _, place := range firstboot.ServerCrashPoints() {
		var here []crash
		switch {
		case strings.HasSuffix(place, "-bootstrap"):
			here = []crash{{"full@s2", place, quick, []string{".bootstrap"}}}
		case strings.HasSuffix(place, "-first-run"):
			here = []crash{{"dev@s0", place, "", []string{""}}}
		case strings.Contains(place, "certificate"):
			here = []crash{{"dev@s0", place, quick, nil}, {"made@s1", place, quick, nil}}
		default:
			here = []crash{{"dev@s0", place, quick, nil}}
		}
		all = append(all, here...)
		switch {
		case os.Getenv("PULLEY_TEST_CRASHES") == "all":
		case place == firstboot.CertificateAnswered, place == firstboot.CertificateWritten, strings.HasPrefix(place, "after:") && strings.HasSuffix(place, "-turn"):
			here = here[:1]
		default:
			continue
		}
		for _, c := range here {
			all = append(all, crash{c.env, failpoint.End + c.place, c.step, c.made})
		}
	}
	before, ran := f.certificates(t), 2
	var waiting sync.WaitGroup
	t.Cleanup(waiting.Wait)
	for _, name := range []string{"away1", "away2"} {
		root := f.serverMachine(name, "away@s3", quick)
		waiting.Go(func() {
			if out, err := f.bootstrap(root, nil); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		})
	}
	for i, c := range all {
		if i == len(all)/2 {
			eventually(t, "a machine that waits for the CA keeps the only turn", func() bool {
				tried := 0
				for _, b := range f.firstBoots(t, "away@s3") {
					if b.Step == string(firstboot.Certificate) && strings.Contains(string(b.Error), "127.0.0.1:1") {
						tried++
					}
				}
				return tried == 2
			})
			f.must("pulley", "env", "apply", "R/environments/away.yaml")
		}
		t.Run(c.env+" "+c.place, func(t *testing.T) {
			ran++
			root := f.serverMachine(fmt.Sprintf("s%d", i), c.env, c.step)
			if strings.HasPrefix(c.place, failpoint.End) {
				f.ends(t, root, c.place)
			} else {
				f.die(t, root, c.place)
			}
			f.boot(root, nil)
			f.endsWithServer(t, root, c.made...)
			f.boot(root, nil) // and a finished one changes nothing
		})
	}
	waiting.Wait()
	after := f.certificates(t)
	if len(after.revoked) != len(before.revoked) || after.signed-before.signed != ran {
		t.Errorf("%d first boots got %d certificates, and %d were revoked", ran, after.signed-before.signed, len(after.revoked)-len(before.revoked))
	}
	if text := f.everything(); strings.Contains(text, "/presigned/") {
		t.Error("etcd keeps keys that their nodes have")
	}
	seen := 0
	for _, env := range []string{"dev@s0", "made@s1", "full@s2", "away@s3"} {
		for _, b := range f.firstBoots(t, env) {
			if seen++; b.Finished.IsZero() || b.Turns != 1 {
				t.Errorf("a first boot of %s holds its name or its turn, or got more than one: %+v", env, b)
			}
		}
	}
	if seen != ran {
		t.Errorf("etcd has %d first boots of %d", seen, ran)
	}
}

// ends asks a first boot to end at a place, and checks that it ended by itself.
func (f *serverFleet) ends(t *testing.T, root, place string) {
	t.Helper()
	out, err := f.bootstrap(root, []string{"PULLEY_FAILPOINT=" + place})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "interrupted") {
		t.Fatalf("the first boot did not end by itself at %s: %v\n%s", place, err, out)
	}
}

// firstBoots returns the records of the first boots of an environment.
func (f *serverFleet) firstBoots(t *testing.T, env string) (all []access.FirstBoot) {
	t.Helper()
	var nodes []struct {
		FirstBoot *access.FirstBoot `json:"first_boot"`
	}
	if err := json.Unmarshal([]byte(f.quietly("pulley", "nodes", "-e", env, "-o", "json")), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.FirstBoot != nil {
			all = append(all, *n.FirstBoot)
		}
	}
	return all
}

// endsWithServer checks a machine after its first boot. made are the ends of the names of the files that Puppet made for its node.
func (f *serverFleet) endsWithServer(t *testing.T, root string, made ...string) {
	t.Helper()
	node := model.Certname(f.node(t, root))
	read := func(path string) string {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if text := read("etc/hosts"); strings.Count(text, "puppetmaster") != 1 || !strings.HasSuffix(text, "127.0.0.1 localhost\n10.9.9.9 puppetdb\n") {
		t.Errorf("/etc/hosts is\n%s", text)
	}
	if text := read("etc/puppet/puppet.conf"); strings.Count(text, "certname = "+node+"\nenvironment = production\nserver = puppet\n") != 1 || !strings.Contains(text, "runinterval = 1h\n") {
		t.Errorf("puppet.conf is\n%s", text)
	}
	cert := read("var/lib/puppet/ssl/certs/" + node + ".pem")
	if now, err := f.ca.Certificate(t.Context(), node); err != nil || string(now) != cert {
		t.Errorf("the CA has another certificate of %s: %v", node, err)
	}
	if info, err := os.Stat(filepath.Join(root, "var/lib/puppet/ssl/private_keys", node+".pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	for _, name := range []string{"first-boot.lock", "lock"} {
		lock, err := os.Open(filepath.Join(root, "var/lib/pulley", name))
		if err == nil {
			err = errors.Join(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), lock.Close())
		}
		if err != nil {
			t.Errorf("the machine's %s is held: %v", name, err)
		}
	}
	if state := f.state(t, filepath.Join(root, "var/lib/pulley/first-boot.json")); !strings.HasPrefix(state, "finished true") {
		t.Errorf("the first boot: %s", state)
	}
	for _, suffix := range made {
		if _, err := os.Stat(filepath.Join(f.dir, "machine", node+suffix)); err != nil {
			t.Error(err)
		}
	}
}

// certificates counts the certificates of the CA.
type certificates struct {
	signed  int
	revoked []x509.RevocationListEntry
}

func (f *serverFleet) certificates(t *testing.T) (c certificates) {
	t.Helper()
	all, err := f.ca.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.State == puppetserver.Signed {
			c.signed++
		}
	}
	_, list, err := f.ca.CRL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.revoked = list.RevokedCertificateEntries
	return c
}

// Each step must be one that an operator can leave out, or do by a program of the machine.
func TestServerStepsAreLeftOut(t *testing.T) {
	f := newServerFleet(t)
	f.crashFleets(t)
	var off []string
	for _, step := range []firstboot.Name{firstboot.Turn, firstboot.Hosts, firstboot.PuppetConf, firstboot.Certificate, firstboot.Bootstrap, firstboot.FirstRun, firstboot.Daemon, firstboot.Notify} {
		off = append(off, string(step)+": \"off\"")
	}
	root := f.serverMachine("off", "full@s2", off...)
	before := f.certificates(t)
	f.boot(root, nil)
	for path, want := range map[string]string{
		"etc/hosts":              "127.0.0.1 localhost\n10.9.9.9 puppetdb\n",
		"etc/puppet/puppet.conf": "[main]\nvardir = /var/cache/puppet\n[agent]\nserver = old\nruninterval = 1h\n",
	} {
		if b, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", path, b, err)
		}
	}
	if now := f.certificates(t); now.signed != before.signed {
		t.Error("a certificate was signed")
	}
	if made, err := filepath.Glob(filepath.Join(f.dir, "machine", "*")); err != nil || len(made) > 0 {
		t.Errorf("Puppet ran: %v, %v", made, err)
	}

	f.write("own", "#!/bin/sh\necho \"$PULLEY_STEP $PULLEY_NODE\" >>$PULLEY_ROOT/own\n")
	if err := os.Chmod(filepath.Join(f.dir, "own"), 0o755); err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, line := range off {
		own = append(own, strings.Replace(line, "\"off\"", filepath.Join(f.dir, "own"), 1))
	}
	root = f.serverMachine("programs", "full@s2", own...)
	f.boot(root, nil)
	if b, err := os.ReadFile(filepath.Join(root, "own")); err != nil || strings.Count(string(b), "\n") != len(off) || !strings.Contains(string(b), "certificate web2_s2\n") {
		t.Errorf("the programs ran as\n%s%v", b, err)
	}
	t.Run("for a mounted hosts file", f.leavesMountedHosts)
}

// leavesMountedHosts boots a machine whose hosts file is mounted read-only, as in containers. The first boot must name the file and the
// remedy, and continue from there when the step is left out.
func (f *serverFleet) leavesMountedHosts(t *testing.T) {
	root := f.serverMachine("mounted", "dev@s0", "first-run: \"off\"")
	hosts, plan := filepath.Join(root, "etc/hosts"), filepath.Join(root, firstboot.PlanPath)
	boot := func() (string, error) {
		script := `mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" bootstrap --root "$3"`
		out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script, "sh", hosts, filepath.Join(bin, "pulley-agent"), root).CombinedOutput()
		return string(out), err
	}
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	before := f.certificates(t)
	out, err := boot()
	if want := "cannot write " + hosts + ": it is a mount of its own: "; err == nil || !strings.Contains(out, want) || !strings.Contains(out, "leave the step out: --steps hosts=off; on this machine, write `hosts: \"off\"` below `steps` of "+plan+"\n") {
		t.Errorf("the first boot ends with %v\n%s", err, out)
	}
	node := f.node(t, root)
	f.write("mounted/"+firstboot.PlanPath, strings.Replace(read(plan), "steps:\n", "steps:\n  hosts: \"off\"\n", 1))
	if out, err := boot(); err != nil {
		t.Errorf("without the step, it ends with %v\n%s", err, out)
	}
	if text := read(hosts); text != "127.0.0.1 localhost\n10.9.9.9 puppetdb\n" {
		t.Errorf("/etc/hosts is\n%s", text)
	}
	if left, err := filepath.Glob(filepath.Join(root, "etc/.hosts*")); err != nil || left != nil {
		t.Errorf("files are left: %v, %v", left, err)
	}
	if now := f.node(t, root); now != node {
		t.Errorf("it joined as %s, and then as %s", node, now)
	}
	if now := f.certificates(t); now.signed != before.signed+1 || len(now.revoked) != len(before.revoked) {
		t.Errorf("%d certificates were signed, and %d revoked", now.signed-before.signed, len(now.revoked)-len(before.revoked))
	}
	if text := read(filepath.Join(root, "etc/puppet/puppet.conf")); !strings.Contains(text, "certname = "+model.Certname(node)+"\n") {
		t.Errorf("puppet.conf is\n%s", text)
	}
}
