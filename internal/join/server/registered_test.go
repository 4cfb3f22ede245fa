package server

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/hosts"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// A machine must not pass for another node, and an honest one must not be kept out: an address that it really uses is its own.
func TestMachineDescribesOnlyItself(t *testing.T) {
	t.Parallel()
	all := names{listed: map[string]model.Host{
		"web1": {Node: "web1", Role: "web", Addresses: []string{"10.0.0.1"}, Checked: "10.0.0.1"},
		"db1":  {Node: "db1", Role: "db", Addresses: []string{"10.0.0.31", "172.17.0.1"}, Checked: "10.0.0.31"},
		"nat1": {Node: "nat1", Role: "nat", Addresses: []string{"192.168.1.7", "172.17.0.1"}}, "app1_t42": {},
	}}
	for name, c := range map[string]struct {
		from, hostname string
		addresses      []string
		want           model.Host
	}{
		"its own":                  {"10.0.0.9", "web1.example.com", []string{"10.0.0.9", "172.17.0.1"}, model.Host{Hostname: "web1.example.com", Addresses: []string{"10.0.0.9", "172.17.0.1"}, Checked: "10.0.0.9"}},
		"behind NAT":               {"203.0.113.1", "any", []string{"192.168.1.8"}, model.Host{Hostname: "any", Addresses: []string{"192.168.1.8"}}},
		"another's name":           {"10.0.0.9", "DB1.example.com.", nil, model.Host{Refused: []model.Claim{{Value: "DB1.example.com.", Of: "db1"}}}},
		"a name to come":           {"10.0.0.9", "app1-t42", nil, model.Host{Refused: []model.Claim{{Value: "app1-t42", Of: "app1_t42"}}}},
		"another's address":        {"10.0.0.9", "", []string{"10.0.0.9", "10.0.0.31"}, model.Host{Addresses: []string{"10.0.0.9"}, Checked: "10.0.0.9", Refused: []model.Claim{{Value: "10.0.0.31", Of: "db1"}}}},
		"another's behind NAT":     {"203.0.113.1", "", []string{"192.168.1.7"}, model.Host{Refused: []model.Claim{{Value: "192.168.1.7", Of: "nat1"}}}},
		"DHCP gave it the address": {"::ffff:10.0.0.31", "", []string{"10.0.0.31"}, model.Host{Addresses: []string{"10.0.0.31"}, Checked: "10.0.0.31"}},
		"the same as before":       {"10.0.0.1", "", []string{"10.0.0.1"}, model.Host{Addresses: []string{"10.0.0.1"}, Checked: "10.0.0.1"}},
	} {
		all.owned = hosts.Owned(all.listed, nil, all.Networks, "")
		c.want.Node, c.want.MachineID = "web1", "m"
		if got := all.describe("web1", join.Machine{ID: "m", Hostname: c.hostname, Addresses: c.addresses}, c.from); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v\nwant %+v", name, got, c.want)
		}
	}
}

// With the stolen key of one node, an attacker must not register the name and the address of another one, also not at its join. An
// operator sees the attempt, and the honest machine gets its address when the other node is gone.
func TestForeignNamesAndAddressesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, environments.Role{Name: "web", Cardinality: 3}, environments.Role{Name: "db", Cardinality: 1})
	s, later := w.serveLater()
	member := func(id, node, address string) machine {
		t.Helper()
		m := w.machine(id, s)
		m.is.Hostname, m.is.Addresses = node, []string{address, "127.0.0.1", "ff02::1"}
		a, err := m.join(t.Context(), w.token(access.Token{}), node)
		if err != nil {
			t.Fatal(err)
		}
		return w.joined(m, a, s)
	}
	web := member("m1", "web1", "10.0.0.1")
	member("m2", "db1", "10.0.0.31")
	twin := member("m3", "web2", "10.0.0.31") // a machine at another site, with an address of the same private range
	entry := func(node, hostname string, addresses []string, refused ...model.Claim) {
		t.Helper()
		hosts, err := fleet.In(w.st).Hosts(t.Context(), dev)
		if h := hosts[node]; err != nil || h.Hostname != hostname || !reflect.DeepEqual(h.Addresses, addresses) || !reflect.DeepEqual(h.Refused, refused) {
			t.Errorf("the entry of %s is %+v (%v)", node, h, err)
		}
	}
	entry("db1", "db1", []string{"10.0.0.31"})
	entry("web2", "web2", nil, model.Claim{Value: "10.0.0.31", Of: "db1"})

	for _, is := range []join.Machine{
		{ID: "m1", Hostname: "db1", Addresses: []string{"10.0.0.1"}}, {ID: "m1", Hostname: "web3.example.com"}, {ID: "m1", Addresses: []string{"10.66.6.6", "10.0.0.31"}},
	} {
		err := web.Register(t.Context(), is)
		want(t, err, join.ForeignClaim)
		var refused *join.RefusedError
		if errors.As(err, &refused) && refused.Hint() == "" {
			t.Error("the refusal has no remedy")
		}
	}
	entry("web1", "", []string{"10.66.6.6"}, model.Claim{Value: "10.0.0.31", Of: "db1"})

	if err := access.JoinsIn(w.st).RemoveNode(t.Context(), dev, "db1", access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Fatal(err)
	}
	later()
	if err := twin.Register(t.Context(), twin.is); err != nil {
		t.Errorf("the other node is removed, and its address is refused: %v", err)
	}
	entry("web2", "web2", []string{"10.0.0.31"})
}

// With the stolen key of one node, an attacker must not remove the address by which others know another node: the one in hosts.networks, or
// in its fact, while serve saw it use a third one.
func TestMainAddressesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "db", Cardinality: 4}}, Hosts: environments.HostSettings{Networks: []string{"10.1.0.0/16", "10.2.0.0/16"}, AddressFact: "eth2"}}
	_, revision, err := specs.In(w.st).Spec(t.Context(), dev)
	if err == nil {
		err = specs.In(w.st).PutSpec(t.Context(), e, revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, other := w.serve(nil), w.serve(nil)
	token := w.token(access.Token{})
	member := func(id, node string, s *serve, addresses ...string) machine {
		t.Helper()
		m := w.machine(id, s)
		m.is.Hostname, m.is.Addresses = node, addresses
		a, err := m.join(t.Context(), token, node)
		if err != nil {
			t.Fatal(err)
		}
		return w.joined(m, a, s)
	}
	stolen, elsewhere := member("m1", "db1", s, "192.0.2.1"), member("m2", "db2", other, "192.0.2.2")
	victim := member("m3", "db3", s, "192.0.2.3", "172.17.0.1", "10.1.0.3", "10.2.0.3")
	member("m4", "db4", s, "192.0.2.4", "172.17.0.1", "10.1.0.4", "10.2.0.4")

	for _, m := range []machine{stolen, elsewhere} {
		m.is.Addresses = []string{"192.0.2.1", "::ffff:10.1.0.3"}
		want(t, m.Register(t.Context(), m.is), join.ForeignClaim)
	}
	victim.is.Addresses = []string{"10.1.0.33"}
	if err := victim.Register(t.Context(), victim.is); err != nil {
		t.Fatal(err)
	}
	for _, m := range []machine{stolen, elsewhere} {
		m.is.Addresses = []string{"10.1.0.33"} // within the time that serve caches
		want(t, m.Register(t.Context(), m.is), join.ForeignClaim)
	}

	if _, err := w.etcd.ClientOf(etcdtest.Serve).Put(t.Context(), "/pulley/v1/environments/dev/hosts/exports/db4", `{"v":1,"facts":{"eth2":"10.2.0.4"}}`); err != nil {
		t.Fatal(err)
	}
	elsewhere.is.Addresses = []string{"10.2.0.4"}
	want(t, elsewhere.Register(t.Context(), elsewhere.is), join.ForeignClaim)
	elsewhere.is.Addresses = []string{"10.1.0.4", "172.17.0.1"} // it is the main address of none any more
	if err := elsewhere.Register(t.Context(), elsewhere.is); err != nil {
		t.Error(err)
	}

	// An address that serve accepted and did not write yet, while it reads the list for a third node.
	for node, refused := range []int{0, 1} {
		h, err := s.described(t.Context(), dev, fmt.Sprintf("db%d", node+1), "db", join.Machine{Addresses: []string{"10.1.0.9"}}, "192.0.2.9")
		if err == nil {
			err = s.names.use(t.Context(), dev, 0, func(names) {})
		}
		if err != nil || len(h.Refused) != refused {
			t.Errorf("%s: %d addresses are refused, want %d: %v", h.Node, len(h.Refused), refused, err)
		}
	}
}
