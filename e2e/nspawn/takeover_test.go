//go:build e2e

package nspawn

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// On most machines the old agent is a service of systemd: were it only disabled, it would run on until the next boot; were it not
// masked, its package's next upgrade would bring it back.
func TestTakingOverFromTheService(t *testing.T) {
	t.Parallel()
	f := NewFleet(t, 1)
	m := NewMachine(t)
	m.Write("/etc/apt/sources.list", packages+"\n")
	m.Write("/etc/puppet/puppet.conf", "[main]\nserver = 127.0.0.1\nruninterval = 10s\nhttp_connect_timeout = 2s\n")
	m.Write("/root/join", f.Userdata("compute1", "--hostname", "keep"))
	m.Seed(map[string]string{"user-data": "#!/bin/sh\nset -e\nexport DEBIAN_FRONTEND=noninteractive\napt-get -q update\napt-get -q -y -o Dpkg::Options::=--force-confold install puppet-agent\n" +
		"puppet apply -e ''\nsystemctl enable --now puppet.service\ntouch /root/managed\n"})
	m.Boot()
	m.Wait("puppet's service", 3*time.Minute, func() string {
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
	service := func(active, enabled string) {
		t.Helper()
		is, _ := m.In(time.Minute, "systemctl", "is-active", "puppet.service") // its exit code says the same
		was, _ := m.In(time.Minute, "systemctl", "is-enabled", "puppet.service")
		if is != active+"\n" || was != enabled+"\n" {
			t.Fatalf("the service is %s, %s; want %s, %s", strings.TrimSpace(is), strings.TrimSpace(was), active, enabled)
		}
	}
	says := func(text, want string) {
		t.Helper()
		if !strings.Contains(text, want) {
			t.Fatalf("%q is not in\n%s", want, text)
		}
	}
	service("active", "enabled")

	in("sh", "/root/join")
	m.Wait("the first boot", 3*time.Minute, m.Finished)
	says(in("journalctl", "--no-pager", "--unit", "pulley-first-boot.service"), "puppet agent manages this machine, and goes on to")
	service("active", "enabled")
	if m.Has("/etc/cron.d/pulley-agent") {
		t.Error("there are two schedules")
	}
	says(in("pulley-agent", "takeover", "look"), "puppet.service is enabled, and runs")

	says(in("pulley-agent", "takeover", "disable"), "puppet agent is disabled")
	service("inactive", "disabled")
	m.Cut()
	m.Boot()
	m.Wait("release 1.0.0, by cron", 4*time.Minute, f.Converged("compute1", "1.0.0"))
	service("inactive", "disabled")

	says(in("pulley-agent", "takeover", "remove"), "what started puppet agent is gone")
	service("inactive", "masked")
	if out, err := m.In(time.Minute, "systemctl", "start", "puppet.service"); err == nil || !strings.Contains(out, "masked") {
		t.Errorf("it starts all the same: %v, %s", err, out)
	}
	in("apt-get", "-q", "-y", "install", "--reinstall", "puppet-agent") // as an upgrade does
	service("inactive", "masked")

	says(in("pulley-agent", "takeover", "undo"), "puppet agent is as it was found")
	service("active", "enabled")
	if m.Has("/etc/cron.d/pulley-agent") {
		t.Error("Pulley's schedule is left")
	}
	m.Wait("the old agent at work", time.Minute, func() string {
		said := in("journalctl", "--no-pager", "--boot", "--unit", "puppet.service")
		if !strings.Contains(said, "puppet-agent[") || strings.Contains(said, "administratively disabled") {
			return fmt.Sprintf("it says %s", said)
		}
		return ""
	})
}
