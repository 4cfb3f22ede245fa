package openstack_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/openstack"
	"pulley/internal/testbed/novatest"
)

// A missed server of a large fleet would be created again.
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
			s.Project = novatest.OtherProject
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
		t.Errorf("%d machines are listed, want %d", len(got), len(want))
	}
}

// The servers of a cell that is down still exist: creating them again would make duplicates.
func TestListFailsWhileCellIsDown(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	cloud.CellDown(m.ID)
	if machines, err := d.List(t.Context()); err == nil || !strings.Contains(err.Error(), "part of the cloud is down") {
		t.Errorf("List returned %v, %v", machines, err)
	}
	// One driver has just had a complete answer, the other has not.
	for _, d := range []*openstack.Driver{d, open(t, file)} {
		if m, err := d.Create(t.Context(), order("compute1")); err == nil || len(cloud.Servers()) != 1 {
			t.Errorf("Create returned %v, %v", m, err)
		}
		for _, id := range []string{"", m.ID} {
			if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: id}); err == nil || kindOf(err) != "" {
				t.Errorf("Delete returned %v", err)
			}
		}
	}
	cloud.CellDown()
	if machines := list(t, d); len(machines) != 1 {
		t.Errorf("after the failure %v are listed", machines)
	}
}

// The driver must work with a Nova that cannot list servers of cells that are down.
func TestListWorksWithOldNova(t *testing.T) {
	_, file := cloud(t, novatest.Config{Newest: 60})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	if machines := list(t, d); len(machines) != 1 || machines[0].ID != m.ID {
		t.Errorf("%v are listed", machines)
	}
}

// A plan acts on these states. A suspended server must not be replaced.
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
			t.Errorf("the problem is %q", got[0].Problem)
		}
		if (want == machines.Unknown) != strings.Contains(got[0].Problem, status) {
			t.Errorf("the problem of %s is %q", status, got[0].Problem)
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
		t.Errorf("deleted servers are listed: %+v", got)
	}
}

// A failed machine must have the cloud's message.
func TestFaultIsReported(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{Build: 20 * time.Millisecond})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	if m.State != machines.Building {
		t.Errorf("the first state is %s", m.State)
	}
	cloud.Set(m.ID, func(s *novatest.Server) { s.Fault = "No valid host was found. There are not enough hosts available." })
	eventually(t, "failed, and why", func() bool {
		m := list(t, d)[0]
		return m.State == machines.Failed && strings.HasPrefix(m.Problem, "No valid host was found.")
	})
}

// A watch outlives the token of the cloud.
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
