package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// An operator whose new machines wait must see which machine they wait for, since when, and the command that ends it.
func TestBlockedTurnsAreNamed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	boot := func(node string, b access.FirstBoot) access.FirstBoot {
		b.Machine, b.Node, b.Heard, b.Step, b.State = "m-"+node, node, now, "first-run", access.BootStarted
		return b
	}
	holder := boot("web1", access.FirstBoot{Turn: ago(40 * time.Minute), Until: now.Add(80 * time.Minute)})
	waits := boot("web2", access.FirstBoot{Asked: ago(30 * time.Minute), Again: ago(20 * time.Second)})
	silent := boot("web3", access.FirstBoot{Asked: ago(35 * time.Minute), Again: ago(3 * time.Minute)})
	for name, c := range map[string]struct {
		boots  []access.FirstBoot
		paused bool
		want   []string // findings, in parts
	}{
		"nobody waits":    {boots: []access.FirstBoot{holder}},
		"a short wait":    {boots: []access.FirstBoot{holder, boot("web2", access.FirstBoot{Asked: ago(time.Minute), Again: now})}},
		"paused":          {boots: []access.FirstBoot{holder, waits}, paused: true},
		"a turn":          {boots: []access.FirstBoot{holder, waits}, want: []string{"web1 has its turn to be provisioned for 40m0s, at step first-run, until 2026-11-26T13:20:00Z at the latest; 1 machines wait: web2"}},
		"a silent head":   {boots: []access.FirstBoot{silent, waits}, want: []string{"web3 is the first machine that waits for its turn, and has not requested it for 3m0s; 1 machines wait behind it: web2"}},
		"a turn that end": {boots: []access.FirstBoot{boot("web1", access.FirstBoot{Turn: ago(3 * time.Hour), Until: ago(time.Hour)}), waits}},
	} {
		e := environment{ref: model.Ref{Environment: "dev"}, boots: map[string]access.FirstBoot{}}
		for _, b := range c.boots {
			e.boots[b.Key()] = b
		}
		if c.paused {
			e.paused = &access.Revoked{By: "ann"}
		}
		got := turns(&facts{now: now, environments: []environment{e}})
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
			continue
		}
		for i, f := range got {
			if f.Sentence() != c.want[i] || !strings.Contains(f.Remedy(), "`pulley nodes unlock "+f.Node+" -e dev -m REASON`") {
				t.Errorf("%s: %s\n%s\nwant %s", name, f.Sentence(), f.Remedy(), c.want[i])
			}
		}
	}
}

// A publish or a prune that hangs blocks all others without end: its lock lasts as long as its process.
func TestHangingPublishIsNamed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	got := applying(&facts{now: now, locks: []etcd.LockHolder{
		{Kind: "publish", By: "ann", Since: now.Add(-2 * time.Hour)}, {Kind: "prune", By: "bob", Since: now.Add(-time.Minute)}, {Kind: "prune", By: "eve", Since: now.Add(-3 * time.Hour)},
	}})
	if len(got) != 2 || got[0].Sentence() != "ann publishes, and blocks each prune, for 2h0m0s" || got[1].Sentence() != "eve prunes, and blocks each publish, for 3h0m0s" || got[0].Remedy() == "" {
		t.Errorf("got %+v", got)
	}
}

// A preview with a long wait refuses each rollout that demands one: an operator must see whose it is.
func TestLongPreviewsAreNamed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	orders := map[string]model.PreviewOrder{"db1": {ID: "short", By: "bob", At: now.Add(-10 * time.Minute)}}
	for n := range someOf + 2 {
		orders[fmt.Sprintf("web%d", n)] = model.PreviewOrder{ID: "long", By: "ann", At: now.Add(-2 * time.Hour)}
	}
	got := previews(&facts{now: now, environments: []environment{{ref: model.Ref{Environment: "dev"}, previews: orders}}})
	const want = "ann previews a target in dev for 2h0m0s, and blocks other previews of web0, web1, web2, web3, web4 and 2 more, and rollouts that demand one"
	if len(got) != 1 || got[0].Sentence() != want || got[0].Remedy() == "" {
		t.Errorf("got %+v, want %s", got, want)
	}
}

// Copies of one image with one machine id are mistaken for each other when one is removed.
func TestOneMachineIDOfTwoNodesIsNamed(t *testing.T) {
	t.Parallel()
	hosts := func(ids map[string]string) map[string]model.Host {
		all := map[string]model.Host{}
		for node, id := range ids {
			all[node] = model.Host{Node: node, MachineID: id}
		}
		return all
	}
	f := &facts{environments: []environment{
		{ref: model.Ref{Environment: "dev"}, hosts: hosts(map[string]string{"web1": "one", "web2": "one", "web3": "two", "web4": "", "web5": ""})},
		{ref: model.Ref{Environment: "prod"}, hosts: hosts(map[string]string{"db1": "one", "db2": "three"})},
	}}
	got := machineIDs(f)
	if len(got) != 1 || got[0].Severity != Warning || got[0].Sentence() != "3 nodes have the machine id one: web1 of dev, web2 of dev, db1 of prod" || !strings.Contains(got[0].Remedy(), "systemd-machine-id-setup") {
		t.Errorf("got %+v: %s", got, got[0].Sentence())
	}
}

// Nodes that lose their address in pulley::hosts without a word stop those that connect to it. Honest machines share the addresses of bridges.
func TestSharedAddressIsNamedIfAViewWouldHaveIt(t *testing.T) {
	t.Parallel()
	host := func(node, checked string, addresses ...string) model.Host {
		return model.Host{Node: node, Role: "web", Addresses: append([]string{"172.17.0.1"}, addresses...), Checked: checked}
	}
	export := map[string]model.Export{"web1": {Facts: map[string]json.RawMessage{"ip": json.RawMessage(`"172.17.0.1"`), "floating": json.RawMessage(`"192.0.2.9"`)}}}
	export["web2"] = model.Export{Facts: map[string]json.RawMessage{"floating": json.RawMessage(`"192.0.2.9"`)}}
	for _, c := range []struct {
		name, seen string
		spec       environments.HostSettings
		checked    string
		want       string
	}{
		{name: "both have it in the network", seen: "web", spec: environments.HostSettings{Networks: []string{"10.1.0.0/16"}}, checked: "10.0.0.", want: "10.1.0.9: web1, web2"},
		{name: "all roles are seen", seen: "all", spec: environments.HostSettings{Networks: []string{"10.1.0.0/16"}}, checked: "10.0.0.", want: "10.1.0.9: web1, web2"},
		{name: "others are seen", seen: "db", spec: environments.HostSettings{Networks: []string{"10.1.0.0/16"}}, checked: "10.0.0."},
		{name: "a checked one is preferred", seen: "web", checked: "10.0.0."},
		{name: "another network is preferred", seen: "web", spec: environments.HostSettings{Networks: []string{"10.0.0.0/16", "10.1.0.0/16"}}},
		{name: "the first one is of a bridge", seen: "web", want: "172.17.0.1: web1, web2"},
		{name: "the fact has it", seen: "web", spec: environments.HostSettings{AddressFact: "ip"}, checked: "10.0.0.", want: "172.17.0.1: web1, web2"},
		{name: "both have it in the fact", seen: "web", spec: environments.HostSettings{AddressFact: "floating"}, checked: "10.0.0.", want: "192.0.2.9: web1, web2"},
	} {
		of := func(n string) string {
			if c.checked == "" {
				return ""
			}
			return c.checked + n
		}
		e := environment{ref: model.Ref{Environment: "dev"}, exports: export, hosts: map[string]model.Host{
			"web1": host("web1", of("1"), "10.0.0.1", "10.1.0.9"), "web2": host("web2", of("2"), "10.0.0.2", "10.1.0.9"),
		}}
		e.spec = &environments.Environment{Hosts: c.spec, Roles: []environments.Role{{Name: "lb", Sees: []string{c.seen}}}}
		var got []string
		for _, f := range claims(&facts{environments: []environment{e}}) {
			got = append(got, f.Params.Subject+": "+someNodes(f.Params))
			if !strings.Contains(f.Sentence(), f.Params.Subject) || f.Remedy() == "" {
				t.Errorf("%s: %s", c.name, f.Sentence())
			}
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Local machines have the address of their host. A trial must not begin with advice to remove nodes.
func TestLocalMachinesShareTheirHostsAddress(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]int{environments.DriverLocal: 0, environments.DriverNone: 2} {
		e := environment{spec: &environments.Environment{Provider: environments.Provider{Driver: driver}}, hosts: map[string]model.Host{
			"web1": {Node: "web1", Checked: "10.0.0.1"}, "web2": {Node: "web2", Checked: "10.0.0.1", Refused: []model.Claim{{Value: "10.0.0.1", Of: "web1"}}},
		}}
		if got := claims(&facts{environments: []environment{e}}); len(got) != want {
			t.Errorf("driver %s: %+v", driver, got)
		}
	}
}

// An environment that could not be examined must not look like one without problems.
func TestUnexaminedEnvironmentIsNamed(t *testing.T) {
	t.Parallel()
	got := readable(&facts{environments: []environment{{ref: model.Ref{Environment: "dev"}, unexamined: []error{errors.New("cannot list first boots")}}}})
	if len(got) != 1 || got[0].Severity != Warning || got[0].Environment != "dev" || got[0].Sentence() != "cannot be examined: cannot list first boots" || got[0].Remedy() == "" {
		t.Errorf("%+v", got)
	}
}
