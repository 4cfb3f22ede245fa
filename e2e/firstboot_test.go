//go:build e2e

package e2e

import "testing"

// The first run of a new machine sets up cron as the release and the live data say, and nothing else. The first tick then
// finds everything on disk. Otherwise a machine ticks on a schedule that nobody wrote, and each new one fetches twice.
func TestFirstBootUsesPromotedRelease(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.pulley("promote", "1.0.0")
	f.pulley("data", "set", "pulley::schedule", "17 */3 * * *", "--role", "controller")
	f.pulley("data", "set", "pulley::schedule", "whenever", "--role", "compute")
	f.start("controller1")
	said := f.agent("controller1", 0, "bootstrap", "--node", "controller1", "-e", "dev", "--endpoints", f.endpoint)
	contains(t, said, `msg="staged the promoted release"`)
	contains(t, f.read("controller1", "/etc/cron.d/pulley-agent"), "17 */3 * * * root ")
	f.in("controller1", 1, "test", "-e", "/etc/pulley-demo") // of the role
	if s := f.status("controller1"); s.State != "pending" {
		t.Errorf("before the first tick: %+v", s)
	}

	// A release that cannot set up the schedule does not stop a first boot.
	f.start("compute1")
	said = f.agent("compute1", 0, "bootstrap", "--node", "compute1", "-e", "dev", "--endpoints", f.endpoint)
	contains(t, said, "the schedule is the one of the plan until the first run")
	contains(t, said, "pulley::schedule whenever: cron would not start the agent")
	contains(t, f.read("compute1", "/etc/cron.d/pulley-agent"), "*/5 * * * * root ")

	onDisk := []string{"-c", `stat -c '%n %i %Y' /var/lib/pulley/releases/* /var/lib/pulley/data/*`}
	before := f.in("controller1", 0, "sh", onDisk...)
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.0.0 with data ")
	f.expect("controller1", "converged", "1.0.0", "changed")
	if after := f.in("controller1", 0, "sh", onDisk...); after != before {
		t.Errorf("the first tick fetched: on disk is\n%sbefore it was\n%s", after, before)
	}
	f.in("controller1", 0, "test", "-e", "/etc/pulley-demo/motd")
}
