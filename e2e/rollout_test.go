//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A release that breaks the third machine must stop there. One command must bring every machine back, without a key and with real
// Puppet, although the machines take nothing unsigned.
func TestRolloutStopsAndIsTakenBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.signs()
	f.spec("signatures: required\nstatement: 24h\nrollout: {canaries: 0, batch: 1}\nroles:\n  web: {cardinality: 4}\n")
	const site = `node default {
  file { '/etc/pulley-demo': ensure => directory }
  file { '/etc/pulley-demo/app': content => "%s\n" }
%s}
`
	const breaks = `  if $trusted['certname'] == 'web3' {
    exec { '/bin/false': require => File['/etc/pulley-demo/app'] }
  }
`
	f.publish("1.1.0", fmt.Sprintf(site, "one", ""))
	f.pulley("promote", "1.1.0")
	f.publish("1.2.0", fmt.Sprintf(site, "two", breaks))
	var nodes []string
	for i := range 4 {
		node := fmt.Sprintf("web%d", i+1)
		nodes = append(nodes, node)
		f.start(node)
		f.plan(node)
		f.in(node, 0, "cp", "/root/signers", "/etc/pulley/allowed_signers")
		f.agent(node, 0, "bootstrap", "--node", node, "-e", "dev", "--endpoints", f.endpoint)
		contains(t, f.agent(node, 0, "run"), "changed on 1.1.0")
	}
	has := func(want string, nodes ...string) {
		t.Helper()
		for _, node := range nodes {
			if got := f.read(node, "/etc/pulley-demo/app"); got != want+"\n" {
				t.Errorf("%s has %q, not %q", node, got, want)
			}
		}
	}
	tick := func() {
		for _, node := range nodes {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_ = f.machines[node].Command(ctx, agentPath, "run").Run() // the third one fails
			cancel()
		}
	}
	explained := func(text string, nodes ...string) {
		t.Helper()
		for _, node := range nodes {
			contains(t, f.pulley("explain", node), text)
		}
	}

	contains(t, f.pulley("rollout", "start", "1.2.0", "-m", "new tuning"), "rollout r2 of 1.2.0 in dev: 4 nodes")
	f.until("a pause", func() (bool, string) {
		tick()
		out := f.pulley("rollout", "show")
		return strings.Contains(out, "it paused by itself: 1 node failed, and the policy allows 0"), out
	})
	tick()
	has("two", nodes[:3]...)
	has("one", nodes[3:]...)
	explained("rollout       r2 of 1.2.0: it took the target", nodes[:2]...)
	explained("rollout       r2 of 1.2.0: its run failed", nodes[2])
	for i, node := range nodes[3:] {
		explained(fmt.Sprintf("rollout       r2 of 1.2.0: waiting for batch %d of 4 of web; the rollout is at batch 3 of 4 of web; it paused by itself", i+4), node)
		if runs := f.pulley("runs", node); strings.Contains(runs, "1.2.0") {
			t.Errorf("%s ran the release:\n%s", node, runs)
		}
	}

	f.env = nil // no key
	began := time.Now()
	out := f.pulley("rollout", "revert", "--yes", "-m", "it breaks web3")
	contains(t, out, "rollout r2 of 1.2.0 in dev: reverted (epoch 3)")
	f.until("all nodes on the old release", func() (bool, string) {
		tick()
		out := f.pulley("status")
		return strings.Contains(out, "target 1.1.0, epoch 3; 4 converged"), out
	})
	t.Logf("all were back after %v", time.Since(began).Round(time.Second))
	has("one", nodes...)
	if out := f.pulley("status"); strings.Contains(out, "contradiction") {
		t.Error(out)
	}
	explained("(it breaks web3), after 1 node failed, and the policy allows 0; ", nodes...)
	explained("it had begun to take the target", nodes[:2]...)
	explained("here, its run failed", nodes[2])
	explained("it never reached this node", nodes[3:]...)
	for _, node := range nodes[:3] {
		explained("high-water mark: release 1.1.0", node)
		f.in(node, 0, "grep", `"permit":3`, "/var/lib/pulley/trust.json")
	}
}
