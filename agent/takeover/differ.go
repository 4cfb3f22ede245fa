package takeover

import (
	"fmt"
	"strings"

	"pulley/environments/settings"
	"pulley/internal/model"
	"pulley/internal/puppet"
)

// Difference is a setting of the machine's puppet.conf that runs of Pulley do not have.
type Difference struct{ Setting, Value string }

// differences are the sentences of differences that the environment file does not end: what puppet agent does, and what Pulley does.
var differences = map[string]string{
	"noop":        "puppet agent changes nothing, and Pulley applies its target: `pulley hold --stop -e ENVIRONMENT` and `pulley-agent disable REASON` stop it",
	"tags":        "puppet agent applies only resources with these tags, and Pulley applies all",
	"skip_tags":   "puppet agent leaves out resources with these tags, and Pulley applies all",
	"environment": "puppet agent has this value as $environment, and Pulley has the name of the node's environment: hierarchies and manifests that use it differ",
	"certname":    "puppet agent has this certname, and Pulley has the node's: node declarations and data by certname differ",
	"reports":     "Pulley hands reports to no processor unless `puppet: {reports: […]}` in the environment file or agent.yaml names it",
}

// Differences returns the settings of the machine's puppet agent and puppet apply that runs of Pulley on this node do not have. run are the
// settings of a run. used reports whether Puppet has run here without Pulley: otherwise its default environment says nothing.
func Differences(c puppet.Conf, run map[string]string, id model.Identity, used bool) []Difference {
	var found []Difference
	seen := map[Difference]bool{}
	add := func(setting, value string, differs bool) {
		if d := (Difference{setting, value}); differs && !seen[d] {
			seen[d] = true
			found = append(found, d)
		}
	}
	for _, values := range []map[string]string{c.Values, c.Apply} {
		environment := values["environment"]
		if environment == "" && used {
			environment = "production" // Puppet's default
		}
		add("noop", "true", strings.EqualFold(values["noop"], "true"))
		add("environment", environment, environment != "" && environment != id.PuppetEnvironment)
		add("tags", values["tags"], values["tags"] != "")
		add("skip_tags", values["skip_tags"], values["skip_tags"] != "")
		add("certname", values["certname"], values["certname"] != "" && values["certname"] != id.Certname)
		reports := values["reports"]
		add("reports", reports, reports != "" && reports != "none" && reports != "store")
		for _, setting := range puppet.LostSettings(values, run) {
			add(setting, values[setting], true)
		}
	}
	return found
}

// Sentence returns what differs, for people. A password is not in it.
func (d Difference) Sentence() string {
	if strings.HasSuffix(d.Setting, "password") {
		d.Value = "…"
	}
	what, flaw := differences[d.Setting], settings.SettingFlaw(d.Setting)
	switch {
	case what != "":
	case flaw != nil:
		what = "Pulley sets it itself: " + flaw.Advice
	default:
		what = fmt.Sprintf("runs of Pulley do not have it: write `puppet: {settings: {%s: VALUE}}` into the environment file", d.Setting)
	}
	return d.Setting + " = " + d.Value + ": " + what
}
