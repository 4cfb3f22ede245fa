//go:build e2e

package nspawn

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// An autoscaling group starts machines at one moment, all with the same userdata, and takes them away again: a number given
// twice would be two machines that fight for one name, and one never given back would be missing for good.
func TestMachinesOfAGroupClaimNumbersAndGiveThemBack(t *testing.T) {
	t.Parallel()
	f := NewFleet(t, 2)
	same := f.Userdata("--group", "compute", "--format", "multipart")
	group := []*Machine{NewMachine(t), NewMachine(t)}
	for _, m := range group {
		m.Seed(map[string]string{"user-data": same})
		m.Boot()
	}
	named := map[string]*Machine{}
	for _, m := range group {
		m.Wait("the first boot", 4*time.Minute, m.Finished)
		named[strings.TrimSpace(m.Read("/etc/hostname"))] = m
	}
	one, two := named["compute1"], named["compute2"]
	if one == nil || two == nil {
		t.Fatalf("the machines are %v", named)
	}
	for node, m := range named {
		if is := f.Host(node); !is.Registered || len(is.Addresses) == 0 || is.Addresses[0] != m.Address {
			t.Errorf("%s at %s is on the list as %+v", node, m.Address, is)
		}
	}

	if out, err := one.In(time.Minute, "systemctl", "--no-block", "reboot"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	one.Off()
	if out, err := two.In(time.Minute, "systemctl", "--no-block", "poweroff"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	two.Off()
	if !f.Host("compute1").Registered {
		t.Errorf("a machine that reboots left the fleet\n%s", one.Story())
	}
	if f.Host("compute2").Registered {
		t.Errorf("a machine that was powered off is still one of the fleet\n%s", two.Story())
	}
	one.Boot()
	one.Wait("a tick after the reboot", 4*time.Minute, f.Converged("compute1", "1.0.0"))

	next := NewMachine(t)
	next.Seed(map[string]string{"user-data": same})
	next.Boot()
	next.Wait("the number that was given back", 4*time.Minute, func() string {
		if is := f.Host("compute2"); !is.Registered || len(is.Addresses) == 0 || is.Addresses[0] != next.Address {
			return fmt.Sprintf("compute2 is %+v, and %s", is, next.Finished())
		}
		return ""
	})
}
