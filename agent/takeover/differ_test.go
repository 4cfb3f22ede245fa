package takeover

import (
	"strings"
	"testing"

	"pulley/internal/model"
	"pulley/internal/puppet"
)

// A node that was in noop would be changed by its takeover without a word.
func TestDifferences(t *testing.T) {
	id := model.Identity{Certname: "web1", PuppetEnvironment: "production"}
	same := puppet.Conf{Values: map[string]string{"noop": "false", "certname": "web1", "reports": "store", "server": "puppet"}}
	if got := Differences(same, nil, id, true); len(got) != 0 {
		t.Errorf("the same settings differ: %v", got)
	}
	other := puppet.Conf{Values: map[string]string{
		"noop": "True", "certname": "web1.example.com", "reports": "http,puppetdb", "environment": "staging", "tags": "a", "skip_tags": "b",
	}}
	got := Differences(other, nil, id, true)
	if len(got) != len(differences) || got[0].Setting != "noop" {
		t.Errorf("got %v, want all of %v", got, differences)
	}
	for _, d := range got {
		if differences[d.Setting] == "" || d.Value == "" {
			t.Errorf("%q has no sentence or no value", d)
		}
	}
}

// A catalog of Pulley would differ from that of the machine's own Puppet without a word.
func TestLostSettings(t *testing.T) {
	id := model.Identity{Certname: "web1", PuppetEnvironment: "production"}
	conf := puppet.ParseConf(`
[main]
server = puppet
factpath = $vardir/lib/facter:/opt/facts
strict = error
rich_data = true
storeconfigs = false
hiera_config = /etc/puppet/global.yaml
http_proxy_password = geheim
postrun_command = /usr/local/bin/after
[agent]
strict_variables = true
runinterval = 1h
[user]
trusted_external_command = /usr/local/bin/cmdb
[server]
include_legacy_facts = true
`)
	sentences := func(run map[string]string) string {
		var all []string
		for _, d := range Differences(conf, run, id, true) {
			all = append(all, d.Sentence())
		}
		return strings.Join(all, "\n")
	}
	got := sentences(nil)
	for _, want := range []string{
		"factpath = $vardir/lib/facter:/opt/facts: runs of Pulley do not have it: write `puppet: {settings: {factpath: VALUE}}` into the environment file", "strict = error: ",
		"hiera_config = /etc/puppet/global.yaml: Pulley sets it itself: live data is Puppet's global layer", "http_proxy_password = …: ", "postrun_command = ", "strict_variables = true: ",
		"trusted_external_command = /usr/local/bin/cmdb: ",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n") + 1; n != 7 || strings.Contains(got, "geheim") {
		t.Errorf("%d differences:\n%s", n, got)
	}
	given := map[string]string{
		"factpath": "/var/lib/pulley/run/lib/facter:/opt/facts", "strict": "error", "http_proxy_password": "geheim", "postrun_command": "/usr/local/bin/after",
		"strict_variables": "true", "trusted_external_command": "/usr/local/bin/cmdb", "hiera_config": "/var/lib/pulley/run/hiera.yaml",
	}
	if got := sentences(given); strings.Count(got, "\n") != 0 || !strings.HasPrefix(got, "hiera_config = ") {
		t.Errorf("with the settings of the environment file: %s", got)
	}
}
