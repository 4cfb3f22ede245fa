//go:build e2e

package e2e

import (
	"os"
	"testing"
)

// A node must reach its release with real etcd and real Puppet. Then it must start no Puppet until there is work.
func TestNodeConvergesAndRests(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")

	// Before a promotion the node registers, sets up its schedule and waits.
	contains(t, f.read("controller1", "/etc/cron.d/pulley-agent"), "pulley-agent run")
	contains(t, f.agent("controller1", 0, "run"), "no release is promoted for the node")
	if s := f.status("controller1"); s.State != "pending" {
		t.Fatalf("before any release: %+v", s)
	}

	f.pulley("promote", "1.0.0")
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.0.0")
	f.expect("controller1", "converged", "1.0.0", "changed")

	// A second run starts no Puppet: there is no new run folder.
	before := f.in("controller1", 0, "ls", "/var/lib/pulley/runs")
	contains(t, f.agent("controller1", 0, "run"), "nothing to do")
	if after := f.in("controller1", 0, "ls", "/var/lib/pulley/runs"); after != before {
		t.Errorf("the run folders were %s and are %s", before, after)
	}

	// Bootstrap may be repeated. It does not change the schedule, which the release manages now.
	schedule := f.read("controller1", "/etc/cron.d/pulley-agent")
	f.agent("controller1", 0, "bootstrap")
	f.expect("controller1", "converged", "1.0.0", "changed")
	if now := f.read("controller1", "/etc/cron.d/pulley-agent"); now != schedule {
		t.Errorf("the release's schedule was replaced by %s", now)
	}

	// A manual change is drift: corrected, and shown.
	f.write("controller1", "/etc/pulley-demo/motd", "vandal")
	contains(t, f.agent("controller1", 0, "run", "--force"), "changed on 1.0.0")
	contains(t, f.pulley("runs", "controller1"), "drift")

	// The server keeps its data over a restart.
	f.down()
	f.up()
	contains(t, f.agent("controller1", 0, "run"), "nothing to do")
	f.expect("controller1", "converged", "1.0.0", "changed")

	// Live data of a role reaches the node.
	out := f.pulley("data", "set", "--role", "controller", "profile::base::message", "from live data")
	contains(t, out, "layer roles/controller changed")
	contains(t, out, "shadows")
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.0.0 with data 1")
	contains(t, f.read("controller1", "/etc/pulley-demo/motd"), "from live data")

	for _, path := range []string{"/etc/cron.d/pulley-agent", "/etc/pulley-demo", "/etc/pulley", "/var/lib/pulley"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the host has %s", path)
		}
	}
}
