//go:build e2e

package nspawn

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The way that every machine of a fleet takes: were any part of it broken, somebody would have to go there.
func TestAMachineBecomesANodeByItself(t *testing.T) {
	t.Parallel()
	f := NewFleet(t, 1)
	m := NewMachine(t)
	network := f.Path("network.yaml")
	if err := os.WriteFile(network, []byte(m.NetworkConfig()), 0o644); err != nil {
		t.Fatal(err)
	}
	f.Userdata("compute1", "--format", "nocloud", "--to", m.seedPath(), "--network-config", network)

	booted := time.Now()
	m.Boot() // from here on: boot, cron, and an operator's verbs
	m.Wait("the first boot", 3*time.Minute, m.Finished)
	if cron := m.Read("/etc/cron.d/pulley-agent"); !strings.Contains(cron, "\n* * * * * root ") {
		t.Errorf("the schedule is\n%s", cron)
	}
	if name := m.Read("/etc/hostname"); name != "compute1\n" {
		t.Errorf("the machine's name is %q", name)
	}
	if nodes := f.Pulley("nodes"); !strings.Contains(nodes, m.Address) {
		t.Errorf("%s is not on the list:\n%s", m.Address, nodes)
	}

	m.Wait("release 1.0.0, by cron", 4*time.Minute, f.Converged("compute1", "1.0.0"))
	t.Logf("where the time went:\n%s", m.Timeline(booted, time.Now()))
	if motd := m.Read("/etc/pulley-demo/motd"); motd != "A compute node, kept by Pulley\n" {
		t.Errorf("release 1.0.0 made %q", motd)
	}

	f.replace("hieradata/roles/compute.yaml", "A compute node", "The next release")
	f.Release("1.1.0")
	m.Wait("release 1.1.0, by cron", 4*time.Minute, f.Converged("compute1", "1.1.0"))
	if motd := m.Read("/etc/pulley-demo/motd"); motd != "The next release, kept by Pulley\n" {
		t.Errorf("release 1.1.0 made %q", motd)
	}
}
