//go:build e2e

package nspawn

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/internal/firstboot"
	"pulley/internal/join"
)

// A machine that was sold, or stolen, must not come back as a member of the fleet, and whoever starts it must be told why.
func TestARemovedNodeDoesNotComeBack(t *testing.T) {
	t.Parallel()
	f := NewFleet(t, 1)
	iso := f.Path("seed.iso")
	f.Userdata("compute1", "--format", "nocloud", "--iso", iso)
	again := f.Userdata("compute1", "--format", "cloud-config") // with a token of its own, from before the removal
	m := NewMachine(t)
	m.Seed(f.FromISO(iso))
	m.Boot()
	m.Wait("the first boot", 4*time.Minute, m.Finished)

	f.Pulley("nodes", "remove", "compute1", "-m", "sold")
	m.Wait("a tick that is told", 4*time.Minute, func() string {
		if journal := m.Journal(); !strings.Contains(journal, "removed") {
			return "the journal has no word of it"
		}
		return ""
	})
	m.Cut()

	reinstalled := NewMachine(t)
	reinstalled.Seed(map[string]string{"user-data": again})
	reinstalled.Boot()
	reinstalled.Wait("a refusal", 3*time.Minute, func() string {
		if step := reinstalled.FirstBoot().Steps[firstboot.Join]; strings.Contains(step.Error, string(join.WasRemoved)) && strings.Contains(step.Error, "sold") {
			return ""
		}
		return reinstalled.Finished()
	})
	if is := f.Host("compute1"); is.Registered {
		t.Errorf("a removed node is on the list again: %+v", is)
	}
	if counted := fmt.Sprintf("pulley_join_refusals_total{reason=%q}", join.WasRemoved); !strings.Contains(f.Metrics(), counted) {
		t.Errorf("the refusal was not counted as %s", counted)
	}
}

// Images are made of running nodes: two machines with one identity would take turns in what they report, and nobody would
// know which of them has the release.
func TestACloneIsRefusedAndShown(t *testing.T) {
	t.Parallel()
	f := NewFleet(t, 1)
	m := NewMachine(t)
	m.Seed(map[string]string{"user-data": f.Userdata("compute1")})
	m.Boot()
	m.Wait("the first boot", 4*time.Minute, m.Finished)
	m.Wait("release 1.0.0", 4*time.Minute, f.Converged("compute1", "1.0.0"))
	m.Cut()
	m.Write("/etc/pulley/agent.yaml", m.Read("/etc/pulley/agent.yaml")+"heartbeat: 1m\n") // a test does not wait for five
	clone := m.Clone()
	m.Boot()
	clone.Boot()
	clone.Wait("a tick of the clone that is refused", 4*time.Minute, func() string {
		if !strings.Contains(clone.Journal(), string(agent.ReasonOtherMachine)) {
			return "the journal has no word of it"
		}
		return ""
	})
	m.Wait("a word to operators", 4*time.Minute, func() string {
		found := f.Doctor()
		if slices.ContainsFunc(found, func(f Finding) bool { return f.Check == "clone" && f.Node == "compute1" && f.Severity == "problem" }) {
			return ""
		}
		return fmt.Sprintf("pulley doctor says %+v\n%s\n%s", found, m.Journal(), clone.Journal())
	})
	f.replace("hieradata/roles/compute.yaml", "A compute node", "The next release")
	f.Release("1.1.0")
	clone.Wait("another tick of the clone", 3*time.Minute, func() string {
		if strings.Count(clone.Journal(), string(agent.ReasonOtherMachine)) < 3 {
			return "it has not come"
		}
		return ""
	})
	if motd := clone.Read("/etc/pulley-demo/motd"); motd != "A compute node, kept by Pulley\n" {
		t.Errorf("the clone took the next release: %q", motd)
	}
}
