//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

const siteBroken = `node /^controller\d+/ {
  file { '/etc/motd': ensure => file
`

const siteWithoutSchedule = "node default { file { '/etc/cron.d/pulley-agent': ensure => absent } }\n"

const siteTyped = `class demo(Integer $port = 80) {
  file { '/etc/demo-port': content => "${port}\n" }
}
node default {
  include demo
  include pulley
}
`

// A failed target must be visible and must leave the node on its last good target. Each subtest continues with the node
// of the previous one.
func TestNodeKeepsLastGoodTarget(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.machine("controller1")
	f.pulley("promote", "1.0.0")
	f.agent("controller1", 0, "run")
	t.Run("release_does_not_compile", func(t *testing.T) { f.of(t).releaseDoesNotCompile() })
	t.Run("release_removes_schedule", func(t *testing.T) { f.of(t).releaseRemovesSchedule() })
	t.Run("data_has_wrong_type", func(t *testing.T) { f.of(t).dataHasWrongType() })
}

// If a release does not compile, the run fails, and the node enforces the old one on schedule. A rollback needs no
// download.
func (f *fleet) releaseDoesNotCompile() {
	f.t.Helper()
	f.publish("1.1.0", siteBroken)
	f.pulley("promote", "1.1.0")
	out := f.agent("controller1", 1, "run")
	contains(f.t, out, "failed on 1.1.0")
	contains(f.t, out, "Syntax error")
	f.expect("controller1", "failed", "1.0.0", "failed")
	contains(f.t, f.pulley("runs", "controller1"), "Syntax error")
	run := f.status("controller1").LastRun
	contains(f.t, f.pulley("runs", "controller1", run), "left the machine untouched")

	// Enforcement is due: the last run was long ago.
	f.write("controller1", "/etc/pulley-demo/motd", "vandal")
	f.in("controller1", 0, "sed", "-i", `s/"ran_at": ".*"/"ran_at": "2020-01-01T00:00:00Z"/`, "/var/lib/pulley/state.json")
	contains(f.t, f.agent("controller1", 0, "run"), "changed on 1.0.0")
	if motd := f.read("controller1", "/etc/pulley-demo/motd"); strings.Contains(motd, "vandal") {
		f.t.Error("the last good release was not enforced")
	}
	f.expect("controller1", "failed", "1.0.0", "changed")
	explained := f.pulley("explain", "controller1")
	contains(f.t, explained, "attempt 1 at 1.1.0")
	contains(f.t, explained, "next one at")

	f.pulley("rollback")
	f.agent("controller1", 0, "run")
	f.expect("controller1", "converged", "1.0.0", "changed")
}

// A release that removes the agent's schedule must not become the last good one.
func (f *fleet) releaseRemovesSchedule() {
	f.t.Helper()
	f.publish("1.2.0", siteWithoutSchedule)
	f.pulley("promote", "1.2.0")
	contains(f.t, f.agent("controller1", 1, "run"), "removed the agent's schedule")
	contains(f.t, f.read("controller1", "/etc/cron.d/pulley-agent"), "pulley-agent run")
	f.expect("controller1", "failed", "1.0.0", "failed")
}

// Data of the wrong type fails like a broken release. A rollback reverts release and data together.
func (f *fleet) dataHasWrongType() {
	f.t.Helper()
	f.publish("1.3.0", siteTyped)
	f.pulley("promote", "1.3.0")
	f.pulley("data", "set", "demo::port", "8080")
	f.agent("controller1", 0, "run")
	contains(f.t, f.read("controller1", "/etc/demo-port"), "8080")

	f.pulley("data", "set", "demo::port", "many")
	out := f.agent("controller1", 1, "run")
	contains(f.t, out, "failed on 1.3.0 with data 2")
	contains(f.t, out, "expects an Integer")
	s := f.status("controller1")
	if s.State != "failed" || s.Release != "1.3.0" || s.Data != 1 {
		f.t.Fatalf("%+v; want failed, last good on 1.3.0 with data 1", s)
	}
	f.pulley("rollback")
	f.agent("controller1", 0, "run")
	if s := f.status("controller1"); s.State != "converged" || s.Data != 1 {
		f.t.Fatalf("after the rollback: %+v", s)
	}
	contains(f.t, f.read("controller1", "/etc/demo-port"), "8080")
}
