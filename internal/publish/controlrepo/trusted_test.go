package controlrepo

import (
	"slices"
	"strings"
	"testing"
)

// Code that reads an extension which nobody supplies applies another role's classes, or none.
func TestUnsuppliedExtensionsAreReported(t *testing.T) {
	changes := map[string]string{
		"environment.conf":             "# x\nmodulepath = site:modules:/etc/puppet/code/modules:../shared:$basemodulepath\n",
		"site/a/manifests/b.pp":        "class a::b {\n  notice($trusted['extensions']['pp_role'], \"${trusted['extensions']['pp_zone']}\")\n  $settings::hostcert\n}\n",
		"site/a/manifests/c.pp":        "class a::c {\n  $x = $trusted.dig('extensions', 'pp_cluster')\n  $y = getvar('trusted.extensions.pp_cloud')\n  $e = $trusted['extensions'] ; $z = $trusted['certname']\n  # $trusted['extensions']['pp_comment']\n}\n",
		"site/a/manifests/d.pp":        "class a::d {\n  $x = $trusted['extensions'].get('pp_env')\n}\n",
		"hiera.yaml":                   "version: 5\nhierarchy: [{name: a, path: \"%{trusted.extensions.pp_tier}.yaml\"}]\n",
		"environments/dev.yaml":        "trusted: {pp_role: x}\nnodes: {web1: {trusted: {pp_zone: a}}}\nroles: {web: {cardinality: 1, trusted: {pp_tier: a}}, db: {cardinality: 1, trusted: {pp_tier: b, pp_zone: b}}}\n",
		"environments/production.yaml": "trusted: {pp_role: x, pp_tier: t}\nroles: {db: {cardinality: 1}}\n",
	}
	_, report := validated(t, changes, Options{})
	var got []string
	for _, f := range report.Findings {
		if slices.Contains([]Rule{TrustedUnsupplied, ModulepathOutside, AgentCertificate}, f.Rule) {
			got = append(got, f.place()+f.Problem[strings.LastIndex(f.Problem, ": ")+2:])
		}
	}
	want := []string{
		"environment.conf:2: /etc/puppet/code/modules", "environment.conf:2: ../shared",
		"site/a/manifests/b.pp:2:48: pp_zone, missing in environments/production.yaml (db)",
		"site/a/manifests/b.pp:3:3: $settings::hostcert",
		"site/a/manifests/c.pp:2:8: pp_cluster, missing in environments/dev.yaml (db, web), environments/production.yaml (db)",
		"site/a/manifests/c.pp:3:16: pp_cloud, missing in environments/dev.yaml (db, web), environments/production.yaml (db)",
		"site/a/manifests/d.pp:2:8: pp_env, missing in environments/dev.yaml (db, web), environments/production.yaml (db)",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A level or a branch that reads trusted.external is empty on each node whose runs have no command for it, and a setting of puppet.conf that
// no environment gives to runs makes other catalogs.
func TestMissingSettingsOfPuppetAreReported(t *testing.T) {
	_, report := validated(t, map[string]string{
		"environment.conf":             "modulepath = site:modules\n",
		"site/a/manifests/b.pp":        "class a::b {\n  notice(\"${trusted['external']['site']}\")\n  notice($trusted['external'])\n}\n",
		"site/a/manifests/c.pp":        "class a::c {\n  $x = $trusted.dig('external', 'site')\n}\n",
		"site/a/manifests/d.pp":        "class a::d {\n  $x = getvar('trusted.external.site')\n  $y = $trusted['extensions'] # $trusted['external']\n}\n",
		"hiera.yaml":                   "version: 5\nhierarchy:\n  - {name: a, path: \"%{trusted.external.site}.yaml\"}\n",
		"puppet.conf":                  "[main]\nstrict = error\nserver = puppet\nfactpath = $vardir/lib/facter:/opt/facts\n[agent]\nstrict_variables = true\n[user]\nnoop = true\n",
		"environments/dev.yaml":        "roles: {web: {cardinality: 1}}\npuppet: {settings: {strict: error, factpath: /opt/facts}}\n",
		"environments/production.yaml": "roles: {web: {cardinality: 1}}\npuppet: {settings: {trusted_external_command: /x, strict: error, strict_variables: true, factpath: /opt/facts}}\n",
		"environments/served.yaml":     "roles: {web: {cardinality: 1}}\npuppet: {servers: {eu1: {address: 10.0.0.1}}}\n",
	}, Options{})
	var got []string
	for _, f := range report.Findings {
		if f.Rule == TrustedExternal || f.Rule == PuppetSetting {
			got = append(got, string(f.Severity)+" "+f.place()+f.Problem[strings.LastIndex(f.Problem, ": ")+2:])
		}
	}
	slices.Sort(got)
	want := []string{
		"error hiera.yaml:3:22: missing in environments/dev.yaml",
		"error site/a/manifests/b.pp:2:13: missing in environments/dev.yaml",
		"error site/a/manifests/c.pp:2:8: missing in environments/dev.yaml",
		"error site/a/manifests/d.pp:2:16: missing in environments/dev.yaml",
		"warning puppet.conf: strict_variables, missing in environments/dev.yaml",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
