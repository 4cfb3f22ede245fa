package environments

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pulley/environments/settings"
)

// A wrong server gives a node the code of another region, or none.
func TestChooseServer(t *testing.T) {
	t.Parallel()
	servers := map[string]settings.PuppetServer{
		"eu1": {Address: "10.0.0.1", Attributes: map[string]string{"region": "eu", "country": "nl"}},
		"eu2": {Address: "10.0.0.2", Attributes: map[string]string{"region": "eu", "country": "de"}},
		"us1": {Address: "fd00::1", Attributes: map[string]string{"region": "us", "os.family": "RedHat"}},
	}
	for _, c := range []struct {
		sentence string
		p        settings.PuppetSettings
		values   map[string]string
		want     string
	}{
		{"the first criterion decides, whatever later ones say", settings.PuppetSettings{Choose: []string{"region", "country"}}, map[string]string{"region": "us", "country": "nl"}, `server us1, because region is "us"`},
		{"a later criterion decides where the first matches nothing", settings.PuppetSettings{Choose: []string{"region", "country"}}, map[string]string{"region": "asia", "country": "de"}, `server eu2, because country is "de"`},
		{"a fact", settings.PuppetSettings{Choose: []string{"region", "os.family"}}, map[string]string{"os.family": "RedHat"}, `server us1, because os.family is "RedHat"`},
		{"values are compared exactly", settings.PuppetSettings{Choose: []string{"region"}}, map[string]string{"region": "EU"}, "no server: no criterion matches, and there is no fallback"},
		{"a node without values", settings.PuppetSettings{Choose: []string{"region"}}, nil, "no server: no criterion matches, and there is no fallback"},
		{"a fallback", settings.PuppetSettings{Choose: []string{"region"}, Fallback: "us1"}, nil, "server us1: no criterion matches, and it is the fallback"},
		{"a fallback that would match is no fallback", settings.PuppetSettings{Choose: []string{"region"}, Fallback: "us1"}, map[string]string{"region": "us"}, `server us1, because region is "us"`},
		{"a match goes before the fallback", settings.PuppetSettings{Choose: []string{"country"}, Fallback: "us1"}, map[string]string{"country": "nl"}, `server eu1, because country is "nl"`},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			c.p.Servers = servers
			if got := c.p.ChooseServer("web1", func(of string) string { return c.values[of] }); got.String() != c.want || got.Others != nil {
				t.Errorf("got %s, others %q, want %s", got, got.Others, c.want)
			}
		})
	}
	if got := new(settings.PuppetSettings).ChooseServer("web1", func(string) string { return "" }); got.Reason != settings.ChoiceNoFile || got.String() != "no server: the release has no puppet.servers in the file of this environment" {
		t.Errorf("without servers: %+v", got)
	}
}

// Nodes of one region must use all of its servers, and a node must not change its server when another one is added elsewhere.
func TestEqualServersShareTheNodes(t *testing.T) {
	t.Parallel()
	p := settings.PuppetSettings{Choose: []string{"region"}, Failover: true, Fallback: "us1", Servers: map[string]settings.PuppetServer{
		"eu1": {Address: "a", Attributes: map[string]string{"region": "eu"}}, "eu2": {Address: "b", Attributes: map[string]string{"region": "eu"}},
		"us1": {Address: "c", Attributes: map[string]string{"region": "us"}}, "us2": {Address: "d", Attributes: map[string]string{"region": "us"}},
	}}
	eu := func(string) string { return "eu" }
	count, before := map[string]int{}, map[string]string{}
	for i := range 1000 {
		node := fmt.Sprintf("web%d", i+1)
		c := p.ChooseServer(node, eu)
		count[c.Server]++
		before[node] = c.Server
		if !strings.HasPrefix(c.Others[0], "eu") || c.Others[1] != "us1" || c.Others[2] != "us2" {
			t.Fatalf("%s tries %q after %s", node, c.Others, c.Server)
		}
	}
	if count["eu1"] < 400 || count["eu2"] < 400 {
		t.Errorf("the nodes are distributed unevenly: %v", count)
	}
	p.Servers["eu3"] = settings.PuppetServer{Address: "e", Attributes: map[string]string{"region": "eu"}}
	moved := 0
	for node, server := range before {
		switch now := p.ChooseServer(node, eu).Server; now {
		case server:
		case "eu3":
			moved++
		default:
			t.Errorf("%s moved from %s to %s", node, server, now)
		}
	}
	if moved < 250 || moved > 420 {
		t.Errorf("the new server has %d of 1000 nodes", moved)
	}
	p.Choose = nil
	count = map[string]int{}
	for node := range before {
		c := p.ChooseServer(node, eu)
		if c.Reason != settings.ChoiceSpread {
			t.Fatalf("%s: %+v", node, c)
		}
		count[c.Server]++
	}
	if len(count) != 5 {
		t.Errorf("without criteria, nodes use %v", count)
	}
}

// A node whose facts change moves to the server of its new value, and each choice is one of the servers, each once.
func TestChoicesKeepInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name, value := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), rapid.SampledFrom([]string{"", "x", "y", "z"})
		p := settings.PuppetSettings{Servers: map[string]settings.PuppetServer{}, Failover: true, Choose: rapid.SliceOfDistinct(rapid.SampledFrom([]string{"r", "s"}), rapid.ID[string]).Draw(t, "choose")}
		for _, n := range rapid.SliceOfDistinct(name, rapid.ID[string]).Draw(t, "servers") {
			p.Servers[n] = settings.PuppetServer{Attributes: map[string]string{"r": value.Draw(t, "r"), "s": value.Draw(t, "s")}}
		}
		if len(p.Servers) > 0 && rapid.Bool().Draw(t, "fallback") {
			p.Fallback = slices.Sorted(maps.Keys(p.Servers))[0]
		}
		of := map[string]string{"r": value.Draw(t, "of r"), "s": value.Draw(t, "of s")}
		c := p.ChooseServer("n", func(key string) string { return of[key] })
		if c.Reason == settings.ChoiceNoServer || c.Reason == settings.ChoiceNoFile {
			if c.Server != "" || c.Others != nil || p.Fallback != "" {
				t.Fatalf("%+v", c)
			}
			return
		}
		all := append([]string{c.Server}, c.Others...)
		if slices.Sort(all); !slices.Equal(all, slices.Sorted(maps.Keys(p.Servers))) {
			t.Fatalf("it tries %q of %v", all, p.Servers)
		}
		if c.Reason == settings.ChoiceMatched && (c.Value == "" || p.Servers[c.Server].Attributes[c.Criterion] != of[c.Criterion]) {
			t.Fatalf("%+v does not match %v", c, of)
		}
	})
}

func TestNamesOfServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s              settings.PuppetServer
		hostPort, name string
	}{
		{settings.PuppetServer{Address: "10.0.0.1"}, "10.0.0.1:8140", "puppet"},
		{settings.PuppetServer{Address: "fd00::1", Port: 18140, Name: "p.example"}, "[fd00::1]:18140", "p.example"},
		{settings.PuppetServer{Address: "puppet.example.com"}, "puppet.example.com:8140", "puppet.example.com"},
		{settings.PuppetServer{Address: "lb.example.com", Name: "puppet"}, "lb.example.com:8140", "puppet"},
	} {
		if c.s.HostPort() != c.hostPort || c.s.CertificateName() != c.name {
			t.Errorf("%+v: %s, %s", c.s, c.s.HostPort(), c.s.CertificateName())
		}
	}
}

// A mistake here sends a whole fleet to the wrong server, and only a run would show it.
func TestMistakesInServers(t *testing.T) {
	t.Parallel()
	const one = "puppet:\n  servers: {eu1: {address: 10.0.0.1, attributes: {region: eu}}}\n"
	for _, c := range []struct{ sentence, yaml, want string }{
		{"everything", `puppet:
  servers:
    eu1: {address: 10.0.0.1, attributes: {region: eu, country: nl}}
    eu2: {address: "fd00::1", name: puppet.example.com, attributes: {region: eu, country: nl}}
    us1: {address: puppet-us.example.com, port: 18140, attributes: {region: us, os.family: RedHat}}
  choose: [region, country, os.family]
  fallback: eu1
  failover: true
  ca: {url: "https://10.0.0.1:8140", how: presigned, also: ["https://10.0.0.2:8140"]}
  bootstrap: bootstrap
  settings: {http_read_timeout: 2m, http_keepalive_timeout: "4"}
  enforce: off
  provision: {concurrency: 10, sleeptime: 5s, turn: 1h, where: region == 'eu'}
  puppetdb: https://puppetdb.example:8081
`, ""},
		{"an unknown server", one + "  choose: [region]\n  fallback: eu2\n", `dev.yaml:4:13: puppet.fallback is "eu2", and there is no such server | did you mean eu1?`},
		{"an unknown server unlike the others", one + "  choose: [region]\n  fallback: other\n", `dev.yaml:4:13: puppet.fallback is "other", and there is no such server | the servers are eu1`},
		{"a criterion with a typo", one + "  choose: [regoin]\n", `dev.yaml:3:12: puppet.choose has "regoin", and no server has this attribute | did you mean region?`},
		{"a criterion that no server has", one + "  choose: [region, rack]\n", `dev.yaml:3:20: puppet.choose has "rack", and no server has this attribute | write ` + "`attributes: {rack: VALUE}` at the servers that it chooses"},
		{"a criterion twice", one + "  choose: [region, region]\n", `dev.yaml:3:20: puppet.choose has "region" twice | keep one of them`},
		{"a server without an address", "puppet:\n  servers: {eu1: {port: 8140}}\n", "dev.yaml:2:13: server \"eu1\" has no address | write its IP address or host name: `address: 10.0.0.1`"},
		{"a URL", "puppet:\n  servers: {eu1: {address: \"https://p.example:8140\"}}\n", "dev.yaml:2:28: puppet.servers.eu1.address \"https://p.example:8140\": it is a URL | write `address: p.example`; a port other than 8140 is the key port"},
		{"an address with a port", "puppet:\n  servers: {eu1: {address: \"10.0.0.1:8140\"}}\n", "dev.yaml:2:28: puppet.servers.eu1.address \"10.0.0.1:8140\": it has a port | write `address: 10.0.0.1, port: 8140`"},
		{"a name with a port", "puppet:\n  servers: {eu1: {address: \"p.example:8141\"}}\n", "dev.yaml:2:28: puppet.servers.eu1.address \"p.example:8141\": it has a port | write `address: p.example, port: 8141`"},
		{"a wrong IP address", "puppet:\n  servers: {eu1: {address: 10.0.0.256}}\n", `dev.yaml:2:28: puppet.servers.eu1.address "10.0.0.256": it is not an IP address | write it like 10.0.0.1 or fd00::1, without a zone`},
		{"an address with a zone", "puppet:\n  servers: {eu1: {address: \"fe80::1%eth0\"}}\n", `dev.yaml:2:28: puppet.servers.eu1.address "fe80::1%eth0": it is not an IP address | write it like 10.0.0.1 or fd00::1, without a zone`},
		{"capitals", "puppet:\n  servers: {eu1: {address: Puppet}}\n", `dev.yaml:2:28: puppet.servers.eu1.address "Puppet": it is neither an IP address nor a host name in small letters`},
		{"a port that is none", "puppet:\n  servers: {eu1: {address: p, port: 70000}}\n", `dev.yaml:2:37: puppet.servers.eu1.port: it is 70000, ports are from 1 to 65535 | leave it out for 8140`},
		{"a server's name", "puppet:\n  servers: {EU: {address: p}}\n", `dev.yaml:2:13: server "EU": names of servers may contain small letters, digits, _ and -, like eu1`},
		{"Norway", "puppet:\n  servers: {no1: {address: p, attributes: {country: no}}}\n", `dev.yaml:2:53: puppet.servers.no1.attributes.country is the boolean "no", not text | put quotes around it: "no"`},
		{"a setting of Pulley", one + "  settings: {server: p.example}\n", `dev.yaml:3:22: puppet.settings "server": Pulley sets it itself | the servers are in servers`},
		{"a setting that hides other code", one + "  settings: {usecacheonfailure: \"true\"}\n", `dev.yaml:3:33: puppet.settings "usecacheonfailure": Pulley sets it itself | leave it out`},
		{"a way to make certificates", one + "  ca: {how: autosign}\n", `dev.yaml:3:13: puppet.ca.how "autosign": it is either csr or presigned`},
		{"a CA without TLS", one + "  ca: {url: \"http://p:8140\"}\n", `dev.yaml:3:13: puppet.ca.url "http://p:8140": it is not a URL with https | write it like https://10.0.0.1:8140`},
		{"a CA with a path", one + "  ca: {url: \"https://p:8140/puppet-ca/v1\"}\n", `dev.yaml:3:13: puppet.ca.url "https://p:8140/puppet-ca/v1": it is not a URL without a path | did you mean https://p:8140?`},
		{"enforce as a boolean", one + "  enforce: false\n", `dev.yaml:3:12: puppet.enforce is the boolean "false", not text | put quotes around it: "false"`},
		{"an environment of the server", one + "  bootstrap: Boot-Strap\n", `dev.yaml:3:14: puppet.bootstrap "Boot-Strap": names of Puppet's environments may contain small letters, digits and _, like bootstrap`},
		{"criteria without servers", "puppet:\n  choose: [region]\n  enforce: daemon\n", "dev.yaml:2:11: puppet.choose concerns Puppet servers, and puppet has none | write `servers: {eu1: {address: 10.0.0.1}}` beside it\n" +
			"dev.yaml:3:12: puppet.enforce concerns Puppet servers, and puppet has none | write `servers: {eu1: {address: 10.0.0.1}}` beside it"},
		{"enforce: off without servers", "puppet:\n  enforce: off\n", ""},
		{"an extension that gives rights", one + "trusted: {pp_auth_role: x, pp_role: web}\n", "dev.yaml:3:25: trusted.pp_auth_role would give rights at the Puppet servers, and their CA signs no such request | grant rights in auth.conf of the server by the node's name"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := Parse("dev.yaml", []byte(c.yaml+"roles: {web: {cardinality: 1}}\n"))
			got := ""
			if err != nil {
				got = problemLines(t, err)
			}
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	_, err := Parse("dev.yaml", []byte(one+"roles: {web: {cardinality: 1, trusted: {\"1.3.6.1.4.1.34380.1.3.1\": x}}}\nnodes: {web1: {trusted: {pp_cli_auth: \"true\"}}}\n"))
	if got := problemLines(t, err); strings.Count(got, "would give rights") != 2 {
		t.Error(got)
	}
	o := LoadOptions{File: Source{Name: "dev.yaml", Data: []byte(one + "  provision: {where: \"a ==\"}\nroles: {}\n")}, Expression: func(string) error { return fmt.Errorf("it ends\nwrite a value") }}
	if _, err := Load(o); err == nil || problemLines(t, err) != "dev.yaml:3:22: puppet.provision.where: it ends | write a value" {
		t.Error(err)
	}
}

// Otherwise an operator does not see that an apply moves nodes to another server.
func TestDiffShowsServers(t *testing.T) {
	t.Parallel()
	old := &Environment{Name: "dev", Puppet: settings.PuppetSettings{Servers: map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1"}}}}
	changed := &Environment{Name: "dev", Puppet: settings.PuppetSettings{Fallback: "eu1", CA: settings.PuppetCA{How: settings.CertificatesMade}, Servers: map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.2", Port: 1}}}}
	want := []string{"puppet.servers.eu1.address: 10.0.0.1 → 10.0.0.2", "puppet.servers.eu1.port: none → 1", "puppet.fallback: none → eu1", "puppet.ca.how: none → presigned"}
	if got := Diff(old, changed).Lines(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("%q", got)
	}
}

// A node with the name of a server would have the server's certificate revoked at its removal.
func TestServersAreKnownByTheirNames(t *testing.T) {
	t.Parallel()
	p := settings.PuppetSettings{
		Servers:  map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1", Name: "eu1.example.com"}, "us1": {Address: "us1.example.com"}},
		CA:       settings.PuppetCA{URL: "https://ca.example.com:8140", Also: []string{"https://old.example.com"}},
		PuppetDB: "https://db.example.com:8081",
	}
	for name, want := range map[string]bool{
		"eu1.example.com": true, "us1.example.com": true, "ca.example.com": true, "old.example.com": true, "db.example.com": true, "puppet": true,
		"web1": false, "eu1": false, "": false, "xus1.example.com": false,
	} {
		if got := p.IsServer(name); got != want {
			t.Errorf("%q is a server: %t", name, got)
		}
	}
	if (&settings.PuppetSettings{}).IsServer("") {
		t.Error("no name is that of a server")
	}
}
