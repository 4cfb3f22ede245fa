package hosts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent"
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
	v, err := ViewOf(tree, "dev", role)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func listOf(hosts ...agent.Host) map[string]agent.Host {
	list := map[string]agent.Host{}
	for _, h := range hosts {
		list[h.Node] = h
	}
	return list
}

func document(t testing.TB, v *View, list map[string]agent.Host) string {
	t.Helper()
	nodes, _ := Parse(list)
	b, err := v.Document(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

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
		agent.Host{Node: "controller10", Role: "controller", Hostname: "c10.example", Addresses: []string{"192.0.2.1", "10.0.0.10"}, At: time.Now()},
		agent.Host{Node: "controller2", Role: "controller", Hostname: "controller2", Addresses: []string{"::ffff:10.0.0.2", "10.0.0.2"}},
		agent.Host{Node: "balancer1", Role: "balancer", Hostname: "balancer1"},
		agent.Host{Node: "stray1", Role: "stray"},
	)
	v := viewOf(t, small, "balancer")
	want := `{"pulley::hosts":{"controller":[{"name":"controller2","hostname":"controller2","address":"10.0.0.2","addresses":["10.0.0.2"],"flavor":"m%{literal('%')}1"},` +
		`{"name":"controller10","hostname":"c10.example","address":"10.0.0.10","addresses":["192.0.2.1","10.0.0.10"],"flavor":"m%{literal('%')}1"}],"db":[]}}`
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
	list := map[string]agent.Host{}
	for i, bad := range []string{
		"%{lookup('secret')}", "a\nb", `"; rm -rf /`, "$(reboot)", "a b", "\x00", "\x1b[2J", strings.Repeat("x", 1<<20), "-x", "x-.y", "é", "10.0.0.1%eth0", "..", "x/../y",
	} {
		list[bad] = agent.Host{Node: bad, Role: "controller"}
		list[fmt.Sprint("controller", i)] = agent.Host{Node: fmt.Sprint("controller", i), Role: "controller", Hostname: bad, Addresses: []string{bad, "fe80::1%" + bad, "10.0.0.1"}}
		list[fmt.Sprint("db", i)] = agent.Host{Node: fmt.Sprint("db", i), Role: bad}
	}
	list["controller90"] = agent.Host{Node: "another", Role: "controller"}
	got := document(t, v, list)
	for _, bad := range []string{"lookup", "rm -rf", "reboot", "eth0", "fe80", `\u`, "é", "xxx", "another", "db1", ".."} {
		if strings.Contains(got, bad) {
			t.Errorf("%q reached Hiera:\n%.2000s", bad, got)
		}
	}
	if n := strings.Count(got, `"address": "10.0.0.1"`); n != 14 {
		t.Errorf("%d of 14 nodes kept their usable address", n)
	}
	many := agent.Host{Node: "db1", Role: "db"}
	for i := range 100_000 {
		many.Addresses = append(many.Addresses, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	if got := document(t, v, listOf(many)); strings.Count(got, `"10.`) > maxAddresses+1 {
		t.Errorf("one node takes %d bytes", len(got))
	}
}

// A release whose file is damaged must stop the run: without its nodes, Puppet would remove them from files.
func TestUnreadableFilesAreRefused(t *testing.T) {
	for _, bad := range []string{
		"roles: {web: {sees: {a: b}}}", "roles: {web: {sees: [[x]]}}", "roles: [sees: x", "hosts: {settle: soon}\nroles: {web: {sees: [a]}}",
		"hosts: {networks: [nowhere]}\nroles: {web: {sees: [a]}}", "hosts: {settle: 25h}\nroles: {web: {sees: [a]}}", "roles: 7 # sees: x",
	} {
		if v, err := parse([]byte(bad), "web"); err == nil {
			t.Errorf("%s: %+v", bad, v)
		}
	}
}

// hosts.d/ acts on the difference only.
func TestCompare(t *testing.T) {
	v := viewOf(t, small, "balancer")
	one := agent.Host{Node: "controller1", Role: "controller", Hostname: "one"}
	two := agent.Host{Node: "controller2", Role: "controller", Hostname: "two"}
	moved := two
	moved.Addresses = []string{"10.0.0.9"}
	three := agent.Host{Node: "controller3", Role: "controller"}
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
	if _, err := Compare([]byte("{"), after); err == nil {
		t.Error("a damaged file compares")
	}
}

// Ten thousand hosts delay a run by 150 ms at most; docs/performance.md has the measured time.
func BenchmarkTenThousandHosts(b *testing.B) {
	v := viewOf(b, small, "balancer")
	list := map[string]agent.Host{}
	for i := range 10_000 {
		name := fmt.Sprint("controller", i+1)
		list[name] = agent.Host{Node: name, Role: "controller", Hostname: name, Addresses: []string{fmt.Sprintf("10.0.%d.%d", i>>8, i&255), "192.0.2.1"}}
	}
	b.ReportAllocs()
	for b.Loop() {
		document(b, v, list)
	}
}
