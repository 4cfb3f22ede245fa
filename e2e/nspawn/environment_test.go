//go:build e2e

package nspawn

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/machines"
	driver "pulley/internal/machines/drivers/nspawn"
	"pulley/internal/machines/plan"
)

// A changed number in an environment file must create complete machines, converge them, and retire and delete them,
// unattended.
func TestEnvironmentBecomesMachines(t *testing.T) {
	t.Parallel()
	f := newServer(t)
	m := madeFleet{Fleet: f, config: newConfig(t), retired: listen(t, f.Address)}
	t.Cleanup(func() { f.storyOf(filepath.Join(m.config.Folder, "*", "dev")) })
	f.file("retire.d/10-report", "#!/bin/sh\nexec curl --silent --show-error --fail --max-time 20 \"http://"+m.retired.address+"/$(hostname)\"\n")
	if err := os.Chmod(f.Path("repo/retire.d/10-report"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.apply(0)
	f.Release("1.0.0")

	done := takeSlots(t, 2)
	m.apply(2)
	done()
	first := m.machines(t, 2)
	m.apply(1)
	if got := m.machines(t, 1); got["controller1"] != first["controller1"] {
		t.Errorf("the remaining machine is %v, and was %v", got, first)
	}
	if got := m.retired.hosts(); !slices.Equal(got, []string{"controller2"}) {
		t.Errorf("retire.d ran on %v", got)
	}
}

// madeFleet is a fleet whose machines Pulley creates.
type madeFleet struct {
	*Fleet
	config  driver.Config
	retired *reports
}

// ticks starts the agent every three seconds, beside cron: TestMachineBecomesNodeUnattended waits for cron.
const ticks = "#!/bin/sh\nexec systemd-run --unit=ticks pulley-agent daemon --schedule '@every 3s'\n"

// apply writes the environment file with that many controllers, applies it, and checks that the next plan is empty.
func (m madeFleet) apply(controllers int) {
	m.t.Helper()
	m.file("environments/dev.yaml", fmt.Sprintf(`provider: {driver: nspawn, folder: %s, bridge: %s, subnet: %s}
userdata:
  package_repo: %q
  schedule: "* * * * *"
  post: [%q]
roles:
  controller:
    cardinality: %d
    image: debian
`, m.config.Folder, m.config.Bridge, m.config.Subnet, packages, ticks, controllers))
	file := m.Path("repo/environments/dev.yaml")
	boots := []string{"--agent", filepath.Join(binDir, "pulley-agent"), "--allowed-signers", m.signers}
	began := time.Now()
	out, problem, err := m.try(append([]string{"env", "apply", file, "--yes"}, boots...)...)
	m.t.Logf("%d controllers in %s\n%s%s", controllers, time.Since(began).Round(time.Second), out, problem)
	if err != nil {
		m.t.Fatalf("pulley env apply: %v", err)
	}
	var planned struct {
		Steps   []plan.Step
		Healthy bool
	}
	m.json(&planned, append([]string{"env", "plan", file}, boots...)...)
	for _, step := range planned.Steps {
		if step.Verb != plan.Keep {
			m.t.Errorf("the plan after an apply has the step %+v", step)
		}
	}
	if said := m.pulley(append([]string{"env", "plan", file, "--detailed-exitcodes"}, boots...)...); !strings.Contains(said, "dev: nothing changes\n") {
		m.t.Errorf("the plan after an apply is\n%s", said)
	}
	if controllers > 0 && (len(planned.Steps) != controllers || !planned.Healthy) {
		m.t.Errorf("the plan after an apply is %+v", planned)
	}
}

// machines checks that the driver has this number of machines, and that all are converged nodes. It returns their IDs
// by name.
func (m madeFleet) machines(t *testing.T, want int) map[string]string {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(m.config.Folder, "*", "dev", "*"))
	ids := map[string]string{}
	for _, path := range paths {
		config := m.config
		config.Mark = machines.Mark{Owner: filepath.Base(filepath.Dir(filepath.Dir(path))), Fleet: "dev"}
		is := the(t, newDriver(t, config), filepath.Base(path))
		ids[is.Name] = is.ID
		host, status := m.host(is.Name), m.Status(is.Name)
		if is.State != machines.Running || !host.Registered || !slices.Equal(host.Addresses, is.Addresses) || status.State != "converged" || status.Release != "1.0.0" {
			t.Errorf("%s is %+v, %+v, %+v", is.Name, is, host, status)
		}
		if host.FirstBoot.Finished.IsZero() || host.FirstBoot.Error != "" {
			t.Errorf("the first boot of %s: %+v", is.Name, host.FirstBoot)
		}
		motd, err := os.ReadFile(filepath.Join(path, "upper/etc/pulley-demo/motd"))
		if err != nil || !strings.HasPrefix(string(motd), "A controller, kept by Pulley\n") {
			t.Errorf("Puppet did not work on %s: %q, %v", is.Name, motd, err)
		}
	}
	var hosts []host
	m.json(&hosts, "nodes")
	if len(ids) != want || len(hosts) != want {
		t.Errorf("%d machines and %d nodes, want %d: %v, %+v", len(ids), len(hosts), want, ids, hosts)
	}
	return ids
}

// storyOf logs the output of the machines in folders of environments if the test failed.
func (f *Fleet) storyOf(folders ...string) {
	if !f.t.Failed() {
		return
	}
	for _, folder := range folders {
		for _, name := range []string{"log", "state.json", "upper/var/log/cloud-init-output.log", "upper/var/log/pulley-first-boot.log", "upper/var/log/pulley-bootstrap.log", "upper/var/lib/pulley/first-boot.json"} {
			paths, _ := filepath.Glob(filepath.Join(folder, "*", name))
			for _, path := range paths {
				text, _ := os.ReadFile(path)
				f.t.Logf("--- %s\n%s", path, tail(string(text), 40))
			}
		}
		journals, _ := filepath.Glob(filepath.Join(folder, "*", "upper/var/log/journal"))
		for _, journal := range journals {
			f.t.Logf("--- %s\n%s", journal, tail(f.run("journalctl", "--no-pager", "-q", "-D", journal, "SYSLOG_IDENTIFIER=pulley-agent"), 30))
		}
	}
}

// reports collects the hosts that reported their retirement, each as the path of a request.
type reports struct {
	address string

	lock  sync.Mutex
	names []string
}

// listen starts a server for the reports of hooks.
func listen(t *testing.T, address string) *reports {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "8480"))
	if err != nil {
		t.Fatal(err)
	}
	s := &reports{address: l.Addr().String()}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.lock.Lock()
		defer s.lock.Unlock()
		s.names = append(s.names, strings.TrimPrefix(r.URL.Path, "/"))
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

func (s *reports) hosts() []string {
	s.lock.Lock()
	defer s.lock.Unlock()
	slices.Sort(s.names)
	return slices.Clone(s.names)
}
