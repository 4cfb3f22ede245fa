package environments

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"

	"pulley/environments/settings"
	"pulley/hieradata"
	"pulley/internal/model"
)

// symbols are difficult symbols: YAML could read some of them as another type.
var symbols = rapid.SampledFrom([]string{"bare-metal", "m1.large", "ü", "4", "true", "~", "a:b", `"`, "&x", "<big>", "null", "1e3"})

// anyEnvironment draws valid environments. It omits role names that Pulley refuses as too similar.
var anyEnvironment = rapid.Custom(func(t *rapid.T) *Environment {
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,8}(-[a-z]{1,8})?`), 0, 6, rapid.ID[string]).Draw(t, "roles")
	e := &Environment{Name: rapid.StringMatching(`[a-z][a-z0-9_]{0,20}`).Draw(t, "name"), Stack: rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?`)).Draw(t, "stack")}
	rich := rapid.Bool().Draw(t, "rich")
	for i, name := range names {
		r := Role{Name: name, Cardinality: rapid.IntRange(0, 12).Draw(t, "cardinality"), Flavor: maybe(t, symbols)}
		if rich {
			r = drawRole(t, r, names[:i], names[i+1:])
			r.Members = drawList(t, rapid.Just(fmt.Sprintf("old%d.example.com", i)))
		}
		e.Roles = append(e.Roles, r)
	}
	if rich {
		e.Provider, e.Userdata, e.Statement = drawProvider(t), drawUserdata(t), drawTime(t)
		e.drawTables(t)
		e.Rollout = drawRollout(t)
		e.Trusted = drawMap(t, rapid.SampledFrom([]string{"pp_role", "1.3.6.1"}), symbols)
		if len(e.Roles) > 0 && e.Roles[0].Cardinality > 0 {
			e.Puppet = drawPuppet(t)
			if len(e.Puppet.Servers) > 0 {
				e.ENC, e.Roles[0].ENC = drawClassification(t), drawClassification(t)
			}
			e.Hosts = HostSettings{Networks: []string{"10.0.0.0/8"}, Settle: drawTime(t), Exports: []string{"ssh.ed25519.key"}, AddressFact: "networking.ip", Alive: model.Duration(rapid.SampledFrom([]time.Duration{0, 15 * time.Minute, 720 * time.Hour}).Draw(t, "alive"))}
			e.Roles[0].Sees = drawList(t, rapid.Just(AllRoles))
			first := RoleRollout{Batch: "1", BatchFailures: "0"}
			if len(names) > 1 {
				first.After = drawList(t, rapid.SampledFrom(names[1:]))
			}
			e.Rollout.Roles = map[string]RoleRollout{names[0]: first}
			if rapid.Bool().Draw(t, "applications") {
				name := symbols.Draw(t, "instance")
				e.Applications = Applications{"Lamp": {name: {
					symbols.Draw(t, "component"): {Node: names[0] + "1", Produces: []string{"sql"}, Consumes: drawList(t, rapid.Just("sql"))},
					"Lamp::Webapp[a]":            {Role: names[0], Consumes: []string{"sql"}},
				}}}
			}
			e.ByNode = map[string]NodeSettings{names[0] + "1": {Trusted: map[string]string{"pp_zone": "a"}}}
		}
	}
	return e
})

func drawRole(t *rapid.T, r Role, before, behind []string) Role {
	r.Image, r.Networks = maybe(t, symbols), drawList(t, symbols)
	r.Trusted = drawMap(t, rapid.SampledFrom([]string{"pp_role", "1.3.6.1"}), symbols)
	r.Labels = drawMap(t, rapid.StringMatching(`[a-oq-z][A-Za-z0-9._/-]{0,8}`), symbols)
	if len(before) > 0 {
		r.After = drawList(t, rapid.SampledFrom(before))
		r.ReactsTo = drawList(t, rapid.SampledFrom(slices.Concat(before, behind)))
	}
	r.Protected = rapid.Bool().Draw(t, "protected")
	r.Replace = replace{
		Batch: maybe(t, rapid.SampledFrom([]string{"1", "25%", "100%"})), Failures: maybe(t, rapid.SampledFrom([]string{"0", "3", "1%"})), Timeout: drawTime(t),
	}
	r.Userdata = drawUserdata(t)
	r.Userdata.Servers, r.Userdata.CA, r.Userdata.AgentURLs = nil, nil, nil // settings that are only valid together
	return r
}

func drawPuppet(t *rapid.T) settings.PuppetSettings {
	p := settings.PuppetSettings{Reports: []string{"puppetdb"}, Enforce: maybe(t, rapid.Just("off")), PuppetDB: maybe(t, rapid.Just("https://puppetdb.example:8081"))}
	if rapid.Bool().Draw(t, "servers") {
		return p
	}
	p.Servers = map[string]settings.PuppetServer{
		"eu1": {Address: rapid.SampledFrom([]string{"10.0.0.1", "fd00::1", "puppet.example.com"}).Draw(t, "address"), Attributes: map[string]string{"region": "eu"}},
		"us1": {Address: "puppet-us", Port: rapid.IntRange(1, settings.MaxPort).Draw(t, "port"), Name: maybe(t, rapid.Just("puppet")), Attributes: drawMap(t, rapid.Just("os.family"), symbols)},
	}
	p.Choose, p.Fallback, p.Failover = drawList(t, rapid.Just("region")), maybe(t, rapid.Just("us1")), rapid.Bool().Draw(t, "failover")
	url := rapid.SampledFrom([]string{"https://10.0.0.1:8140", "https://[fd00::1]:8140", "https://ca.example/"})
	p.CA = settings.PuppetCA{URL: maybe(t, url), How: maybe(t, rapid.SampledFrom([]string{settings.CertificatesByCSR, settings.CertificatesMade})), Also: drawList(t, url)}
	p.Bootstrap, p.Settings = maybe(t, rapid.Just("bootstrap")), drawMap(t, rapid.Just("http_read_timeout"), symbols)
	p.Provision = settings.PuppetProvision{Concurrency: rapid.IntRange(0, 20).Draw(t, "concurrency"), Sleeptime: drawTime(t), Turn: drawTime(t), Where: maybe(t, rapid.Just("region == 'eu'"))}
	return p
}

func drawClassification(t *rapid.T) (c Classification) {
	value := rapid.SampledFrom([]string{`1`, `1.0`, `"1"`, `true`, `~`, `{}`, `[a, {b: [2.5, "yes", "<é\u2028"]}]`, `-9223372036854775808`, `1.0e+300`})
	values := func() Values {
		drawn := Values{}
		for name, text := range rapid.MapOfN(rapid.SampledFrom([]string{"servers", "aB_1"}), value, 0, 2).Draw(t, "values") {
			var n yaml.Node
			if err := yaml.Unmarshal([]byte(text), &n); err != nil {
				t.Fatal(err)
			}
			v, err := hieradata.FromYAML(n.Content[0])
			if err != nil {
				t.Fatal(err)
			}
			drawn[name] = v
		}
		return drawn
	}
	c.Classes = map[string]Values{}
	for _, class := range drawList(t, rapid.SampledFrom([]string{"ntp", "role::web"})) {
		c.Classes[class] = values()
	}
	c.Parameters = values()
	c.tidy()
	return c
}

func drawRollout(t *rapid.T) RolloutPolicy {
	share := rapid.SampledFrom([]string{"0", "3", "1%"})
	p := RolloutPolicy{
		Canaries: maybe(t, share), CanariesWhere: maybe(t, rapid.Just(`os.family == "Debian"`)), Batch: maybe(t, rapid.Just("25%")), Failures: maybe(t, share),
		BatchFailures: maybe(t, share), Sample: rapid.SampledFrom([]int{0, 20}).Draw(t, "sample"), Retries: rapid.IntRange(0, 3).Draw(t, "retries"), Settle: drawTime(t), Deadline: drawTime(t), Progress: drawTime(t),
		Promote: maybe(t, rapid.SampledFrom([]string{"manual", "batches"})), Skip: maybe(t, share), OnFailure: maybe(t, rapid.Just("revert")), DirectLimit: maybe(t, share),
	}
	if p.Promote == "manual" && p.Canaries == "0" {
		p.Promote = ""
	}
	p.Progress = max(p.Progress, p.Deadline+DefaultProgress)
	if p.Preview.Required = rapid.Bool().Draw(t, "preview"); p.Preview.Required {
		p.Preview.MaxChanged = rapid.IntRange(0, 50).Draw(t, "max_changed")
	}
	treatment := rapid.SampledFrom([]string{"wait", "skip", "fail"})
	p.Unready = UnreadyPolicy{Silent: maybe(t, treatment), Duplicate: maybe(t, treatment), Others: maybe(t, treatment)}
	p.Gates = drawList(t, rapid.Just("errors"))
	p.Windows = drawList(t, rapid.Just("mon-thu,sun 22:00-04:00 Europe/Berlin"))
	if rapid.Bool().Draw(t, "places") {
		p.MaxUnavailable, p.MaxPlaces = map[string]int{"networking.domain": 2}, map[string]int{"site": 1}
		p.TrustedFacts = []string{"networking.domain", "site"}
	}
	return p
}

// drawTables adds an entry for each symbol, or no tables.
func (e *Environment) drawTables(t *rapid.T) {
	for _, table := range []struct {
		into *map[string]string
		used func(Role) []string
	}{
		{&e.Flavors, func(r Role) []string { return []string{r.Flavor} }},
		{&e.Images, func(r Role) []string { return []string{r.Image} }},
		{&e.Networks, func(r Role) []string { return r.Networks }},
	} {
		if rapid.Bool().Draw(t, "table") {
			continue
		}
		words := map[string]string{}
		for _, r := range e.Roles {
			for _, symbol := range table.used(r) {
				if symbol != "" {
					words[symbol] = rapid.SampledFrom([]string{"m1.small", "Debian 12", "5c1f"}).Draw(t, "word")
				}
			}
		}
		if len(words) > 0 {
			*table.into = words
		}
	}
}

func drawProvider(t *rapid.T) Provider {
	p := Provider{Driver: rapid.SampledFrom(append(drivers(), "")).Draw(t, "driver")}
	if p.Driver != "" && p.Driver != DriverNone {
		p.Owner = maybe(t, rapid.Just("acme-prod"))
	}
	switch p.Driver {
	case DriverExec:
		p.Command, p.Timeout = []string{"/usr/local/bin/cloud", "--fast"}, drawTime(t)
	case DriverLocal:
		p.Folder, p.Agent, p.Interval = maybe(t, rapid.Just("/var/lib/m")), maybe(t, rapid.Just("/usr/bin/pulley-agent")), maybe(t, rapid.SampledFrom([]string{"@every 10s", "*/5 * * * *"}))
	case DriverNspawn:
		p.Folder, p.Bridge, p.Subnet = maybe(t, rapid.Just("/var/lib/m")), maybe(t, rapid.Just("pulley0")), maybe(t, rapid.Just("10.77.0.0/16"))
	case DriverOpenStack:
		p.Cloud, p.Region, p.AvailabilityZone, p.KeyName = maybe(t, symbols), maybe(t, symbols), maybe(t, symbols), maybe(t, symbols)
		p.ServerGroup, p.SecurityGroups, p.ConfigDrive = maybe(t, symbols), drawList(t, symbols), rapid.Bool().Draw(t, "config_drive")
	}
	return p
}

func drawUserdata(t *rapid.T) Userdata {
	u := Userdata{
		Endpoints: drawList(t, rapid.SampledFrom([]string{"https://etcd1.example:2379", "[::1]:2379"})),
		Mirrors:   drawList(t, rapid.SampledFrom([]string{"https://m.example", "https://[::1]:8443/a/b"})), AllowedSigners: maybe(t, rapid.Just("a@x ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVc\n")),
		PuppetPackage: maybe(t, rapid.Just("openvox-agent")), PuppetVersion: maybe(t, rapid.Just("8.19.0-1+debian12")),
		PackageRepo: maybe(t, rapid.SampledFrom([]string{"deb https://apt.example stable main", "https://apt.example/r.deb"})), Proxy: maybe(t, rapid.Just("http://proxy:3128")),
		Schedule: maybe(t, rapid.Just("*/5 * * * *")), Pre: drawList(t, rapid.Just("#!/bin/sh\necho 'ä'\n")), Post: drawList(t, rapid.Just("#!/bin/sh\n: two\n")),
		Steps: drawMap(t, rapid.SampledFrom([]string{"puppet", "pre"}), rapid.SampledFrom([]string{"off", "/usr/local/bin/p q"})),
	}
	if rapid.Bool().Draw(t, "joins") {
		u.Servers, u.CA = []string{"https://pulley.example:8443"}, []string{"sha256:" + strings.Repeat("0a", 32)}
	}
	if rapid.Bool().Draw(t, "agent") {
		u.AgentSHA256 = map[string]string{"any": strings.Repeat("0b", 32)}
		u.AgentURLs = drawList(t, rapid.Just("https://d.example/pulley-agent?x=1"))
	}
	return u
}

func drawTime(t *rapid.T) model.Duration {
	return model.Duration(rapid.SampledFrom([]time.Duration{0, time.Second, 90 * time.Second, 24 * time.Hour}).Draw(t, "time"))
}

func maybe(t *rapid.T, some *rapid.Generator[string]) string {
	return rapid.OneOf(rapid.Just(""), some).Draw(t, "maybe")
}

func drawList(t *rapid.T, of *rapid.Generator[string]) []string {
	if list := rapid.SliceOfNDistinct(of, 0, 1, rapid.ID[string]).Draw(t, "list"); len(list) > 0 {
		return list
	}
	return nil
}

func drawMap(t *rapid.T, key, value *rapid.Generator[string]) map[string]string {
	if m := rapid.MapOfN(key, value, 0, 2).Draw(t, "map"); len(m) > 0 {
		return m
	}
	return nil
}

// render returns e as a file in JSON, which is YAML with every text quoted. The keys of the file are those of the JSON.
func render(e *Environment) []byte {
	file := *e
	file.Name, file.Roles = "", nil
	text := asJSON(file)
	var roles []string
	for _, r := range e.Roles {
		var keys map[string]json.RawMessage
		if err := json.Unmarshal([]byte(asJSON(r)), &keys); err != nil {
			panic(err)
		}
		delete(keys, "name")
		roles = append(roles, asJSON(r.Name)+": "+asJSON(keys))
	}
	text = strings.Replace(text, `"roles":null`, `"roles": {`+strings.Join(roles, ", ")+"}", 1)
	return []byte(strings.Replace(text, `{"name":"",`, "{", 1))
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func same(a, b *Environment) bool { return reflect.DeepEqual(a, b) }
