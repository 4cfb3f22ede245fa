//go:build e2e

package e2e

import (
	"testing"
)

// The userdata that cloud-init runs must turn a machine without Pulley into a node. A second run must change nothing.
func TestUserdataMakesMachineANode(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.start("compute1")
	f.write("compute1", "/root/userdata", f.pulley("userdata", "compute1", "--endpoints", f.endpoint, "--schedule", "*/10 * * * *"))
	for _, says := range []string{"compute1: is a node of dev", "is finished"} {
		contains(t, f.in("compute1", 0, "sh", "/root/userdata"), says)
		contains(t, f.read("compute1", "/etc/cron.d/pulley-agent"), "*/10 * * * * root")
		contains(t, f.pulley("nodes"), "compute1")
		if s := f.status("compute1"); s.State != "pending" {
			t.Fatalf("after its first boot: %+v", s)
		}
		// After a reboot, there is nothing to resume.
		f.in("compute1", 0, "test", "!", "-e", "/var/lib/pulley/first-boot.sh")
		f.in("compute1", 0, "test", "!", "-e", "/etc/cron.d/pulley-first-boot")
	}
	f.pulley("promote", "1.0.0")
	contains(t, f.agent("compute1", 0, "run"), "changed on 1.0.0")
	f.expect("compute1", "converged", "1.0.0", "changed")

	// Once a release manages the schedule, another first boot does not change it.
	release := f.read("compute1", "/etc/cron.d/pulley-agent")
	f.in("compute1", 0, "sh", "/root/userdata")
	if now := f.read("compute1", "/etc/cron.d/pulley-agent"); now != release {
		t.Errorf("the release's schedule was replaced by %s", now)
	}
}
