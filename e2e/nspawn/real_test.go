//go:build e2e

package nspawn

import (
	"os"
	"strings"
	"testing"
	"time"

	driver "pulley/internal/drivers/nspawn"
)

func TestMain(m *testing.M) {
	driver.MaybeInit() // a keeper is this program, started under another name
	mayAsk()
	os.Exit(Main(m))
}

// What the other scenarios stand on: were cloud-init, cron, the bridge or the power cut not real, they would show nothing.
func TestMachinesAreReal(t *testing.T) {
	t.Parallel()
	m := NewMachine(t)
	m.Seed(map[string]string{
		"meta-data": "instance-id: first\nlocal-hostname: compute1\n",
		"user-data": "#!/bin/sh\necho ran >>/root/seed\necho '* * * * * root echo ticked >>/root/cron' >/etc/cron.d/tick\n",
	})
	m.Boot()
	file := func(name, want string) func() string {
		return func() string {
			got, _ := m.read(name)
			if got == want {
				return ""
			}
			return "it has " + got
		}
	}
	m.Wait("the seed's script", time.Minute, file("/root/seed", "ran\n"))
	if err := ping(m.Address); err != nil {
		t.Errorf("%v\n%s", err, m.Story())
	}
	id := strings.TrimSpace(m.Read("/etc/machine-id"))
	if len(id) != 32 || m.Read("/etc/hostname") != "compute1\n" {
		t.Errorf("machine id %q, hostname %q", id, m.Read("/etc/hostname"))
	}
	m.Cut()
	if ping(m.Address) == nil {
		t.Error("a machine without power answers")
	}

	m.Boot()
	m.Wait("cron", 2*time.Minute, file("/root/cron", "ticked\n"))
	if seed, now := m.Read("/root/seed"), strings.TrimSpace(m.Read("/etc/machine-id")); seed != "ran\n" || now != id {
		t.Errorf("after the second boot the seed %q ran, and the machine id is %s", seed, now)
	}
	if _, err := m.In(time.Minute, "systemctl", "--no-block", "poweroff"); err != nil {
		t.Error(err)
	}
	m.Off()
	other := m.Clone()
	other.Boot()
	other.Wait("a machine id of its own", time.Minute, func() string {
		if now := strings.TrimSpace(other.Read("/etc/machine-id")); len(now) == 32 && now != id {
			return ""
		}
		return "it has none"
	})
	other.Wait("its address", time.Minute, func() string {
		if err := ping(other.Address); err != nil {
			return err.Error()
		}
		return ""
	})
}
