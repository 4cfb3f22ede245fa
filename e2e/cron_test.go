//go:build e2e

package e2e

import (
	"testing"
)

// From the first boot on nobody but cron starts the agent: if its file, its PATH or its logging were wrong, a fleet would
// stand still without a word.
func TestCronAloneConvergesANode(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.pulley("promote", "1.0.0")
	f.machine("controller1")
	// Every minute and at once, so that the test need not wait for a fifth minute; everything else is as shipped.
	f.in("controller1", 0, "sed", "-i", `s/^\*\/5/*/; s/run --splay/run/`, "/etc/cron.d/pulley-agent")
	f.in("controller1", 0, "/usr/sbin/cron")
	f.until("cron to converge the node", func() bool { return f.status("controller1").State == "converged" })
	f.expect("controller1", "converged", "1.0.0", "changed")
}
