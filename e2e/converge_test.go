//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"
)

// From nothing to a node on its release, with real etcd and real Puppet; and then rest.
func TestNodeConvergesAndThenRests(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")

	// Before any release is promoted it registers, schedules and waits.
	contains(t, f.read("controller1", "/etc/cron.d/pulley-agent"), "pulley-agent run")
	contains(t, f.agent("controller1", 0, "run"), "no release was promoted for it yet")
	if s := f.status("controller1"); s.State != "pending" {
		t.Fatalf("before any release: %+v", s)
	}

	f.pulley("promote", "1.0.0")
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.0.0")
	f.expect("controller1", "converged", "1.0.0", "changed")

	// A second run does nothing, and starts no Puppet: the first one's log stays the newest.
	before := f.in("controller1", 0, "ls", "/var/lib/pulley/runs")
	contains(t, f.agent("controller1", 0, "run"), "nothing to do")
	if after := f.in("controller1", 0, "ls", "/var/lib/pulley/runs"); after != before {
		t.Errorf("a run with nothing to do left %s where there was %s", after, before)
	}

	// Bootstrap may run again at any point.
	f.agent("controller1", 0, "bootstrap")
	f.expect("controller1", "converged", "1.0.0", "changed")

	// A change by hand is drift: enforced, and shown.
	f.write("controller1", "/etc/pulley-demo/motd", "vandal")
	contains(t, f.agent("controller1", 0, "run", "--force"), "changed on 1.0.0")
	contains(t, f.pulley("runs", "controller1"), "drift")

	// A restart of the server finds everything again.
	f.down()
	f.up()
	contains(t, f.agent("controller1", 0, "run"), "nothing to do")
	f.expect("controller1", "converged", "1.0.0", "changed")

	for _, path := range []string{"/etc/cron.d/pulley-agent", "/etc/pulley-demo", "/etc/pulley", "/var/lib/pulley"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the host has %s", path)
		}
	}
}

// Live data of a role reaches that role's nodes only, and Puppet itself can say where a value comes from.
func TestDataOfARoleReachesOnlyItsNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")
	f.machine("compute1")
	f.pulley("promote", "1.0.0")
	f.agent("controller1", 0, "run")
	f.agent("compute1", 0, "run")

	out := f.pulley("data", "set", "--role", "controller", "profile::base::message", "from live data")
	contains(t, out, "layer roles/controller changed")
	contains(t, out, "shadows")
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.0.0 with data 1")
	contains(t, f.read("controller1", "/etc/pulley-demo/motd"), "from live data")
	contains(t, f.agent("compute1", 0, "run"), "nothing of the new target concerns this node")
	if motd := f.read("compute1", "/etc/pulley-demo/motd"); strings.Contains(motd, "from live data") {
		t.Errorf("compute1 has a controller's data: %s", motd)
	}
	f.expect("compute1", "converged", "1.0.0", "changed")

	explained := f.agent("controller1", 0, "puppet", "--", "lookup", "--explain", "profile::base::message")
	contains(t, explained, "Pulley role layer")
	contains(t, explained, "from live data")

	// Types survive: a number is a number, a text that looks like one is a text.
	f.pulley("data", "set", "demo::number", "8080")
	f.pulley("data", "set", "demo::text", `"8080"`)
	f.agent("controller1", 0, "run")
	contains(t, f.agent("controller1", 0, "puppet", "--", "lookup", "--render-as", "json", "demo::number"), "8080")
	contains(t, f.agent("controller1", 0, "puppet", "--", "lookup", "--render-as", "json", "demo::text"), `"8080"`)
}
