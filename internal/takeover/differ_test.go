package takeover

import (
	"testing"

	"pulley/agent"
	"pulley/agent/puppet"
)

// A node that was in noop would be changed by its takeover without a word.
func TestDifferences(t *testing.T) {
	id := agent.Identity{Certname: "web1", PuppetEnvironment: "production"}
	same := puppet.Conf{Values: map[string]string{"noop": "false", "certname": "web1", "reports": "store", "server": "puppet"}}
	if got := Differences(same, id); len(got) != 0 {
		t.Errorf("the same settings differ: %v", got)
	}
	other := puppet.Conf{Values: map[string]string{
		"noop": "True", "certname": "web1.example.com", "reports": "http,puppetdb", "environment": "staging", "tags": "a", "skip_tags": "b",
		"prerun_command": "/x", "postrun_command": "/y",
	}}
	got := Differences(other, id)
	if len(got) != len(differences) || got[0].Setting != "noop" {
		t.Errorf("got %v, want all of %v", got, differences)
	}
	for _, d := range got {
		if differences[d.Setting] == "" || d.Value == "" {
			t.Errorf("%q has no sentence or no value", d)
		}
	}
}
