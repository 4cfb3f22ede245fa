//go:build e2e

package nspawn

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/firstboot"
	"pulley/internal/join"
)

// Every machine of a fleet becomes a node this way: a first boot, then ticks by cron. A failure would require a manual
// login.
func TestMachineBecomesNodeUnattended(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	m := NewMachine(t)
	network := f.Path("network.yaml")
	if err := os.WriteFile(network, []byte(m.networkConfig()), 0o644); err != nil {
		t.Fatal(err)
	}
	f.Userdata("compute1", "--format", "nocloud", "--to", m.seedPath(), "--network-config", network)

	booted := time.Now()
	m.becomeNode() // from here on only the boot, cron, and an operator's commands
	if cron := m.Read("/etc/cron.d/pulley-agent"); !strings.Contains(cron, "\n* * * * * root ") {
		t.Errorf("the schedule is\n%s", cron)
	}
	if name := m.Read("/etc/hostname"); name != "compute1\n" {
		t.Errorf("the hostname is %q", name)
	}
	if nodes := f.pulley("nodes"); !strings.Contains(nodes, m.Address) {
		t.Errorf("%s is not on the host list:\n%s", m.Address, nodes)
	}

	m.Wait("release 1.0.0, by cron", f.converged("compute1", "1.0.0"))
	t.Logf("durations:\n%s", m.timeline(booted, time.Now()))
	if motd := m.Read("/etc/pulley-demo/motd"); motd != "A compute node, kept by Pulley\n" {
		t.Errorf("release 1.0.0 made %q", motd)
	}

	f.replace("hieradata/roles/compute.yaml", "A compute node", "The next release")
	f.useCoreTypes("compute")
	f.useEyaml("compute", "profile::base::notes: ['%s']\n", "a secret")
	f.Release("1.1.0")
	m.Wait("the failure without the eyaml key, by cron", func() string {
		runs, problem, _ := f.try("runs", "compute1", "latest")
		if strings.Contains(runs, "hiera-eyaml cannot decrypt data on this machine") && strings.Contains(runs, "/etc/pulley/eyaml/compute.pem") {
			return ""
		}
		return runs + problem
	})
	m.putKeys(f, "compute")
	m.Wait("release 1.1.0, by cron", f.converged("compute1", "1.1.0"))
	if motd := m.Read("/etc/pulley-demo/motd"); motd != "The next release, kept by Pulley\na secret\n" {
		t.Errorf("release 1.1.0 made %q", motd)
	}
	if hosts, tab := m.Read("/etc/hosts"), m.Read("/var/spool/cron/crontabs/root"); !strings.Contains(hosts, "192.0.2.7\tbooks.example") || !strings.Contains(tab, "@yearly /bin/true\n") {
		t.Errorf("release 1.1.0 made /etc/hosts\n%s\nand the crontab\n%s", hosts, tab)
	}
	if fstab := m.Read("/etc/fstab"); !strings.Contains(fstab, "/mnt\ttmpfs") {
		t.Errorf("release 1.1.0 made /etc/fstab\n%s", fstab)
	}
}

// An autoscaling group starts machines simultaneously with the same userdata, and powers them off. Each must get its
// own number, and a machine that is powered off must free its number.
func TestMachinesOfGroupClaimNumbers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	same := f.Userdata("--group", "compute", "--format", "multipart")
	group := []*Machine{newMachineWithPuppet(t), newMachineWithPuppet(t)}
	done := takeSlots(t, len(group))
	for _, m := range group {
		m.Seed(map[string]string{"user-data": same})
		m.boot()
	}
	named := map[string]*Machine{}
	for _, m := range group {
		m.Wait("the first boot", m.Finished)
		named[strings.TrimSpace(m.Read("/etc/hostname"))] = m
	}
	done()
	one, two := named["compute1"], named["compute2"]
	if one == nil || two == nil {
		t.Fatalf("the machines are %v", named)
	}
	for node, m := range named {
		if is := f.host(node); !is.Registered || len(is.Addresses) == 0 || is.Addresses[0] != m.Address {
			t.Errorf("%s at %s is on the host list as %+v", node, m.Address, is)
		}
	}

	if out, err := one.In("systemctl", "--no-block", "reboot"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	one.off()
	if out, err := two.In("systemctl", "--no-block", "poweroff"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	two.off()
	if !f.host("compute1").Registered {
		t.Errorf("a reboot removed the machine from the fleet\n%s", one.story())
	}
	if f.host("compute2").Registered {
		t.Errorf("a machine that was powered off is still in the fleet\n%s", two.story())
	}
	one.boot()
	one.Wait("a tick after the reboot", func() string { return one.Tick() + f.converged("compute1", "1.0.0")() })

	next := newMachineWithPuppet(t)
	next.Seed(map[string]string{"user-data": same})
	next.becomeNode()
	if is := f.host("compute2"); !is.Registered || len(is.Addresses) == 0 || is.Addresses[0] != next.Address {
		t.Errorf("the freed number: compute2 is %+v", is)
	}
	nothingStays(t, f, next)
}

// nothingStays removes Pulley from a node: no unit, crontab, file or process of Pulley may be left, except what Puppet made.
func nothingStays(t *testing.T, f *Fleet, m *Machine) {
	t.Helper()
	said, err := m.In("pulley-agent", "leave", "--clean")
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, said, m.story())
	}
	for _, want := range []string{"compute2: left dev\n", "removed: /etc/cron.d/pulley-agent\n", "removed: /etc/systemd/system/pulley-leave.service\n",
		"removed: /var/lib/pulley\n", "removed: /usr/local/bin/pulley-agent\n", "stays: Puppet and other packages, the hostname, and the changes that Puppet made\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not report %q:\n%s", want, said)
		}
	}
	left, err := m.In("sh", "-c", "find /etc /usr /opt /root /run /var /dev/shm -name '*pulley*' ! -path '*/log/*' ! -path '/var/lib/cloud/*' ! -path /etc/pulley-demo; systemctl list-units --all --full '*pulley*' --no-legend; pgrep -a pulley-agent")
	if left != "" {
		t.Errorf("of Pulley is left (%v):\n%s\nafter\n%s", err, left, said)
	}
	if f.host("compute2").Registered {
		t.Error("it is still in the fleet")
	}
}

// A machine that was sold or stolen must not join again. Its console must show the reason.
func TestRemovedNodeIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	seed := f.Path("seed")
	f.Userdata("compute1", "--format", "nocloud", "--to", seed)
	again := f.Userdata("compute1", "--format", "cloud-config") // with its own token, created before the removal
	m := newMachineWithPuppet(t)
	m.Seed(f.fromSeed(seed))
	m.becomeNode()

	f.pulley("nodes", "remove", "--yes", "compute1", "-m", "sold")
	m.Wait("a tick that reports the removal", func() string {
		m.Tick()
		if journal := m.journal() + m.ticked; !strings.Contains(journal, "removed") {
			return "neither journal nor tick reports it"
		}
		return ""
	})
	m.cut()

	reinstalled := newMachineWithPuppet(t)
	reinstalled.Seed(map[string]string{"user-data": again})
	done := takeSlots(t, 1)
	reinstalled.boot()
	reinstalled.Wait("a refusal", func() string {
		if step := reinstalled.firstBoot().Steps[firstboot.Join]; strings.Contains(step.Error, "removed from the fleet") && strings.Contains(step.Error, "sold") {
			return ""
		}
		return reinstalled.Finished()
	})
	done()
	if is := f.host("compute1"); is.Registered {
		t.Errorf("a removed node is registered again: %+v", is)
	}
	if counted := fmt.Sprintf("pulley_join_refusals_total{reason=%q}", join.WasRemoved); !strings.Contains(f.metrics(), counted) {
		t.Errorf("the metrics do not count the refusal as %s", counted)
	}
}

// An image of a running node makes duplicate machines. The duplicate must change nothing, and `doctor` must report it.
func TestDuplicateMachineIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	m := newMachineWithPuppet(t)
	m.Seed(map[string]string{"user-data": f.Userdata("compute1")})
	m.becomeNode()
	m.Wait("release 1.0.0", func() string { return m.Tick() + f.converged("compute1", "1.0.0")() })
	m.cut()
	m.Write("/etc/pulley/agent.yaml", m.Read("/etc/pulley/agent.yaml")+"heartbeat: 1s\n")
	duplicate := m.duplicate()
	m.boot()
	duplicate.boot()
	duplicate.Wait("a tick of the duplicate that is refused", func() string {
		duplicate.Tick()
		if !strings.Contains(duplicate.ticked+duplicate.journal(), "another machine has this node's name") {
			return "neither journal nor tick reports it"
		}
		return ""
	})
	m.Wait("a finding of doctor", func() string {
		m.Tick()
		found := f.doctor()
		if slices.ContainsFunc(found, func(f finding) bool { return f.Check == "duplicate" && f.Node == "compute1" && f.Severity == "problem" }) {
			return ""
		}
		duplicate.Tick()
		return fmt.Sprintf("pulley doctor reports %+v\n%s\n%s", found, m.ticked, duplicate.ticked)
	})
	f.replace("hieradata/roles/compute.yaml", "A compute node", "The next release")
	f.Release("1.1.0")
	duplicate.Wait("another tick of the duplicate", func() string {
		duplicate.Tick()
		if !strings.Contains(duplicate.ticked, "another machine has this node's name") {
			return duplicate.ticked
		}
		return ""
	})
	if motd := duplicate.Read("/etc/pulley-demo/motd"); motd != "A compute node, kept by Pulley\n" {
		t.Errorf("the duplicate took the next release: %q", motd)
	}
}
