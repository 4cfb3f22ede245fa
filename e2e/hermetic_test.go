//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// Settings, plugins and data of an old `puppet agent` must not reach a run. A `puppet agent --disable` must also stop
// Pulley.
func TestOldPuppetSettingsDoNotLeak(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.publish("1.1.0", `node 'controller1' {
  include pulley
  $old = $facts['old_site'] =~ NotUndef
  file { '/etc/seen': content => "old fact: ${old}; environment: ${environment}\n" }
}
`)
	f.machine("controller1")
	f.write("controller1", "/etc/puppet/puppet.conf", "[main]\nnoop = true\ntags = nothing\ncertname = somebody.else\nenvironment = other\npostrun_command = /bin/false\n")
	for _, dir := range []string{"/var/cache/puppet/lib/facter", "/var/lib/puppet/lib/facter", "/opt/puppetlabs/puppet/cache/lib/facter"} {
		f.write("controller1", dir+"/old_site.rb", "Facter.add(:old_site) { setcode { 'leaked' } }\n")
	}
	f.write("controller1", "/etc/puppet/hiera.yaml", "version: 5\nhierarchy: [{name: leak, path: /etc/puppet/leak.yaml}]\n")
	f.write("controller1", "/etc/puppet/leak.yaml", "pulley::schedule: '1 2 3 4 5'\n")
	f.pulley("promote", "1.1.0")
	contains(t, f.agent("controller1", 0, "run"), "changed on 1.1.0")
	contains(t, f.read("controller1", "/etc/seen"), "old fact: false; environment: dev")
	if cron := f.read("controller1", "/etc/cron.d/pulley-agent"); strings.Contains(cron, "1 2 3 4 5") {
		t.Errorf("the machine's own Hiera data leaked in: %s", cron)
	}
	f.expect("controller1", "converged", "1.1.0", "changed")

	// Disabling the old agent had a reason.
	vardir := strings.TrimSpace(f.in("controller1", 0, "puppet", "config", "print", "statedir", "--section", "agent"))
	f.write("controller1", vardir+"/agent_disabled.lock", `{"disabled_message":"disk surgery, ask bob"}`)
	contains(t, f.agent("controller1", 0, "run", "--force"), "disk surgery, ask bob")
	if s := f.status("controller1"); s.State != "held" || s.Reason != "puppet_blocked" {
		t.Errorf("%+v; want held, with the reason", s)
	}
	f.in("controller1", 0, "rm", vardir+"/agent_disabled.lock")
	contains(t, f.agent("controller1", 0, "run", "--force"), "on 1.1.0")
}
