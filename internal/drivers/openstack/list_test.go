package openstack_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/drivers/openstack"
	"pulley/internal/machines"
	"pulley/internal/testbed/novatest"
)

// A fleet of thousands is on several pages, between other people's servers; one that is missed would be made again.
func TestListReadsAllPages(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	mark := map[string]string{"pulley-owner": ours.Owner, "pulley-fleet": ours.Fleet}
	var want []string
	at := time.Now()
	for i := range 2500 {
		s := novatest.Server{Name: fmt.Sprintf("compute%d", i), Metadata: mark, Created: at.Add(time.Duration(i%7) * time.Second)}
		switch i % 10 {
		case 0:
			s.Metadata = map[string]string{"pulley-owner": ours.Owner, "pulley-fleet": "dev2"}
		case 1:
			s.Project = novatest.Stranger
		default:
			want = append(want, s.Name)
		}
		cloud.Add(s)
	}
	var got []string
	for _, m := range list(t, open(t, file)) {
		got = append(got, m.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d machines are listed, and %d are ours", len(got), len(want))
	}
}

// While a part of the cloud is down, its servers are not gone: who made them again would have them twice.
func TestListFailsWhileServersCannotBeSeen(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	cloud.CellDown(m.ID)
	if machines, err := d.List(t.Context()); err == nil || !strings.Contains(err.Error(), "part of the cloud is down") {
		t.Errorf("List says %v, %v", machines, err)
	}
	// One that has just seen the cloud whole, and one that has not.
	for _, d := range []*openstack.Driver{d, open(t, file)} {
		if m, err := d.Create(t.Context(), order("compute1")); err == nil || len(cloud.Servers()) != 1 {
			t.Errorf("Create says %v, %v", m, err)
		}
		for _, id := range []string{"", m.ID} {
			if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: id}); err == nil || kindOf(err) != "" {
				t.Errorf("Delete says %v", err)
			}
		}
	}
	cloud.CellDown()
	if machines := list(t, d); len(machines) != 1 {
		t.Errorf("afterwards %v are listed", machines)
	}
}

// An old Nova has no way to say that, and must work all the same.
func TestListWorksWithAnOldNova(t *testing.T) {
	_, file := cloud(t, novatest.Config{Newest: 60})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	if machines := list(t, d); len(machines) != 1 || machines[0].ID != m.ID {
		t.Errorf("%v are listed", machines)
	}
}

// What a plan does depends on what a driver makes of Nova's words. Whoever suspends a server must not have it replaced.
func TestStatusesBecomeStates(t *testing.T) {
	for status, want := range map[string]machines.State{
		"ACTIVE": machines.Running, "BUILD": machines.Building, "REBUILD": machines.Building, "REBOOT": machines.Running,
		"HARD_REBOOT": machines.Running, "PASSWORD": machines.Running, "RESIZE": machines.Running, "REVERT_RESIZE": machines.Running,
		"VERIFY_RESIZE": machines.Running, "MIGRATING": machines.Running, "SHUTOFF": machines.Stopped, "ERROR": machines.Failed,
		"PAUSED": machines.Unknown, "SUSPENDED": machines.Unknown, "RESCUE": machines.Unknown, "SHELVED": machines.Unknown,
		"SHELVED_OFFLOADED": machines.Unknown, "UNKNOWN": machines.Unknown, "SPARKLING": machines.Unknown,
	} {
		cloud, file := cloud(t, novatest.Config{})
		d := open(t, file)
		m := create(t, d, order("compute1"))
		cloud.Set(m.ID, func(s *novatest.Server) { s.Status, s.Fault = status, "No valid host was found. " })
		got := list(t, d)
		if len(got) != 1 || got[0].State != want {
			t.Errorf("%s: %+v", status, got)
			continue
		}
		if want == machines.Failed && got[0].Problem != "No valid host was found." {
			t.Errorf("the fault is told as %q", got[0].Problem)
		}
		if (want == machines.Unknown) != strings.Contains(got[0].Problem, status) {
			t.Errorf("%s is told as %q", status, got[0].Problem)
		}
		cloud.Set(m.ID, func(s *novatest.Server) { s.Task = "deleting" })
		if got := list(t, d); len(got) != 1 || got[0].State != machines.Deleting {
			t.Errorf("%s, deleting: %+v", status, got)
		}
	}
	cloud, file := cloud(t, novatest.Config{})
	for _, status := range []string{"DELETED", "SOFT_DELETED"} {
		cloud.Add(novatest.Server{Name: "old", Status: status, Metadata: map[string]string{"pulley-owner": ours.Owner, "pulley-fleet": ours.Fleet}})
	}
	if got := list(t, open(t, file)); len(got) != 0 {
		t.Errorf("what was deleted is listed: %+v", got)
	}
}

// A machine that does not build says why, so that an operator need not ask the cloud.
func TestFaultIsTold(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{Build: 20 * time.Millisecond})
	cloud.Doom("No valid host was found. There are not enough hosts available.")
	d := open(t, file)
	if m := create(t, d, order("compute1")); m.State != machines.Building {
		t.Errorf("at first it is %s", m.State)
	}
	eventually(t, "failed, and why", func() bool {
		m := list(t, d)[0]
		return m.State == machines.Failed && strings.HasPrefix(m.Problem, "No valid host was found.")
	})
}

// Tokens end after hours: a watch that runs for weeks logs in again.
func TestTokenIsRenewed(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	create(t, d, order("compute1"))
	cloud.ExpireTokens()
	if got := list(t, d); len(got) != 1 {
		t.Errorf("%v are listed", got)
	}
	cloud.ExpireTokens()
	create(t, d, order("compute2"))
}
