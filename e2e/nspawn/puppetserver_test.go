//go:build e2e

package nspawn

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/machines"
	driver "pulley/internal/machines/drivers/nspawn"
	"pulley/internal/testbed/puppetservertest"
)

// servedFleet is a fleet whose machines Pulley creates, and whose nodes take their catalogs from two Puppet servers of one CA.
type servedFleet struct {
	*Fleet
	site   *puppetservertest.Site
	config driver.Config
}

// served are the environments of the fleet, and the nodes of each with what their server writes into /etc/served.
var served = map[string]map[string]string{
	"dev":  {"web1": "eu1 web dev", "db1": "us1 db dev"},                                     // booted, with requests for certificates
	"own":  {"app1": "eu1 app own"},                                                          // booted, with Puppet's own daemon and a certificate of serve
	"made": {"shop1": "eu1 shop made", "shop2": "eu1 shop made", "store1": "us1 store made"}, // of the local driver, with certificates of serve
}

func newServedFleet(t *testing.T) *servedFleet {
	t.Helper()
	release := takeSlots(t, 2)
	site := puppetservertest.New(t, serverAddress(t), serverAddress(t))
	site.Up(t)
	release()
	f := &servedFleet{newServer(t, "--puppet-credentials", site.Issue(t, puppetservertest.Client{Name: puppetservertest.Allowed}).Dir), site, newConfig(t)}
	f.signers = f.Path("signers")
	f.pulley("key", "allow", f.key+".pub", "--name", "ada@example.com", "--environments", "dev,own,made", "--signers", f.signers)
	f.file("validate.d/10-motd", "#!/bin/sh\nexec test -s /etc/served\n")
	for name, server := range map[string]*puppetservertest.Server{"eu1": site.First, "us1": site.Second} {
		server.Put(t, "production", "manifests/site.pp", fmt.Sprintf("file { '/etc/served': content => \"%s ${trusted['extensions']['pp_role']} ${trusted['extensions']['pp_environment']}\\n\" }\n", name))
		server.Put(t, "bootstrap", "manifests/site.pp", "file { '/etc/bootstrapped': content => 'yes' }\n")
	}
	booted := fmt.Sprintf(`provider: {driver: nspawn, folder: %s, bridge: %s, subnet: %s}
userdata: {package_repo: %q, schedule: "* * * * *", post: [%q]}`, f.config.Folder, f.config.Bridge, f.config.Subnet, packages, ticks)
	local := fmt.Sprintf("provider: {driver: local, folder: %s, agent: %s, interval: '@every 3s'}", f.Path("local"), filepath.Join(binDir, "pulley-agent"))
	f.environment("dev", booted, "csr", "", "image: debian, ")
	f.environment("own", booted, "presigned", "enforce: daemon", "image: debian, ")
	f.environment("made", local, "presigned", "", "")
	return f
}

// environment stores an environment without machines, and writes its file into the control repository.
func (f *servedFleet) environment(name, provider, how, more, image string) {
	f.t.Helper()
	roles := map[string]string{}
	for node, want := range served[name] {
		region, role := want[:2], strings.TrimRight(node, "0123456789")
		count := strings.Count(fmt.Sprint(served[name]), " "+role+" ")
		roles[role] = fmt.Sprintf("{cardinality: %d, %sattributes: {region: %s}, trusted: {pp_role: %s}}", count, image, region, role)
	}
	text := fmt.Sprintf(`%s
layers: [node, role, region, environment, common]
trusted: {pp_environment: %s}
puppet:
  servers:
    eu1: {address: %s, attributes: {region: eu}}
    us1: {address: %s, attributes: {region: us}}
  choose: [region]
  ca: {url: %q, how: %s}
  bootstrap: bootstrap
  %s
roles:
`, provider, name, f.site.First.Address, f.site.Second.Address, f.site.First.URL(), how, more)
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		text += fmt.Sprintf("  %s: %s\n", role, roles[role])
	}
	f.file("environments/"+name+".yaml", text)
	empty := f.Path(name + ".yaml")
	if err := os.WriteFile(empty, []byte("roles:\n  web: {cardinality: 0}\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
	f.pulley("env", "apply", empty)
}

// apply creates the machines of all environments at once, and returns when all of them are converged.
func (f *servedFleet) apply() {
	f.t.Helper()
	var all sync.WaitGroup
	for name := range served {
		file := f.Path("repo/environments/" + name + ".yaml")
		f.t.Cleanup(func() {
			f.storyOf(filepath.Join(f.config.Folder, "*", name), filepath.Join(f.Path("local"), "*", name))
			if out, problem, err := f.try("env", "destroy", file, "--yes", "--no-drain", "--max-retire", "100"); err != nil {
				f.t.Errorf("%v\n%s%s", err, out, problem)
			}
		})
		all.Go(func() {
			began := time.Now()
			out, problem, err := f.try("env", "apply", file, "--yes", "--agent", filepath.Join(binDir, "pulley-agent"), "--allowed-signers", f.signers)
			f.t.Logf("%s in %s\n%s%s", name, time.Since(began).Round(time.Second), out, problem)
			if err != nil {
				f.t.Errorf("pulley env apply of %s: %v", name, err)
			}
		})
	}
	all.Wait()
}

// read returns a file of a machine.
func (f *servedFleet) read(environment, node, path string) string {
	f.t.Helper()
	if environment == "made" {
		return f.pulley("provider", "enter", f.Path("repo/environments/made.yaml"), node, "--", "cat", path)
	}
	paths, err := filepath.Glob(filepath.Join(f.config.Folder, "*", environment, node, "upper", path))
	if err != nil || len(paths) != 1 {
		f.t.Errorf("%s of %s in %s: %q, %v", path, node, environment, paths, err)
		return ""
	}
	text, err := os.ReadFile(paths[0])
	if err != nil {
		f.t.Error(err)
	}
	return string(text)
}

// Machines that get userdata and nothing else must become converged nodes of the Puppet server that their region names, with
// certificates that nobody signed by hand: with keys of their own, and with keys that serve made.
func TestMachinesJoinPuppetServers(t *testing.T) {
	t.Parallel()
	f := newServedFleet(t)
	f.pulley("publish", f.repo, "--puppet-environment", "production", "--version", "1.0.0", "--sign-key", f.key)
	for name := range served {
		f.pulley("promote", "1.0.0", "-e", name)
	}
	release := takeSlots(t, 3)
	f.apply()
	release()
	if t.Failed() {
		t.FailNow()
	}
	for environment, nodes := range served {
		for node, want := range nodes {
			if got := f.read(environment, node, "/etc/served"); got != want+"\n" {
				t.Errorf("%s of %s: %q", node, environment, got)
			}
			if got := f.read(environment, node, "/etc/bootstrapped"); got != "yes" {
				t.Errorf("%s of %s had no run in the bootstrap environment: %q", node, environment, got)
			}
			address := map[string]string{"eu1": f.site.First.Address, "us1": f.site.Second.Address}[want[:3]]
			if got := f.read(environment, node, "/etc/hosts"); !strings.Contains(got, address+"\tpuppet puppetmaster\n") {
				t.Errorf("/etc/hosts of %s: %s", node, got)
			}
			if text := f.pulley("runs", node, "-e", environment, "-o", "json"); !strings.Contains(text, "first_boot") {
				t.Errorf("runs of %s:\n%s", node, text)
			}
		}
	}
	f.keepsItsDaemon()
}

// keepsItsDaemon checks the booted machine with `enforce: daemon`: Puppet's own daemon must run it with what the first boot configured, and
// the agent must run no Puppet beside it.
func (f *servedFleet) keepsItsDaemon() {
	f.t.Helper()
	const report = "/var/cache/puppet/state/last_run_report.yaml" // of the machine's own Puppet
	eventually(f.t, "a run of Puppet's daemon", func() string {
		paths, _ := filepath.Glob(filepath.Join(f.config.Folder, "*", "own", "app1", "upper", report))
		if len(paths) != 1 {
			return report + " is missing"
		}
		text, err := os.ReadFile(paths[0])
		if err != nil || !strings.Contains(string(text), "\nstatus: unchanged\n") || !strings.Contains(string(text), "\nenvironment: production\n") {
			return fmt.Sprint(err, tail(string(text), 60))
		}
		return ""
	})
	c := f.config
	c.Mark = machines.Mark{Owner: f.owner("own"), Fleet: "own"}
	for _, is := range []string{"is-enabled", "is-active"} {
		inside(f.t, c, "app1", "systemctl", "--quiet", is, "puppet.service")
	}
	const excluded = "Puppet's own daemon runs on the machine, by puppet.enforce of the environment file"
	eventually(f.t, "a tick that runs no Puppet", func() string {
		if status := f.pulley("status", "-e", "own"); !strings.Contains(status, excluded) {
			return status
		}
		return ""
	})
	if runs := f.pulley("runs", "app1", "-e", "own", "-o", "json"); strings.Count(runs, `"action"`) != 2 {
		f.t.Errorf("the agent ran Puppet after the first boot:\n%s", runs)
	}
	const alone = "each selected node has Puppet's own daemon: app1"
	if out, problem, err := f.try("job", "run", "-e", "own", "--dry-run"); err == nil || !strings.Contains(problem, alone) {
		f.t.Errorf("a job of a node with a daemon: %v\n%s%s", err, out, problem)
	}
}

// owner returns the owner of the machines of an environment.
func (f *servedFleet) owner(environment string) string {
	paths, _ := filepath.Glob(filepath.Join(f.config.Folder, "*", environment))
	if len(paths) != 1 {
		f.t.Fatalf("the machines of %s are in %q", environment, paths)
	}
	return filepath.Base(filepath.Dir(paths[0]))
}
