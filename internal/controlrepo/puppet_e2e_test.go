//go:build e2e

package controlrepo

import (
	"strings"
	"testing"
)

// Pulley must parse the messages of the real Puppet.
func TestRealPuppetParses(t *testing.T) {
	check := Options{Puppet: PuppetValidator("puppet")}
	report, err := Validate(t.Context(), repo(t, nil), check)
	if err != nil || len(report.Findings) != 0 {
		t.Errorf("the new repository: %v, %v", report.Findings, err)
	}
	report, err = Validate(t.Context(), repo(t, map[string]string{
		"manifests/used.pp":             "node x1 { include role::a, role::d, \"role::${x}\" }\n",
		"modules/role/manifests/a.pp":   "class role::a {\n  $x = \n}\n",
		"modules/role/manifests/b c.pp": "class role::b-c {\n  if true { }\n}\n",
		"modules/role/manifests/d.pp":   "class role::d {\n  notice(\n",
		"modules/role/manifests/e.pp":   "class role::e {\n  notice(\"\\d\")\n}\n",
	}), check)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range report.Findings {
		got = append(got, f.String())
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{
		"modules/role/manifests/a.pp:3:1: error: Puppet cannot parse a manifest that nodes read: Syntax error at '}'",
		"modules/role/manifests/b c.pp:1:1: error: ",
		"modules/role/manifests/d.pp: error: Puppet cannot parse a manifest that nodes read: Syntax error at end of input",
		"modules/role/manifests/e.pp:2:",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
}
