//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

const siteHalf = `node default {
  include pulley
  file { '/etc/half-new': content => "new\n" }
  -> exec { '/bin/false': unless => '/bin/test -e /etc/ready' }
}
`

// until polls for a condition, two minutes at most.
func (f *fleet) until(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); {
		if time.Now().After(end) {
			f.t.Fatalf("waited two minutes for %s", what)
		}
	}
}

// Without etcd a node goes on with what it was enforcing, obeys the hold that it saw, says why, and reports later.
func TestNodeWithoutEtcdGoesOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")
	f.settings("controller1", "timeout: 1s", "enforce_interval: 1s")
	f.pulley("promote", "1.0.0")
	f.agent("controller1", 0, "run")

	// It comes to stand between 1.0.0 and 1.1.0.
	f.publish("1.1.0", siteHalf)
	f.pulley("promote", "1.1.0")
	contains(t, f.agent("controller1", 1, "run"), "failed on 1.1.0")
	contains(t, f.read("controller1", "/etc/half-new"), "new")

	// Offline it stays on the new target: going back by itself would be a decision that nobody took.
	f.down()
	f.write("controller1", "/etc/half-new", "vandal")
	f.write("controller1", "/etc/ready", "")
	f.until("the new target to be enforced offline", func() bool {
		out, _ := f.machines["controller1"].Command(t.Context(), agentPath, "run", "--force").CombinedOutput()
		return strings.Contains(string(out), "changed on 1.1.0")
	})
	contains(t, f.read("controller1", "/etc/half-new"), "new")
	out := f.agent("controller1", 3, "run", "--force")
	contains(t, out, "etcd is unreachable")
	contains(t, f.agent("controller1", 0, "status"), "run records wait for etcd")

	// Back online it tells what happened.
	f.up()
	f.agent("controller1", 0, "run")
	f.expect("controller1", "converged", "1.1.0", "unchanged")
	if runs := f.pulley("runs", "controller1"); strings.Count(runs, "on 1.1.0")+strings.Count(runs, "1.1.0") < 3 {
		t.Errorf("the runs that happened offline are missing:\n%s", runs)
	}

	// A hold that it saw counts offline too.
	f.pulley("hold", "--stop", "--why", "surgery")
	contains(t, f.agent("controller1", 0, "run"), "surgery")
	f.down()
	contains(t, f.agent("controller1", 3, "run", "--force"), "an operator's hold says not to run Puppet")
	f.up()
	f.pulley("unhold")
	contains(t, f.agent("controller1", 0, "run", "--force"), "on 1.1.0")
}
