package takeover

import (
	"strings"

	"pulley/agent"
	"pulley/agent/puppet"
)

// Difference is a setting of the machine's puppet.conf that runs of Pulley do not have.
type Difference struct{ Setting, Value string }

// differences are the sentences of the differences: what puppet agent does, and what Pulley does.
var differences = map[string]string{
	"noop":            "puppet agent changes nothing, and Pulley applies its target: `pulley hold --stop -e ENVIRONMENT` and `pulley-agent disable REASON` stop it",
	"tags":            "puppet agent applies only resources with these tags, and Pulley applies all",
	"skip_tags":       "puppet agent leaves out resources with these tags, and Pulley applies all",
	"environment":     "puppet agent has this value as $environment, and Pulley has the name of the node's environment: hierarchies and manifests that use it differ",
	"certname":        "puppet agent has this certname, and Pulley has the node's: node declarations and data by certname differ",
	"prerun_command":  "Pulley does not run it",
	"postrun_command": "Pulley does not run it: a script in validate.d of the release checks a run",
	"reports":         "Pulley hands reports to no processor unless `puppet: {reports: […]}` in the environment file or agent.yaml names it",
}

// Differences returns the settings of puppet agent that runs of Pulley on this node do not have.
func Differences(c puppet.Conf, id agent.Identity) []Difference {
	var found []Difference
	add := func(setting, value string, differs bool) {
		if differs {
			found = append(found, Difference{setting, value})
		}
	}
	environment := c.Values["environment"]
	if environment == "" {
		environment = "production" // Puppet's default
	}
	add("noop", "true", strings.EqualFold(c.Values["noop"], "true"))
	add("environment", environment, environment != id.PuppetEnvironment)
	for _, setting := range []string{"tags", "skip_tags", "prerun_command", "postrun_command"} {
		add(setting, c.Values[setting], c.Values[setting] != "")
	}
	add("certname", c.Values["certname"], c.Values["certname"] != "" && c.Values["certname"] != id.Certname)
	reports := c.Values["reports"]
	add("reports", reports, reports != "" && reports != "none" && reports != "store")
	return found
}

// Sentence returns what differs, for people.
func (d Difference) Sentence() string {
	return d.Setting + " = " + d.Value + ": " + differences[d.Setting]
}
