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
