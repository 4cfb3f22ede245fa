//go:build e2e

package cmd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Manifests of the servers for a fault. A machine's catalog waits in the middle, or while it is compiled, until the file go exists.
const (
	faultsServed = `file { "%[1]s/machine/${trusted['certname']}": content => "${serverversion} ${facts['site']}" }
if $trusted['certname'] == 'web1-s2' { generate('/bin/sh', '-c', 'test -e %[1]s/go || { touch %[1]s/compiling; sleep 600; }') }
`
	faultsBootstrap = `exec { '/bin/sh -c "touch %[1]s/applying; until test -e %[1]s/go; do sleep 0.1; done"': timeout => 600 }
-> file { "%[1]s/machine/${trusted['certname']}.bootstrap": source => 'puppet:///modules/m1/x' }
`
	faultsFact = "Facter.add(:site) { setcode { File.read('%[1]s/site').strip } }\n"
)

// boots starts a first boot that nobody starts again.
func (f *serverFleet) boots(root string) (ended <-chan error) {
	c := make(chan error, 1)
	go func() {
		out, err := f.bootstrap(root, nil)
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		c <- err
	}()
	return c
}

// until waits for a condition.
func (f *serverFleet) until(what string, done func() bool) {
	f.t.Helper()
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			f.t.Fatalf("not within %s: %s", patience, what)
		}
		<-time.After(time.Millisecond)
	}
}

func exist(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// shows waits until the nodes of an environment show a text.
func (f *serverFleet) shows(env, text string) {
	f.t.Helper()
	said := ""
	for end := time.Now().Add(patience); !strings.Contains(said, text); <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("pulley nodes -e %s never shows %q:\n%s", env, text, said)
		}
		said = f.quietly("pulley", "nodes", "-e", env)
	}
}

// A server that dies during the first boots of a night must cost nobody a walk to the machines: each of them says what it waits for,
// continues by itself, and ends as without the fault. Converged nodes need no CA. A node follows its facts to another server.
func TestFirstBootsWhileServersAreAway(t *testing.T) {
	f := newServerFleet(t)
	site, first := f.site, f.site.First
	for _, file := range []struct{ environment, path, text string }{
		{"production", "manifests/site.pp", faultsServed}, {"production", "modules/m2/lib/facter/site.rb", faultsFact},
		{"bootstrap", "manifests/site.pp", faultsBootstrap}, {"bootstrap", "modules/m1/files/x", "yes"},
	} {
		site.Put(t, file.environment, file.path, strings.ReplaceAll(file.text, "%[1]s", f.dir))
	}
	f.write("site", "b\n")
	spec := func(i int, ca, more string) string {
		return fmt.Sprintf("stack: s%d\npuppet:\n  servers: {eu1: {address: %q, attributes: {site: a}}, us1: {address: %q, attributes: {site: b}, name: puppet2.test}}\n  choose: [site]\n  fallback: eu1\n  ca: {url: %q}\n%sroles:\n  web: {cardinality: 2, flavor: bare-metal}\n",
			i, first.Address, site.Second.Address, ca, more)
	}
	const dead, envs = "https://127.0.0.1:1", 4
	files := map[string]string{}
	for i := range envs {
		ca, more := first.URL(), ""
		if i == 1 {
			more = "  bootstrap: bootstrap\n"
		}
		if i == 3 {
			ca = dead
		}
		files[fmt.Sprintf("environments/e%d.yaml", i)] = spec(i, ca, more)
	}
	f.published("1.0.0", "production", files)
	for i := range envs {
		f.must("pulley", "env", "apply", fmt.Sprintf("R/environments/e%d.yaml", i))
		f.must("pulley", "promote", "1.0.0", "-e", fmt.Sprintf("e%d@s%d", i, i))
	}
	before := f.certificates(t)

	// Its servers compile, and the URL of the CA leads nowhere.
	late := f.serverMachine("late", "e3@s3", `first-run: "off"`)
	ended := f.boots(late)
	f.shows("e3@s3", "Puppet's CA failed: cannot read the state of web1-s3: cannot connect to the Puppet server at "+dead+": the port is closed")
	f.write("R/environments/e3.yaml", spec(3, first.URL(), ""))
	f.must("pulley", "env", "apply", "R/environments/e3.yaml")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	f.write("R/environments/e3.yaml", spec(3, dead, ""))
	f.must("pulley", "env", "apply", "R/environments/e3.yaml")

	// The server is killed while one machine applies a catalog, one waits for its catalog, and one waits for its signature.
	applies := f.serverMachine("applies", "e1@s1", `first-run: "off"`)
	f.write("applies/state/.keep", "")
	ends := map[string]<-chan error{"it applied": f.boots(applies)}
	f.until("a catalog is applied", func() bool { return exist(filepath.Join(f.dir, "applying")) })

	// Meanwhile, a run on the machine of that Puppet.
	f.write("late/etc/pulley/agent.yaml", strings.Replace(f.read("late/etc/pulley/agent.yaml"), late+"/state", applies+"/state", 1))
	if out := f.tick(late); !strings.Contains(out, "another Puppet") {
		t.Errorf("beside a Puppet that runs: %s", out)
	}

	compiled := f.serverMachine("compiled", "e2@s2")
	ends["it compiled"] = f.boots(compiled)
	f.until("a catalog is compiled", func() bool { return exist(filepath.Join(f.dir, "compiling")) })
	signed := f.serverMachine("signed", "e0@s0", `first-run: "off"`)
	ends["it signed"] = f.boots(signed)
	request := filepath.Join(site.Dir, "ca", "requests", "web1-s0.pem")
	f.until("a request is at the CA", func() bool { return exist(request) })
	first.Kill()
	t.Logf("the CA died before it signed: %t", exist(request)) // else before it answered, which must end equally
	f.write("go", "")
	f.shows("e0@s0", "Puppet's CA failed: ")
	f.shows("e1@s1", "the run did not succeed: ")
	f.shows("e2@s2", "no Puppet server ")
	site.Up(t)
	for when, ended := range ends {
		if err := <-ended; err != nil {
			t.Errorf("the server died while %s: %v", when, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	f.endsWithServer(t, signed)
	f.endsWithServer(t, applies, ".bootstrap")
	f.endsWithServer(t, compiled, "")
	for i := range envs {
		for _, b := range f.firstBoots(t, fmt.Sprintf("e%d@s%d", i, i)) {
			if b.Finished.IsZero() || b.Turns != 1 || b.Error != "" {
				t.Errorf("a first boot holds its name or its turn, or got more than one: %+v", b)
			}
		}
	}
	if after := f.certificates(t); after.signed-before.signed != envs || len(after.revoked) != len(before.revoked) {
		t.Errorf("%d first boots got %d certificates, and %d were revoked", envs, after.signed-before.signed, len(after.revoked)-len(before.revoked))
	}

	// Runs need no CA. Puppet is disabled on the machine at first.
	disabled := exec.CommandContext(t.Context(), "puppet", "agent", "--disable", "disk swap", "--statedir", applies+"/state", "--vardir", f.dir+"/var", "--confdir", f.dir+"/conf")
	if out, err := disabled.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out := f.tick(late); !strings.Contains(out, "disk swap") {
		t.Errorf("with puppet agent --disable: %s", out)
	}
	if err := os.Remove(filepath.Join(applies, "state", "agent_disabled.lock")); err != nil {
		t.Fatal(err)
	}
	f.tick(late)
	explained := func(want string) {
		t.Helper()
		if text := f.quietly("pulley", "explain", "web1_s3", "-e", "e3@s3"); !strings.Contains(text, want) {
			t.Errorf("explain has no %q:\n%s", want, text)
		}
	}
	explained("environment production of server eu1, the fallback;")

	// A day later the node knows the fact of the server's module, which names the other server.
	for _, file := range []string{"facts.zst", "facts.tried"} {
		yesterday := time.Now().Add(-25 * time.Hour)
		if err := os.Chtimes(filepath.Join(late, "var/lib/pulley", file), yesterday, yesterday); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	f.tick(late)
	f.tick(late, "--force")
	explained(`environment production of server us1, because site is "b";`)
}

// tick is a run as cron starts it.
func (f *serverFleet) tick(root string, args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(bin, "pulley-agent"), append([]string{"run", "--root", root}, args...)...)
	cmd.Dir, cmd.Env = f.dir, []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func (f *serverFleet) read(name string) string {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}
