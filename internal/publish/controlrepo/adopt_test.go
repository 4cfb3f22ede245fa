package controlrepo

import (
	"fmt"
	"strings"
	"testing"

	"pulley/internal/model"
)

// A team that brings a repository could not judge it, or would get an environment file that Pulley refuses.
func TestAdoptReports(t *testing.T) {
	dir := repo(t, map[string]string{
		"environments": "", "Puppetfile": "mod 'x'\n",
		"hiera.yaml": "version: 5\nhierarchy:\n- {name: role, path: 'roles/%{trusted.extensions.pp_role}.yaml'}\n" +
			"- {name: node, lookup_key: eyaml_lookup_key, path: 'nodes/%{trusted.certname}.yaml', options: {pkcs7_private_key: /k/p.pem}}\n- {name: all, path: roles/common.yaml}\n",
		"data/roles/web_server.yaml": "a: 1\n", "data/roles/db9.yaml": "a: 1\n", "data/roles/common.yaml": "a: 1\n", "data/nodes/db01.example.com.yaml": "a: 1\n", "data/nodes/Odd_.yaml": "a: 1\n",
		"manifests/site.pp": "if $trusted['extensions']['pp_zone'] { }\nnode 'web01.example.com', 'web2.example.com' {\n  if true { include ::role::web_server, ntp }\n}\n" +
			"node /^mail\\d+/ { @@host { 'x': } }\nnode default { }\n",
		"modules/role/manifests/web_server.pp": "class role::web_server { }\n",
	})
	report, err := Validate(t.Context(), dir, Options{Adopt: true})
	if err != nil {
		t.Fatal(err)
	}
	a := report.Adoption
	if a == nil || a.Draft == nil {
		t.Fatalf("no report: %+v", report)
	}
	want := `# Guessed by ` + "`pulley validate --adopt`" + `. Correct the roles: which machines belong to them, and how many Pulley creates.
# The code reads these trusted extensions. Remove the # of a line and write its value.
#trusted:
#  pp_zone: VALUE # read in manifests/site.pp:1
roles:
  compute: # modules/role/manifests/compute.pp
    cardinality: 0
    trusted: {pp_role: "compute"}
  controller: # modules/role/manifests/controller.pp
    cardinality: 0
    trusted: {pp_role: "controller"}
  db: # data/roles/db9.yaml
    cardinality: 0
    trusted: {pp_role: "db9"}
    members:
      - db01.example.com
  mail: # manifests/site.pp
    cardinality: 0
    trusted: {pp_role: "mail"}
  web-server: # data/roles/web_server.yaml
    cardinality: 0
    trusted: {pp_role: "web_server"}
    members:
      - web01.example.com
      - web2.example.com
`
	if a.Draft.Text != want {
		t.Errorf("got\n%s\nwant\n%s", a.Draft.Text, want)
	}
	var steps []string
	for _, s := range a.Steps {
		steps = append(steps, s.Code)
		if stepWords[s.Code] == "" {
			t.Errorf("step %s has no sentence", s.Code)
		}
	}
	if got := strings.Join(steps, " "); got != "puppetfile environment_file eyaml_keys server_features publish first_machine" {
		t.Errorf("steps are %s", got)
	}
	text := a.Text("repo")
	for _, part := range []string{
		"\n  3 node declarations: they match", "\n  warning exported_resource: exported", "\n    manifests/site.pp:5:19\n", "\n  2. Write environments/production.yaml.",
		"\n  3. Decide which nodes may have the eyaml keys, and put them there, readable by root only: /k/p.pem\n", "`pulley publish repo --dry-run`", "\nrepo/environments/production.yaml:\n\n  # Guessed",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the text does not contain %q:\n%s", part, text)
		}
	}
	for _, p := range a.Works {
		if partWords[p.Code] == [2]string{} {
			t.Errorf("part %s has no sentence", p.Code)
		}
	}
}

// Roles whose names differ only in digits or namespaces would be one role in the draft, and their extensions lost.
func TestAdoptKeepsRolesApart(t *testing.T) {
	changes := map[string]string{"environments": "", "modules/role": "", "hieradata": "",
		"manifests/site.pp": "node 'web1.example.com' { }\nnode 'a.example.com' { include role::usw2::web }\nnode default { include $trusted['extensions']['pp_role'] }\n"}
	for _, class := range []string{"tier1", "tier2", "qa_web", "qa1_web", "usw2::web", "use1::web"} {
		changes["modules/role/manifests/"+strings.ReplaceAll(class, "::", "/")+".pp"] = "class role::" + class + " { }\n"
	}
	report, err := Validate(t.Context(), repo(t, changes), Options{Adopt: true})
	if err != nil {
		t.Fatal(err)
	}
	bare, err := Validate(t.Context(), repo(t, map[string]string{"hiera.yaml": ""}), Options{Adopt: true})
	if err != nil || bare.Adoption.Steps[0].Code != "hiera_missing" {
		t.Errorf("without hiera.yaml: %v, %+v", err, bare.Adoption)
	}
	const want = `roles:
  qa-web: # modules/role/manifests/qa1_web.pp, stands for qa1_web
    cardinality: 0
    trusted: {pp_role: "role::qa1_web"}
  qa-web-b: # modules/role/manifests/qa_web.pp, stands for qa_web
    cardinality: 0
    trusted: {pp_role: "role::qa_web"}
  tier: # modules/role/manifests/tier1.pp, stands for tier1
    cardinality: 0
    trusted: {pp_role: "role::tier1"}
  tier-b: # modules/role/manifests/tier2.pp, stands for tier2
    cardinality: 0
    trusted: {pp_role: "role::tier2"}
  web: # modules/role/manifests/use1/web.pp, stands for use1::web
    cardinality: 0
    trusted: {pp_role: "role::use1::web"}
    members:
      - web1.example.com
  web-b: # modules/role/manifests/usw2/web.pp, stands for usw2::web
    cardinality: 0
    trusted: {pp_role: "role::usw2::web"}
    members:
      - a.example.com
`
	if got := report.Adoption.Draft.Text; !strings.HasSuffix(got, "\n"+want) || !isEnvironmentFile(got) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	all, long := guesses{}, strings.Repeat("x", 61)
	for i := range 1000 {
		all.add(fmt.Sprintf("%s%d", long, i), "f")
	}
	for name := range all {
		if err := model.CheckRole(name); err != nil {
			t.Error(err)
		}
	}
	if len(all) != 1000 {
		t.Errorf("%d roles, want 1000", len(all))
	}
}

// The draft of a repository with many hosts would be refused, or would take minutes.
func TestAdoptDraftsAreValid(t *testing.T) {
	changes := map[string]string{"environments": "", "hiera.yaml": "version: 5\nhierarchy: [{name: n, path: 'n/%{fqdn}.yaml'}, {name: r, path: 'r/%{facts.my_role}.yaml'}]\n"}
	for _, host := range []string{"a1", "a-b1", "web", "web1x", "web1", "x.1", "1", "default", strings.Repeat("h", 70), "9lives.example.com"} {
		changes["data/n/"+host+".yaml"] = "a: 1\n"
	}
	for i := range 300 {
		changes["data/r/role"+strings.Repeat("x", i%50)+string(rune('a'+i%26))+".yaml"] = "a: 1\n"
	}
	report, err := Validate(t.Context(), repo(t, changes), Options{Adopt: true})
	if err != nil || !isEnvironmentFile(report.Adoption.Draft.Text) {
		t.Errorf("%v:\n%s", err, report.Adoption.Draft.Text)
	}
	for _, part := range []string{"  a: # data/n/a1.yaml\n    cardinality: 1\n", "  lives: # data/n/9lives.example.com.yaml\n    cardinality: 0\n    members:\n      - 9lives.example.com\n", "more roles are suggested"} {
		if !strings.Contains(report.Adoption.Draft.Text, part) {
			t.Errorf("the draft does not contain %q:\n%s", part, report.Adoption.Draft.Text)
		}
	}
	if report, err = Validate(t.Context(), repo(t, nil), Options{Adopt: true}); err != nil || report.Adoption.Draft != nil || len(report.Adoption.Steps) != 2 {
		t.Errorf("%v %+v", err, report.Adoption)
	}
	if report, err = Validate(t.Context(), t.TempDir(), Options{Adopt: true}); err != nil || !isEnvironmentFile(report.Adoption.Draft.Text) {
		t.Errorf("an empty folder: %v %+v", err, report.Adoption)
	}
}
