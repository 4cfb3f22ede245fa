//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pulley/internal/machines/drivers/local"
)

// Without it, a balancer would send requests to a removed machine, or none to a new one.
func TestBackendsFollowTheFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.spec("hosts: {settle: 1s, address_fact: main_address}\nroles:\n  balancer: {cardinality: 1, sees: [web]}\n  web: {cardinality: 2}\n")
	f.publish("1.1.0", `node /^balancer/ {
  include pulley
  file { '/etc/pulley-demo': ensure => directory }
  class { 'profile::backends': role => 'web', path => '/etc/pulley-demo/backends.cfg' }
  include profile::hosts_file
}
node default { include pulley }
`)
	f.pulley("promote", "1.1.0")
	server := regexp.MustCompile(`(?m)^  server (\S+) \S+:443 check$`)
	lists := func(want ...string) {
		t.Helper()
		f.until("backends "+strings.Join(want, " "), func() (bool, string) {
			said := f.agent("balancer1", 0, "run")
			text := f.read("balancer1", "/etc/pulley-demo/backends.cfg")
			var got []string
			for _, m := range server.FindAllStringSubmatch(text, -1) {
				got = append(got, m[1])
			}
			return slices.Equal(got, want), text + said
		})
		hosts := f.read("balancer1", "/etc/hosts")
		contains(t, hosts, "127.0.0.1 localhost\n")
		for _, node := range []string{"web1", "web2"} {
			if has, should := regexp.MustCompile(`(?m)^\S+ `+node+`$`).MatchString(hosts), slices.Contains(want, node); has != should {
				t.Errorf("%s in /etc/hosts: %t, want %t\n%s", node, has, should, hosts)
			}
		}
		contains(t, f.agent("balancer1", 0, "run"), "nothing to do: the node is on its target")
	}
	// All machines of the test have the same addresses, so that none of them is one node's own.
	machine := func(node, address string) {
		t.Helper()
		facts := filepath.Join(t.TempDir(), "address.yaml")
		if err := os.WriteFile(facts, []byte("main_address: "+address+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f.machine(node, local.Bind{From: facts, To: "/etc/facter/facts.d/address.yaml"})
		f.write(node, "/etc/hosts", "127.0.0.1 localhost\n")
		f.agent(node, 0, "run") // it publishes the address
	}
	machine("balancer1", "192.0.2.1")
	lists()
	machine("web1", "192.0.2.11")
	lists("web1")
	machine("web2", "192.0.2.12")
	lists("web1", "web2")
	f.pulley("nodes", "remove", "--yes", "web1")
	lists("web2")
}
