//go:build e2e

package nspawn

import (
	"strings"
	"testing"
	"time"
)

// managed are the ways in which systemd starts the old agent, on most machines.
var managed = []struct {
	name    string
	unit    string            // that has it started
	runs    string            // that it runs in
	removed string            // what the unit is in the end
	files   map[string]string // of the machine, beside Puppet's package
}{
	{"service", "puppet.service", "puppet.service", "masked", nil},
	{"timer", "puppet-run.timer", "puppet-run.service", "disabled", map[string]string{
		"/etc/systemd/system/puppet-run.timer":   "[Timer]\nOnBootSec=1\nOnUnitInactiveSec=20\nAccuracySec=1\n[Install]\nWantedBy=timers.target\n",
		"/etc/systemd/system/puppet-run.service": "[Service]\nType=oneshot\nExecStart=/usr/bin/puppet agent --onetime --no-daemonize\n",
	}},
}

// Were the old agent only disabled, it would run on until the next boot; were its unit not masked, its package's next upgrade
// would bring it back.
func TestTakingOverFromSystemd(t *testing.T) {
	t.Parallel()
	for _, c := range managed {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := NewFleet(t, 1)
			m := NewMachine(t)
			for name, text := range c.files {
				m.Write(name, text)
			}
			m.Write("/etc/apt/sources.list", packages+"\n")
			m.Write("/etc/puppet/puppet.conf", "[main]\nserver = 127.0.0.1\nruninterval = 10s\nhttp_connect_timeout = 2s\n")
			m.Write("/root/join", f.Userdata("compute1", "--hostname", "keep"))
			m.Seed(map[string]string{"user-data": "#!/bin/sh\nset -e\nexport DEBIAN_FRONTEND=noninteractive\napt-get -q update\n" +
				"apt-get -q -y -o Dpkg::Options::=--force-confold install puppet-agent\npuppet apply -e ''\nsystemctl enable --now " + c.unit + "\ntouch /root/managed\n"})
			m.Boot()
			m.Wait("the old agent", 3*time.Minute, func() string {
				if !m.Has("/root/managed") {
					return "cloud-init is at work"
				}
				return ""
			})

			in := func(program string, args ...string) string {
				t.Helper()
				out, err := m.In(2*time.Minute, program, args...)
				if err != nil {
					t.Fatalf("%s %s: %v: %s\n%s", program, strings.Join(args, " "), err, out, m.Story())
				}
				return out
			}
			unit := func(active, enabled string) {
				t.Helper()
				is, _ := m.In(time.Minute, "systemctl", "is-active", c.unit) // its exit code says the same
				was, _ := m.In(time.Minute, "systemctl", "is-enabled", c.unit)
				if is != active+"\n" || was != enabled+"\n" {
					t.Fatalf("%s is %s, %s; want %s, %s", c.unit, strings.TrimSpace(is), strings.TrimSpace(was), active, enabled)
				}
			}
			says := func(text, want string) {
				t.Helper()
				if !strings.Contains(text, want) {
					t.Fatalf("%q is not in\n%s", want, text)
				}
			}
			unit("active", "enabled")

			in("sh", "/root/join")
			m.Wait("the first boot", 3*time.Minute, m.Finished)
			m.Wait("its last words", time.Minute, func() string {
				said := in("journalctl", "--no-pager", "--unit", "pulley-first-boot.service")
				if !strings.Contains(said, "puppet agent manages this machine, and goes on to") {
					return said
				}
				return ""
			})
			unit("active", "enabled")
			if m.Has("/etc/cron.d/pulley-agent") {
				t.Error("there are two schedules")
			}
			m.Wait("a look, when the old agent is not at work", 4*time.Minute, func() string {
				out, err := m.In(2*time.Minute, "pulley-agent", "takeover", "look")
				if err != nil || !strings.Contains(out, "starts puppet agent: "+c.unit+" is enabled, and runs\n") || !strings.Contains(out, "a run would change ") {
					return out
				}
				return ""
			})

			says(in("pulley-agent", "takeover", "disable"), "puppet agent is disabled")
			unit("inactive", "disabled")
			m.Cut()
			m.Boot()
			m.Wait("release 1.0.0, by cron", 4*time.Minute, f.Converged("compute1", "1.0.0"))
			unit("inactive", "disabled")

			says(in("pulley-agent", "takeover", "remove"), "what started puppet agent is gone")
			unit("inactive", c.removed)
			if out, err := m.In(time.Minute, "systemctl", "start", c.unit); c.removed == "masked" && (err == nil || !strings.Contains(out, "masked")) {
				t.Errorf("it starts all the same: %v, %s", err, out)
			}
			in("systemctl", "stop", c.unit)
			in("apt-get", "-q", "-y", "install", "--reinstall", "puppet-agent") // as an upgrade does
			unit("inactive", c.removed)

			says(in("pulley-agent", "takeover", "undo"), "puppet agent is as it was found")
			unit("active", "enabled")
			if m.Has("/etc/cron.d/pulley-agent") {
				t.Error("Pulley's schedule is left")
			}
			since := strings.TrimSpace(in("date", "+%F %T"))
			m.Wait("the old agent at work", 2*time.Minute, func() string {
				said := in("journalctl", "--no-pager", "--since", since, "--unit", c.runs)
				if !strings.Contains(said, "puppet-agent[") || strings.Contains(said, "administratively disabled") {
					return said
				}
				return ""
			})
		})
	}
}
