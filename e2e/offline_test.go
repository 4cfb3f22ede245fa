//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

const siteHalf = `node default {
  include pulley
  file { '/etc/half-new': content => "new\n" }
  -> exec { '/bin/false': unless => '/bin/test -e /etc/ready' }
}
`

// Without etcd, a node must enforce its target, obey the hold that it read last, give its reason, and report later.
func TestNodeWithoutEtcdKeepsEnforcing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")
	f.settings("controller1", "timeout: 1s", "enforce_interval: 1s")
	f.pulley("promote", "1.0.0")
	f.agent("controller1", 0, "run")

	// The run of 1.1.0 fails in the middle.
	f.publish("1.1.0", siteHalf)
	f.pulley("promote", "1.1.0")
	contains(t, f.agent("controller1", 1, "run"), "failed on 1.1.0")
	contains(t, f.read("controller1", "/etc/half-new"), "new")

	// Offline, the node stays on the new target. Only an operator may roll back.
	f.down()
	f.write("controller1", "/etc/half-new", "vandal")
	f.write("controller1", "/etc/ready", "")
	f.until("the new target to be enforced offline", func() (bool, string) {
		out, _ := f.machines["controller1"].Command(t.Context(), agentPath, "run", "--force").CombinedOutput()
		return strings.Contains(string(out), "changed on 1.1.0"), string(out)
	})
	contains(t, f.read("controller1", "/etc/half-new"), "new")
	out := f.agent("controller1", 3, "run", "--force")
	contains(t, out, "cannot connect to etcd")
	contains(t, f.agent("controller1", 0, "status"), "run records")

	// Back online it reports all runs.
	f.up()
	f.agent("controller1", 0, "run")
	f.expect("controller1", "converged", "1.1.0", "unchanged")
	if runs := f.pulley("runs", "controller1"); strings.Count(runs, "on 1.1.0")+strings.Count(runs, "1.1.0") < 3 {
		t.Errorf("the offline runs are missing:\n%s", runs)
	}

	// The last hold applies offline too.
	f.pulley("hold", "--stop", "--why", "surgery")
	contains(t, f.agent("controller1", 0, "run"), "surgery")
	f.down()
	contains(t, f.agent("controller1", 3, "run", "--force"), "a hold stops Puppet")
	f.up()
	f.pulley("unhold")
	contains(t, f.agent("controller1", 0, "run", "--force"), "on 1.1.0")
}
