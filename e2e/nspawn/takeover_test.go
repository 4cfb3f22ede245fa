//go:build e2e

package nspawn

import (
	"fmt"
	"strings"
	"testing"
)

// manager is a way in which systemd starts the old agent.
type manager struct {
	name    string
	unit    string            // enabled unit
	runs    string            // unit that runs the agent
	removed string            // state of the unit after `takeover remove`
	files   map[string]string // of the machine, beside Puppet's package
}

// managed are the usual ways.
var managed = []manager{
	{"service", "puppet.service", "puppet.service", "masked", nil},
	{"timer", "puppet-run.timer", "puppet-run.service", "disabled", map[string]string{
		"/etc/systemd/system/puppet-run.timer":   "[Timer]\nOnBootSec=1\nOnUnitInactiveSec=30\nAccuracySec=1\n[Install]\nWantedBy=timers.target\n",
		"/etc/systemd/system/puppet-run.service": "[Service]\nType=oneshot\nExecStart=/usr/bin/puppet agent --onetime --no-daemonize\n",
	}},
}

// The takeover must stop and disable the old agent, survive a reboot, and survive an upgrade of its package. A timer is taken over where
// PULLEY_TEST_MACHINES is "all".
func TestTakeoverFromSystemd(t *testing.T) {
	t.Parallel()
	managed := managed
	if !allMachines {
		managed = managed[:1]
	}
	all := newFleet(t, len(managed))
	t.Run("by", func(t *testing.T) { // returns when its parallel subtests have ended
		for i, c := range managed {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				takeOver(t, all.For(t), fmt.Sprintf("compute%d", i+1), c)
			})
		}
	})
}

// takeOver takes a machine over from its old agent, and then reverts it.
func takeOver(t *testing.T, f *Fleet, node string, c manager) {
	t.Helper()
	m := newMachineWithPuppet(t)
	for name, text := range c.files {
		m.Write(name, text)
	}
	m.Write("/etc/apt/sources.list", packages+"\n")
	m.Write("/etc/puppet/puppet.conf", "[main]\nserver = 127.0.0.1\nruninterval = 30s\nhttp_connect_timeout = 2s\n")
	m.Write("/root/join", f.Userdata(node, "--hostname", "keep"))
	m.Seed(map[string]string{"user-data": "#!/bin/sh\nset -e\nexport DEBIAN_FRONTEND=noninteractive\napt-get -q update\n" +
		"puppet apply -e ''\nsystemctl enable --now " + c.unit + "\ntouch /root/managed\n"})
	m.boot() // at once: this is the longest test, and no first boot of it installs Puppet
	m.Wait("the old agent", func() string {
		if !m.Has("/root/managed") {
			return "cloud-init has not started it yet"
		}
		return ""
	})

	in := func(program string, args ...string) string {
		t.Helper()
		out, err := m.In(program, args...)
		if err != nil {
			t.Fatalf("%s %s: %v: %s\n%s", program, strings.Join(args, " "), err, out, m.story())
		}
		return out
	}
	unit := func(active, enabled string) {
		t.Helper()
		is, _ := m.In("systemctl", "is-active", c.unit) // the exit code contains nothing more
		was, _ := m.In("systemctl", "is-enabled", c.unit)
		if is != active+"\n" || was != enabled+"\n" {
			t.Fatalf("%s is %s, %s; want %s, %s", c.unit, strings.TrimSpace(is), strings.TrimSpace(was), active, enabled)
		}
	}
	contains := func(text, want string) {
		t.Helper()
		if !strings.Contains(text, want) {
			t.Fatalf("%q is not in\n%s", want, text)
		}
	}
	unit("active", "enabled")

	in("sh", "/root/join")
	m.Wait("the first boot", m.Finished)
	m.Wait("the report of the first boot", func() string {
		said := in("journalctl", "--no-pager", "--unit", "pulley-first-boot.service")
		if !strings.Contains(said, "Puppet manages this machine without Pulley, and still runs") {
			return "the journal has\n" + said
		}
		return ""
	})
	unit("active", "enabled")
	if m.Has("/etc/cron.d/pulley-agent") {
		t.Error("Pulley has a schedule beside the old agent's")
	}
	m.Wait("a look between two runs of the old agent", func() string {
		out, err := m.In("pulley-agent", "takeover", "look")
		if err != nil || !strings.Contains(out, "starts puppet agent: "+c.unit+" is enabled, and runs\n") || !strings.Contains(out, "a run would change ") {
			return out
		}
		return ""
	})

	contains(in("pulley-agent", "takeover", "disable"), "puppet agent is disabled")
	unit("inactive", "disabled")
	m.cut()
	m.boot()
	m.Wait("release 1.0.0, by cron", f.converged(node, "1.0.0"))
	unit("inactive", "disabled")

	contains(in("pulley-agent", "takeover", "remove"), "everything that started puppet agent is removed")
	unit("inactive", c.removed)
	if out, err := m.In("systemctl", "start", c.unit); c.removed == "masked" && (err == nil || !strings.Contains(out, "masked")) {
		t.Errorf("a masked unit starts: %v, %s", err, out)
	}
	in("systemctl", "stop", c.unit)
	in("apt-get", "-q", "-y", "install", "--reinstall", "puppet-agent") // as in an upgrade
	unit("inactive", c.removed)

	contains(in("pulley-agent", "takeover", "undo"), "puppet agent is restored")
	unit("active", "enabled")
	if m.Has("/etc/cron.d/pulley-agent") {
		t.Error("Pulley's schedule is left")
	}
	since := strings.TrimSpace(in("date", "+%F %T"))
	m.Wait("a run of the old agent", func() string {
		said := in("journalctl", "--no-pager", "--since", since, "--unit", c.runs)
		if !strings.Contains(said, "puppet-agent[") || strings.Contains(said, "administratively disabled") {
			return said
		}
		return ""
	})
}
