package hosts

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/facts"
	"pulley/internal/model"
)

func viewOf(t testing.TB, file, role string) *View {
	t.Helper()
	tree := t.TempDir()
	if err := os.Mkdir(filepath.Join(tree, "environments"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "environments/dev.yaml"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	v, err := ViewOf(tree, model.Identity{Environment: "dev@t42", PuppetEnvironment: "dev", Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func listOf(hosts ...model.Host) map[string]model.Host {
	list := map[string]model.Host{}
	for _, h := range hosts {
		list[h.Node] = h
	}
	return list
}

func document(t testing.TB, v *View, list map[string]model.Host) string {
	t.Helper()
	nodes, _ := Parse(list, nil)
	b, err := v.Document(nodes, never)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// never judges nodes of an environment without hosts.alive.
func never(Node) bool { panic("a sign of life is judged without hosts.alive") }

const small = `
hosts: {networks: [10.0.0.0/8, "fd00::/8"]}
roles:
  controller: {cardinality: 3, flavor: "m%1"}
  balancer: {cardinality: 1, sees: [controller, db]}
  db: {cardinality: 0}
  watcher: {cardinality: 1, sees: [all]}
  every: {cardinality: 1, sees: all}
`

// A template that a role without nodes breaks, or one that gets nodes in another order in each run, would change
// machines for nothing.
func TestDocumentIsStable(t *testing.T) {
	list := listOf(
		model.Host{Node: "controller10", Role: "controller", Hostname: "c10.example", Addresses: []string{"192.0.2.1", "10.0.0.10"}, At: time.Now()},
		model.Host{Node: "controller2", Role: "controller", Hostname: "controller2", Addresses: []string{"::ffff:10.0.0.2", "10.0.0.2"}},
		model.Host{Node: "balancer1", Role: "balancer", Hostname: "balancer1"},
		model.Host{Node: "stray1", Role: "stray"},
	)
	v := viewOf(t, small, "balancer")
	want := `{"pulley::hosts":{"controller":[{"name":"controller2","hostname":"controller2","address":"10.0.0.2","flavor":"m%{literal('%')}1"},` +
		`{"name":"controller10","hostname":"controller10","address":"10.0.0.10","flavor":"m%{literal('%')}1"}],"db":[]}}`
	for range 20 {
		if got := compact(t, document(t, v, list)); got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
	}
	for _, role := range []string{"watcher", "every"} {
		if got := document(t, viewOf(t, small, role), list); !strings.Contains(got, "stray1") || !strings.Contains(got, `"every": []`) {
			t.Errorf("%s sees %s", role, got)
		}
	}
	for _, role := range []string{"controller", "nobody"} {
		if v := viewOf(t, small, role); v != nil {
			t.Errorf("%s sees %+v", role, v)
		}
	}
}

// A class that chooses the backends of its own site must not depend on the nodes' facts.
func TestAttributesAreThoseOfTheFile(t *testing.T) {
	v := viewOf(t, `
layers: [node, rack, role, site, environment, common]
nodes:
  web2: {attributes: {rack: r2, site: fra}}
roles:
  web: {cardinality: 2, attributes: {site: ams}, sees: [web, db]}
  db: {cardinality: 1}
`, "web")
	list := listOf(model.Host{Node: "web1_t42", Role: "web"}, model.Host{Node: "web2_t42", Role: "web"}, model.Host{Node: "db1", Role: "db"})
	want := `{"pulley::hosts":{"db":[{"name":"db1","hostname":"db1"}],"web":[{"name":"web1_t42","hostname":"web1-t42","attributes":{"site":"ams"}},` +
		`{"name":"web2_t42","hostname":"web2-t42","attributes":{"rack":"r2","site":"fra"}}]}}`
	if got := compact(t, document(t, v, list)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func compact(t testing.TB, s string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("\n", "", "\": ", "\":").Replace(strings.Join(strings.Fields(s), ""))
}

// Hiera interpolates data, and Puppet writes it into files that root reads. A machine must not choose a text of it.
func TestHostileEntriesAreLeftOut(t *testing.T) {
	v := viewOf(t, small, "watcher")
	list := map[string]model.Host{}
	for i, bad := range []string{
		"%{lookup('secret')}", "a\nb", `"; rm -rf /`, "$(reboot)", "a b", "\x00", "\x1b[2J", strings.Repeat("x", 1<<20), "-x", "x-.y", "é", "10.0.0.1%eth0", "..", "x/../y",
	} {
		list[bad] = model.Host{Node: bad, Role: "controller"}
		list[fmt.Sprint("controller", i)] = model.Host{Node: fmt.Sprint("controller", i), Role: "controller", Hostname: bad, Addresses: []string{bad, "fe80::1%" + bad, fmt.Sprint("10.0.0.1", i)}}
		list[fmt.Sprint("db", i)] = model.Host{Node: fmt.Sprint("db", i), Role: bad}
	}
	list["controller90"] = model.Host{Node: "another", Role: "controller"}
	got := document(t, v, list)
	for _, bad := range []string{"lookup", "rm -rf", "reboot", "eth0", "fe80", `\u`, "é", "xxx", "another", "db1", ".."} {
		if strings.Contains(got, bad) {
			t.Errorf("%q reached Hiera:\n%.2000s", bad, got)
		}
	}
	if n := strings.Count(got, `"address": "10.0.0.1`); n != 14 {
		t.Errorf("%d of 14 nodes kept their usable address", n)
	}
	many := model.Host{Node: "db1", Role: "db"}
	for i := range 100_000 {
		many.Addresses = append(many.Addresses, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	if got := document(t, v, listOf(many)); strings.Count(got, `"10.`) > maxAddresses+1 {
		t.Errorf("one node takes %d bytes", len(got))
	}
}

const withExports = `
hosts: {networks: [10.0.0.0/8], exports: [ssh, "site.rack"], address_fact: networking.interfaces.eth1.ip}
roles:
  controller: {cardinality: 3}
  balancer: {cardinality: 1, sees: [controller]}
`

// seenFrom returns what a balancer sees of controller1, which publishes facts and exports them.
func seenFrom(t testing.TB, published map[string]string) (seen Shown, left []string) {
	t.Helper()
	tree := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(tree, "environments"), 0o755), os.WriteFile(filepath.Join(tree, "environments/dev.yaml"), []byte(withExports), 0o644)); err != nil {
		t.Fatal(err)
	}
	of := facts.Source{Facts: map[string]json.RawMessage{}}
	for name, value := range published {
		of.Facts[name] = json.RawMessage(value)
	}
	p, err := of.From(nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	packed, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	e, left, err := ExportOf(tree, "dev", packed)
	if err != nil {
		t.Fatal(err)
	}
	list := listOf(model.Host{Node: "controller1", Role: "controller", Addresses: []string{"192.0.2.1", "10.0.0.1"}})
	nodes, _ := Parse(list, map[string]model.Export{"controller1": e, "another": e})
	return viewOf(t, withExports, "balancer").Shown(nodes, never)["controller"][0], left
}

// A balancer needs the keys of hosts, and must not receive all facts of their machines.
func TestExportsAreTheNamedFacts(t *testing.T) {
	s, left := seenFrom(t, map[string]string{
		"ssh": `{"ed25519":{"key":"AAAAC3Nza/+x==","n":[1,2.5,true,null]}}`, "site": `{"rack":"r12","owner":"ann"}`,
		"networking": `{"interfaces":{"eth1":{"ip":"10.9.0.1"}}}`, "secret": `"s3cret"`,
	})
	if got := fmt.Sprintf("%s %s", s.Facts["ssh"], s.Facts["site.rack"]); got != `{"ed25519":{"key":"AAAAC3Nza/+x==","n":[1,2.5,true,null]}} "r12"` || len(s.Facts) != 2 || len(left) > 0 {
		t.Errorf("%s, %q are left", s.Facts, left)
	}
	if s.Address != "10.9.0.1" {
		t.Errorf("the main address is %s", s.Address)
	}
	for _, bad := range []string{`"192.0.2.77"`, `"nowhere"`, `"10.0.0.1%eth0"`, `7`, `{"a":"10.0.0.9"}`, `null`} {
		s, _ := seenFrom(t, map[string]string{"networking": `{"interfaces":{"eth1":{"ip":` + bad + `}}}`})
		if s.Address != "10.0.0.1" || s.Facts != nil {
			t.Errorf("with the fact %s, the address is %s and the exports are %s", bad, s.Address, s.Facts)
		}
	}
}

// One node with a stolen key must not get the traffic, the name or the SSH trust of another one in the files of all nodes that see it.
func TestNodeSpeaksOnlyForItself(t *testing.T) {
	now := time.Now()
	db := model.Host{Node: "db1", Role: "db", Addresses: []string{"10.0.0.31", "10.1.0.31"}, Checked: "10.0.0.31", At: now.Add(-time.Hour)}
	entry := func(checked string, addresses ...string) model.Host {
		return model.Host{Node: "controller1", Role: "controller", Hostname: "db1", Addresses: addresses, Checked: checked, At: now}
	}
	fact := func(address string) map[string]model.Export {
		return map[string]model.Export{"controller1": {Facts: map[string]json.RawMessage{"networking.interfaces.eth1.ip": json.RawMessage(`"` + address + `"`)}}}
	}
	both := fact("10.0.0.77")
	both["db1"] = both["controller1"]
	unnamed := map[string]model.Export{"controller1": {Facts: map[string]json.RawMessage{"": json.RawMessage(`"10.0.0.66"`)}}}
	open := strings.Replace(withExports, "networks: [10.0.0.0/8], ", "", 1)
	if open == withExports {
		t.Fatal("the file has no networks")
	}
	for name, c := range map[string]struct {
		file    string
		host    model.Host
		exports map[string]model.Export
		address string
		checked bool
		db      string
	}{
		"its own":                      {host: entry("10.0.0.9", "10.0.0.1", "10.0.0.9"), address: "10.0.0.9", checked: true, db: "10.0.0.31"},
		"behind NAT":                   {host: entry("", "192.0.2.1", "10.0.0.9"), address: "10.0.0.9", db: "10.0.0.31"},
		"another's":                    {host: entry("", "10.0.0.31", "10.0.0.9"), address: "10.0.0.9", db: "10.0.0.31"},
		"another's alone":              {host: entry("", "10.0.0.31"), db: "10.0.0.31"},
		"another's in a fact":          {host: entry("", "10.0.0.9"), exports: fact("10.0.0.31"), address: "10.0.0.9", db: "10.0.0.31"},
		"another's second":             {host: entry("", "10.1.0.31", "10.0.0.9"), address: "10.0.0.9", db: "10.0.0.31"},
		"another's second in a fact":   {host: entry("", "10.0.0.9"), exports: fact("10.1.0.31"), address: "10.0.0.9", db: "10.0.0.31"},
		"a fact of both":               {host: entry("", "10.0.0.9"), exports: both, address: "10.0.0.9", db: "10.0.0.31"},
		"a fact without address_fact":  {file: strings.Replace(withExports, ", address_fact: networking.interfaces.eth1.ip", "", 1), host: entry("", "10.0.0.9"), exports: unnamed, address: "10.0.0.9", db: "10.0.0.31"},
		"a second one, open":           {file: open, host: entry("", "10.1.0.31"), db: "10.0.0.31"},
		"a second one, two networks":   {file: strings.Replace(withExports, "10.0.0.0/8", "10.1.0.0/16", 1), host: entry("10.0.0.9", "10.1.0.31", "10.0.0.9")},
		"loopback":                     {file: open, host: entry("127.0.0.1", "127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "fe80::1", "169.254.1.1"), db: "10.0.0.31"},
		"loopback in a fact":           {file: open, host: entry(""), exports: fact("127.0.0.1"), db: "10.0.0.31"},
		"a checked one that is no own": {host: entry("10.0.0.5", "10.0.0.9"), address: "10.0.0.9", db: "10.0.0.31"},
		"DHCP gave it the address":     {host: entry("10.0.0.31", "10.0.0.31"), address: "10.0.0.31", checked: true, db: "10.1.0.31"},
		"without networks":             {file: open, host: entry("10.0.0.9", "192.0.2.1", "10.0.0.9"), address: "10.0.0.9", checked: true, db: "10.0.0.31"},
	} {
		nodes, _ := Parse(listOf(db, c.host), c.exports)
		seen := viewOf(t, strings.Replace(cmp.Or(c.file, withExports), "sees: [controller]}", "sees: [db, controller]}\n  db: {cardinality: 1}", 1), "balancer").Shown(nodes, never)
		if s := seen["controller"][0]; s.Hostname != "controller1" || s.Address != c.address || s.Checked != c.checked {
			t.Errorf("%s: %+v", name, s)
		}
		if s := seen["db"]; len(s) != 1 || s[0].Address != c.db {
			t.Errorf("%s: the other one has %+v", name, s)
		}
	}
}

// The owner of a machine chooses its facts, and whoever has its key writes its export without this program.
func TestHostileExportsAreRefused(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k%d":1`, i)
	}
	v := viewOf(t, withExports, "balancer")
	list := listOf(model.Host{Node: "controller1", Role: "controller", Addresses: []string{"10.0.0.1"}})
	for _, bad := range []string{
		`"%{lookup('secret')}"`, `"a\nb"`, `"\u0000"`, `"\u001b[2J"`, `"\"; rm -rf /"`, `"$(reboot)"`, `"a;b"`, `"é"`, `"\u202e"`, `"a\\b"`, `{"%{x}":1}`, `["<%= x %>"]`,
		`"` + strings.Repeat("x", 1<<20) + `"`, "{" + strings.Join(keys, ",") + "}", deep, "1e999999", strings.Repeat("9", 5000), "no json", `1 2`, ``, "\xff", `"\ud800"`,
	} {
		of := map[string]json.RawMessage{"ssh": json.RawMessage(bad), "site.rack": json.RawMessage(`"r1"`), "secret": json.RawMessage(`"s"`), "%{x}": json.RawMessage("1")}
		nodes, left := Parse(list, map[string]model.Export{"controller1": {Facts: of}})
		if s := v.Shown(nodes, never)["controller"][0]; len(s.Facts) != 1 || string(s.Facts["site.rack"]) != `"r1"` || left != 0 {
			t.Errorf("%.60q: the balancer sees %.200s", bad, s.Facts)
		}
		if len(bad) < 1<<10 && json.Valid([]byte(bad)) && bad != deep {
			if _, why := seenFrom(t, map[string]string{"ssh": bad}); len(why) != 1 || !strings.HasPrefix(why[0], "ssh: ") || len(why[0]) > 200 {
				t.Errorf("%.60q: the node does not report it: %q", bad, why)
			}
		}
	}
	many := map[string]json.RawMessage{}
	for i := range 100_000 {
		many[fmt.Sprint("k", i)] = json.RawMessage("1")
	}
	if nodes, _ := Parse(list, map[string]model.Export{"controller1": {Facts: many}}); nodes[0].Exports != nil {
		t.Errorf("one node exports %d facts", len(nodes[0].Exports))
	}
	large := map[string]json.RawMessage{}
	for i := range maxExports {
		large[fmt.Sprint("k", i)] = json.RawMessage(`"` + strings.Repeat("x", maxText) + `"`)
	}
	nodes, _ := Parse(list, map[string]model.Export{"controller1": {Facts: large}})
	if b, _ := json.Marshal(nodes); len(b) > maxExport+1000 {
		t.Errorf("one node takes %d bytes", len(b))
	}
}

// A release whose file is damaged must stop the run: without its nodes, Puppet would remove them from files.
func TestUnreadableFilesAreRefused(t *testing.T) {
	for _, bad := range []string{
		"roles: {web: {sees: {a: b}}}", "roles: {web: {sees: [[x]]}}", "roles: [sees: x", "hosts: {settle: soon}\nroles: {web: {sees: [a]}}",
		"hosts: {networks: [nowhere]}\nroles: {web: {sees: [a]}}", "hosts: {settle: 25h}\nroles: {web: {sees: [a]}}", "roles: 7 # sees: x",
		"hosts: {alive: soon}\nroles: {web: {sees: [a]}}", "hosts: {alive: 14m}\nroles: {web: {sees: [a]}}", "hosts: {alive: 721h}\nroles: {web: {sees: [a]}}", "hosts: {alive: -1h}\nroles: {web: {sees: [a]}}",
		"hosts: {exports: ['%{x}']}\nroles: {web: {sees: [a]}}", "hosts: {exports: x}\nroles: {web: {sees: [a]}}",
	} {
		if v, err := parse([]byte(bad), "web"); err == nil {
			t.Errorf("%s: %+v", bad, v)
		}
	}
}

// hosts.d/ acts on the difference only.
func TestCompare(t *testing.T) {
	v := viewOf(t, small, "balancer")
	one := model.Host{Node: "controller1", Role: "controller", Hostname: "one"}
	two := model.Host{Node: "controller2", Role: "controller", Hostname: "two"}
	moved := two
	moved.Addresses = []string{"10.0.0.9"}
	three := model.Host{Node: "controller3", Role: "controller"}
	before, after := []byte(document(t, v, listOf(one, two))), []byte(document(t, v, listOf(moved, three)))
	d, err := Compare(before, after)
	if err != nil || len(d.Added["controller"]) != 1 || d.Added["controller"][0].Name != "controller3" || d.Removed["controller"][0].Name != "controller1" || d.Changed["controller"][0].Address != "10.0.0.9" {
		t.Errorf("%+v: %v", d, err)
	}
	if d, err := Compare(after, after); err != nil || !d.IsZero() {
		t.Errorf("the same file differs: %+v: %v", d, err)
	}
	if d, err := Compare(nil, before); err != nil || len(d.Added["controller"]) != 2 {
		t.Errorf("the first file: %+v: %v", d, err)
	}
	exports := func(key string) map[string]model.Export {
		return map[string]model.Export{"controller1": {Facts: map[string]json.RawMessage{"ssh": json.RawMessage(key)}}}
	}
	v = viewOf(t, withExports, "balancer")
	var files [][]byte
	for _, key := range []string{`{"key":"a"}`, `{"key":"a"}`, `{"key":"b"}`} {
		nodes, _ := Parse(listOf(one), exports(key))
		b, err := v.Document(nodes, never)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, b)
	}
	if same, err := Compare(files[0], files[1]); err != nil || !same.IsZero() || !bytes.Equal(files[0], files[1]) {
		t.Errorf("the same exports differ: %+v: %v", same, err)
	}
	if d, err := Compare(files[1], files[2]); err != nil || len(d.Changed["controller"]) != 1 || !strings.Contains(string(d.Changed["controller"][0].Facts["ssh"]), `"b"`) {
		t.Errorf("a changed export: %+v: %v", d, err)
	}
	if _, err := Compare([]byte("{"), after); err == nil {
		t.Error("a damaged file compares")
	}
}

// Ten thousand hosts delay a run by 150 ms at most; docs/performance.md has the measured time.
func BenchmarkTenThousandHosts(b *testing.B) {
	v := viewOf(b, small, "balancer")
	list := map[string]model.Host{}
	for i := range 10_000 {
		name := fmt.Sprint("controller", i+1)
		list[name] = model.Host{Node: name, Role: "controller", Hostname: name, Addresses: []string{fmt.Sprintf("10.0.%d.%d", i>>8, i&255), "192.0.2.1"}}
	}
	b.ReportAllocs()
	for b.Loop() {
		document(b, v, list)
	}
}

// A load balancer would keep dead backends, or drop living ones, and a file that differs without a cause would start Puppet on all nodes.
func TestAliveFollowsTheSigns(t *testing.T) {
	file := strings.Replace(small, "{networks", "{alive: 1h, networks", 1)
	v := viewOf(t, file, "balancer")
	list := listOf(model.Host{Node: "controller1", Role: "controller"}, model.Host{Node: "controller2", Role: "controller"}, model.Host{Node: "controller3", Role: "controller"})
	after := func(since int64, signs map[string]model.Export) []byte {
		nodes, _ := Parse(list, signs)
		b, err := v.Document(nodes, func(n Node) bool { return n.Signed > since })
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// Exports of a release without hosts.alive are no sign of life.
	signs := map[string]model.Export{"controller1": {Alive: time.Hour, Revision: 20}, "controller2": {Alive: time.Hour, Revision: 10}, "controller3": {Revision: 99}}
	before := after(10, signs)
	if got, want := compact(t, string(before)), `{"pulley::hosts":{"controller":[{"name":"controller1","hostname":"controller1","flavor":"m%{literal('%')}1","alive":true},`+
		`{"name":"controller2","hostname":"controller2","flavor":"m%{literal('%')}1","alive":false},{"name":"controller3","hostname":"controller3","flavor":"m%{literal('%')}1","alive":false}],"db":[]}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	signs["controller1"] = model.Export{Alive: time.Hour, Revision: 30}
	if !bytes.Equal(after(15, signs), before) {
		t.Error("a further sign of life changes the file")
	}
	signs["controller2"] = model.Export{Alive: time.Hour, Revision: 40}
	if d, err := Compare(before, after(15, signs)); err != nil || len(d.Changed["controller"]) != 1 || d.Changed["controller"][0].Name != "controller2" || !*d.Changed["controller"][0].Alive {
		t.Errorf("hooks receive %+v: %v", d, err)
	}
	without := []byte(document(t, viewOf(t, small, "balancer"), list))
	if d, err := Compare(without, before); err != nil || len(d.Changed["controller"]) != 3 {
		t.Errorf("with a new hosts.alive, hooks receive %+v: %v", d, err)
	}
}

// The nodes of a role that sees nobody give signs of life, also without facts.
func TestExportHasTheTimeOfSigns(t *testing.T) {
	for file, want := range map[string]time.Duration{
		"hosts: {alive: 90m}": 90 * time.Minute, "hosts: {alive: 15m}": minAlive, "hosts: {alive: 720h}": maxAlive, "hosts: {alive: 0s}": 0, "hosts: {}": 0,
		"hosts: {exports: [ssh]}": 0, "hosts: {alive: 1s}": -1, "hosts: {alive: [1h]}": -1,
	} {
		tree := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(tree, "environments"), 0o755), os.WriteFile(filepath.Join(tree, "environments/dev.yaml"), []byte(file), 0o644)); err != nil {
			t.Fatal(err)
		}
		e, left, err := ExportOf(tree, "dev", nil)
		if (err != nil) != (want < 0) || err == nil && e.Alive != want || len(left)+len(e.Facts) > 0 {
			t.Errorf("%s: %+v, %q: %v", file, e, left, err)
		}
	}
}
