//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

const siteBroken = `node /^controller\d+/ {
  file { '/etc/motd': ensure => file
`

const siteTyped = `class demo(Integer $port = 80) {
  file { '/etc/demo-port': content => "${port}\n" }
}
node default {
  include demo
  include pulley
}
`

// A release that does not compile fails visibly, leaves nodes on what they had, and is tried again with growing gaps; a
// rollback brings them back without a download.
func TestReleaseThatDoesNotCompileLeavesNodesOnTheLastGoodOne(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")
	f.pulley("promote", "1.0.0")
	f.agent("controller1", 0, "run")

	f.publish("1.1.0", siteBroken)
	f.pulley("promote", "1.1.0")
	out := f.agent("controller1", 1, "run")
	contains(t, out, "failed on 1.1.0")
	contains(t, out, "Syntax error")
	f.expect("controller1", "failed", "1.0.0", "failed")
	contains(t, f.pulley("runs", "controller1"), "Syntax error")
	run := f.status("controller1").LastRun
	contains(t, f.pulley("runs", "controller1", run), "left the machine untouched")

	// The old target stays enforced on schedule, meanwhile: here the last time was long ago.
	f.write("controller1", "/etc/pulley-demo/motd", "vandal")
	f.in("controller1", 0, "sed", "-i", `s/"ran_at": ".*"/"ran_at": "2020-01-01T00:00:00Z"/`, "/var/lib/pulley/state.json")
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.0.0")
	if motd := f.read("controller1", "/etc/pulley-demo/motd"); strings.Contains(motd, "vandal") {
		t.Error("the last good release was not enforced")
	}
	f.expect("controller1", "failed", "1.0.0", "changed")
	explained := f.pulley("explain", "controller1")
	contains(t, explained, "attempt 1 at 1.1.0")
	contains(t, explained, "next one at")

	// The release is not needed to go back to: its objects may even be gone from etcd.
	f.pulley("rollback")
	f.agent("controller1", 0, "run")
	f.expect("controller1", "converged", "1.0.0", "changed")
}

// An override of the wrong type is like a broken release: nodes stay on their last good pair, and rollback takes both back.
func TestOverrideOfTheWrongTypeLeavesNodesOnTheLastGoodPair(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.publish("1.1.0", siteTyped)
	f.machine("controller1")
	f.pulley("promote", "1.1.0")
	f.pulley("data", "set", "demo::port", "8080")
	f.agent("controller1", 0, "run")
	contains(t, f.read("controller1", "/etc/demo-port"), "8080")

	f.pulley("data", "set", "demo::port", "many")
	out := f.agent("controller1", 1, "run")
	contains(t, out, "failed on 1.1.0 with data 2")
	contains(t, out, "expects an Integer")
	s := f.status("controller1")
	if s.State != "failed" || s.Release != "1.1.0" || s.Data != 1 {
		t.Fatalf("%+v; want failed, last good on 1.1.0 with data 1", s)
	}
	f.pulley("rollback")
	f.agent("controller1", 0, "run")
	if s := f.status("controller1"); s.State != "converged" || s.Data != 1 {
		t.Fatalf("after the rollback: %+v", s)
	}
	contains(t, f.read("controller1", "/etc/demo-port"), "8080")
}

// A release that cuts the node off from its own schedule must not become its last good one.
func TestReleaseThatRemovesTheScheduleIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")
	f.pulley("promote", "1.0.0")
	f.agent("controller1", 0, "run")
	f.publish("1.1.0", "node default { file { '/etc/cron.d/pulley-agent': ensure => absent } }\n")
	f.pulley("promote", "1.1.0")
	contains(t, f.agent("controller1", 1, "run"), "removed the agent's schedule")
	contains(t, f.read("controller1", "/etc/cron.d/pulley-agent"), "pulley-agent run")
	f.expect("controller1", "failed", "1.0.0", "failed")
}
