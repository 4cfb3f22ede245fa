//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// A machine that `puppet agent` manages must have one manager at any time, and `takeover undo` must restore it. The
// part with cron also proves that cron alone converges a node: the agent's file, its PATH and its logging are right.
func TestTakeoverFromPuppetAgent(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.pulley("promote", "1.0.0")
	f.start("controller1")
	const old = "# the old agent\n* * * * * root echo ran >>/root/old; puppet agent --onetime --no-daemonize --server 127.0.0.1\n"
	f.write("controller1", "/etc/cron.d/puppet", old)
	puppet := func() string { // without a server; a disabled agent does not contact one
		return f.in("controller1", 0, "sh", "-c", "puppet agent --onetime --no-daemonize --verbose --server 127.0.0.1 --http_connect_timeout 2 2>&1; true")
	}
	if said := puppet(); strings.Contains(said, "administratively disabled") {
		t.Fatal(said)
	}

	// Make it a node, beside the old agent.
	contains(t, f.agent("controller1", 0, "bootstrap", "--node", "controller1", "-e", "dev", "--endpoints", f.endpoint, "--schedule", "* * * * *"),
		"Puppet manages this machine without Pulley, and still runs")
	f.in("controller1", 0, "test", "!", "-e", "/etc/cron.d/pulley-agent")
	if s := f.status("controller1"); s.State != "pending" {
		t.Errorf("it is %s", s.State)
	}
	look := f.agent("controller1", 0, "takeover", "look")
	contains(t, look, "starts puppet agent: /etc/cron.d/puppet: * * * * * root echo ran")
	contains(t, look, "controller1: a run would change ")
	f.in("controller1", 0, "test", "!", "-e", "/etc/cron.d/pulley-agent")

	// A manual `puppet agent --disable` is not overridden.
	f.in("controller1", 0, "puppet", "agent", "--disable", "moving the rack")
	contains(t, f.agent("controller1", 1, "takeover", "disable"), "puppet is disabled on this machine")
	f.in("controller1", 0, "puppet", "agent", "--enable")
	if now := f.read("controller1", "/etc/cron.d/puppet"); now != old {
		t.Errorf("the crontab of the old agent changed to %s", now)
	}

	contains(t, f.agent("controller1", 0, "takeover", "disable"), "puppet agent is disabled")
	// From now on `puppet agent --disable` changes nothing, and `pulley-agent disable` does.
	f.in("controller1", 0, "puppet", "agent", "--disable", "maintenance")
	contains(t, puppet(), "administratively disabled (Reason: 'taken over by Pulley on ")
	f.agent("controller1", 0, "disable", "maintenance")
	contains(t, f.agent("controller1", 0, "run", "--force"), "runs are disabled on the machine: maintenance")
	f.agent("controller1", 0, "enable")
	contains(t, f.read("controller1", "/etc/cron.d/pulley-agent"), "* * * * * root")

	// cron starts Pulley, and not the old agent. Without splay it starts at the full minute.
	f.in("controller1", 0, "sed", "-i", "s/run --splay/run/", "/etc/cron.d/pulley-agent")
	f.in("controller1", 0, "rm", "-f", "/root/old")
	f.in("controller1", 0, "/usr/sbin/cron")
	f.until("cron to converge the node", func() (bool, string) {
		s := f.status("controller1")
		return s.State == "converged", s.State + " " + s.Reason
	})
	f.in("controller1", 0, "test", "!", "-e", "/root/old")
	f.expect("controller1", "converged", "1.0.0", "changed")

	contains(t, f.agent("controller1", 0, "takeover", "remove"), "everything that started puppet agent is removed")
	if now := f.read("controller1", "/etc/cron.d/puppet"); now != "# the old agent\n" {
		t.Errorf("its crontab is %s", now)
	}
	contains(t, f.agent("controller1", 0, "run", "--force"), "on 1.0.0")

	contains(t, f.agent("controller1", 0, "takeover", "undo"), "puppet agent is restored")
	if now := f.read("controller1", "/etc/cron.d/puppet"); now != old {
		t.Errorf("its crontab is %s", now)
	}
	f.in("controller1", 0, "test", "!", "-e", "/etc/cron.d/pulley-agent")
	if said := puppet(); strings.Contains(said, "administratively disabled") {
		t.Errorf("it is still disabled: %s", said)
	}

	// A second bootstrap leaves the old agent as the only manager.
	contains(t, f.agent("controller1", 0, "bootstrap", "--node", "controller1", "-e", "dev", "--endpoints", f.endpoint, "--schedule", "* * * * *"),
		"Puppet manages this machine without Pulley, and still runs")
	f.in("controller1", 0, "test", "!", "-e", "/etc/cron.d/pulley-agent")
}
