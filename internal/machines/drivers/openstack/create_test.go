package openstack_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/openstack"
	"pulley/internal/testbed/novatest"
)

// A server must have everything that its order and the file contain.
func TestServerIsAsOrdered(t *testing.T) {
	group := novatest.Thing{ID: "616fb98f-46ca-475e-917e-2563e5a8cd19", Name: "apart"}
	back := novatest.Thing{ID: "f40e4a1c-02f4-4f4b-9c7a-4a7a0f0c1b2d", Name: "back"}
	cloud, file := cloud(t, novatest.Config{Groups: []novatest.Thing{group}, Networks: []novatest.Thing{{ID: "e2ba8c3f-8ed2-4c71-a94d-1d7f3c2a9d0e", Name: "front"}, back}})
	d := open(t, file, func(c *openstack.Config) {
		c.Provider.KeyName, c.Provider.ServerGroup, c.Provider.AvailabilityZone = "operators", "apart", "nova"
		c.Provider.SecurityGroups, c.Provider.ConfigDrive = []string{"default", "cluster"}, true
	})
	o := order("compute1-t42")
	o.Node, o.Networks = "compute1_t42", []string{back.ID, "front"}
	o.Labels = map[string]string{"team": "core", "pulley-fleet": "foreign"}
	o.Userdata = []byte("aGVsbG8=") // that it is base64 itself must not matter
	m := create(t, d, o)
	s := cloud.Servers()[0]
	if s.KeyName != "operators" || s.Group != group.ID || s.Zone != "nova" || !s.ConfigDrive ||
		!slices.Equal(s.Groups, []string{"default", "cluster"}) || !slices.Equal(s.Networks, []string{back.ID, "e2ba8c3f-8ed2-4c71-a94d-1d7f3c2a9d0e"}) ||
		s.Flavor.ID != "1" || string(s.Userdata) != "aGVsbG8=" {
		t.Errorf("the server is %+v", s)
	}
	delete(s.Metadata, "pulley-order")
	if want := map[string]string{
		"team": "core", "pulley-owner": ours.Owner, "pulley-fleet": ours.Fleet, "pulley-node": "compute1_t42", "pulley-role": "compute",
		"pulley-flavor": "m1.small", "pulley-image": "debian-12",
	}; !maps.Equal(s.Metadata, want) {
		t.Errorf("its metadata is %v", s.Metadata)
	}
	if m.Name != "compute1-t42" || m.ID != s.ID || m.Flavor != "m1.small" || m.Image != "debian-12" || m.Created.IsZero() || len(m.Addresses) != 1 {
		t.Errorf("the machine is %+v", m)
	}
}

// A lost answer must lead neither to a second machine nor to an unknown one.
func TestCreateFindsServerOfLostAnswer(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	cloud.Inject(novatest.Fault{Method: "POST", Path: "/servers", Lost: true})
	m := create(t, d, order("compute1"))
	if again := create(t, d, order("compute1")); again.ID != m.ID || len(cloud.Servers()) != 1 {
		t.Errorf("the servers are %v", cloud.Servers())
	}

	// The answers to the order and to the lookup are lost: the next Create finds the server.
	cloud.Inject(novatest.Fault{Method: "POST", Path: "/servers", Lost: true})
	cloud.Inject(novatest.Fault{Method: "GET", Path: "/servers/detail", After: 1, Status: 503})
	if m, err := d.Create(t.Context(), order("compute2")); err == nil || kindOf(err) != "" {
		t.Errorf("Create returned %+v, %v", m, err)
	}
	create(t, d, order("compute2"))
	if n := len(cloud.Servers()); n != 2 {
		t.Errorf("%d servers exist", n)
	}
}

// A cloud that does not answer must not block an apply.
func TestCallsHaveDeadlines(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	for method, path := range map[string]string{"GET": "/servers/detail", "POST": "/servers"} {
		cloud.Inject(novatest.Fault{Method: method, Path: path, Delay: time.Minute, Times: -1})
	}
	start := time.Now()
	_, listErr := d.List(short(t, 50*time.Millisecond))
	_, createErr := d.Create(short(t, 50*time.Millisecond), order("compute1"))
	hasty := open(t, file, func(c *openstack.Config) { c.Deadline = 50 * time.Millisecond })
	_, ownErr := hasty.List(t.Context())
	if listErr == nil || createErr == nil || ownErr == nil || time.Since(start) > 10*time.Second {
		t.Errorf("%v\n%v\n%v\nafter %v", listErr, createErr, ownErr, time.Since(start))
	}
}

// Two programs must choose the same one of two machines of one name.
func TestConcurrentCreates(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	first := create(t, d, order("compute1"))
	s := cloud.Servers()[0]
	s.ID, s.Created = "00000000-0000-4000-8000-000000000000", s.Created.Add(time.Second)
	second := cloud.Add(s)
	if again := create(t, d, order("compute1")); again.ID != first.ID {
		t.Errorf("%s was chosen, and %s is the oldest", again.ID, first.ID)
	}
	if got := list(t, d); len(got) != 2 {
		t.Errorf("List returned %v", got)
	}
	if err := d.Delete(t.Context(), machines.Ref{Name: "compute1", ID: second.ID}); err != nil {
		t.Fatal(err)
	}
	if got := list(t, d); len(got) != 1 || got[0].ID != first.ID {
		t.Errorf("the remaining servers are %v", got)
	}
}

// Nova allows equal names: a foreign server with the hostname of a node would answer for it.
func TestForeignNameIsTaken(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	cloud.Add(novatest.Server{Name: "compute1"})
	cloud.Add(novatest.Server{Name: "COMPUTE2"})    // the filter takes it for compute2
	cloud.Add(novatest.Server{Name: "my-compute2"}) // and so would a search
	cloud.Add(novatest.Server{Name: "compute3", Project: novatest.OtherProject})
	var taken *machines.TakenError
	if _, err := d.Create(t.Context(), order("compute1")); !errors.As(err, &taken) || taken.Name != "compute1" {
		t.Errorf("compute1: %v", err)
	}
	create(t, d, order("compute2"))
	create(t, d, order("compute3"))
}

// An order must wait until a deleted server of that name is gone.
func TestCreateWaitsForDeletion(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{Deletion: 200 * time.Millisecond})
	d := open(t, file)
	old := create(t, d, order("compute1"))
	if err := d.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil {
		t.Fatal(err)
	}
	var later *machines.LaterError
	_, err := d.Create(t.Context(), order("compute1"))
	if !errors.As(err, &later) || later.After <= 0 || errors.Is(err, machines.ErrThrottle) { // that would hold up all others
		t.Errorf("Create returned %v", err)
	}
	eventually(t, "the name is free", func() bool { return len(cloud.Servers()) == 0 })
	if m := create(t, d, order("compute1")); m.ID == old.ID {
		t.Error("the new machine is the old one")
	}
}

// An ambiguous name must be refused.
func TestAmbiguousNames(t *testing.T) {
	const one, two = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	pair := []novatest.Thing{{ID: one, Name: "ambiguous"}, {ID: two, Name: "ambiguous"}}
	cloud, file := cloud(t, novatest.Config{Images: pair, Networks: pair, Groups: pair, Flavors: append(pair, novatest.Thing{ID: "1", Name: "m1.small"}), MaxLimit: 1})
	good := order("compute1")
	good.Image, good.Networks = one, []string{two}
	create(t, open(t, file), good)
	for what, change := range map[string]func(*machines.Order, *openstack.Config){
		"flavor":       func(o *machines.Order, _ *openstack.Config) { o.Flavor = "ambiguous" },
		"image":        func(o *machines.Order, _ *openstack.Config) { o.Image = "ambiguous" },
		"network":      func(o *machines.Order, _ *openstack.Config) { o.Networks = []string{"ambiguous"} },
		"server group": func(_ *machines.Order, c *openstack.Config) { c.Provider.ServerGroup = "ambiguous" },
	} {
		o := good
		o.Name = "compute2"
		d := open(t, file, func(c *openstack.Config) { change(&o, c) })
		_, err := d.Create(t.Context(), o)
		if !errors.Is(err, machines.ErrRefused) || !strings.Contains(err.Error(), one+", "+two) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(cloud.Servers()); n != 1 {
		t.Errorf("%d servers exist", n)
	}
}

// Forty machines of a role must look up a flavor once.
func TestNamesAreLookedUpOnce(t *testing.T) {
	cloud, file := cloud(t, novatest.Config{})
	d := open(t, file)
	create(t, d, order("compute1"))
	before := cloud.Asked()
	create(t, d, order("compute2"))
	for _, asked := range cloud.Asked()[len(before):] {
		if !strings.Contains(asked, "/servers") {
			t.Error(asked)
		}
	}
}
