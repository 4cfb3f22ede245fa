package openstack_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/testbed/novatest"
)

// A wrong ID must not delete an unconfirmed machine.
func TestDeleteChecksMark(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	mine := create(t, d, order("compute1"))
	foreign := cloud.Add(novatest.Server{Name: "compute1", Metadata: map[string]string{"pulley-owner": ours.Owner, "pulley-fleet": "prod"}})
	for _, v := range []machines.Ref{
		{Name: "compute1", ID: foreign.ID}, {Name: "compute2", ID: mine.ID}, {Name: "compute1", ID: "../servers/" + mine.ID}, {},
		{Name: "compute1", ID: "detail"},
	} {
		if err := d.Delete(t.Context(), v); kindOf(err) != "refused" {
			t.Errorf("%+v: %v", v, err)
		}
	}
	if n := len(cloud.Servers()); n != 2 {
		t.Fatalf("%d servers exist", n)
	}
	if err := d.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil { // both have that name
		t.Fatal(err)
	}
	if left := cloud.Servers(); len(left) != 1 || left[0].ID != foreign.ID {
		t.Errorf("the remaining servers are %+v", left)
	}
}

// During a deletion of minutes the machine is listed, is not deleted again, and keeps its name.
func TestSlowDeletion(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{Deletion: 200 * time.Millisecond})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	for range 2 {
		if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(t, d); len(got) != 1 || got[0].State != machines.Deleting {
		t.Errorf("%+v are listed", got)
	}
	asked := slices.DeleteFunc(cloud.Asked(), func(s string) bool { return !strings.HasPrefix(s, "DELETE ") })
	if len(asked) != 1 {
		t.Errorf("the requests are %v", asked)
	}
	eventually(t, "gone", func() bool { return len(list(t, d)) == 0 })
	if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err != nil {
		t.Errorf("a deletion of a deleted server: %v", err)
	}
}

// A locked server stays, with an error, until it is unlocked.
func TestLockedServer(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	cloud.Set(m.ID, func(s *novatest.Server) { s.Locked = true })
	if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err == nil || !strings.Contains(err.Error(), "is locked") {
		t.Errorf("Delete returned %v", err)
	}
	cloud.Set(m.ID, func(s *novatest.Server) { s.Locked = false })
	if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err != nil {
		t.Error(err)
	}
}

// A repeated deletion after a lost answer must succeed.
func TestLostAnswerOfDelete(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	m := create(t, d, order("compute1"))
	cloud.Inject(novatest.Fault{Method: "DELETE", Path: m.ID, Lost: true})
	if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err == nil || kindOf(err) != "" {
		t.Errorf("Delete returned %v", err)
	}
	if err := d.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err != nil {
		t.Error(err)
	}
}
