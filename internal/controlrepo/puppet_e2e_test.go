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

// Puppet must find in hiera.yaml and data what ends lookups, with its place, and files of the Puppetfile that the hierarchy reads are the team's.
func TestRealPuppetJudges(t *testing.T) {
	report, err := Validate(t.Context(), repo(t, map[string]string{
		"hiera.yaml": "version: 5\ndefaults: {datadir: hieradata, data_hash: yaml_data}\nhierarchy:\n  - {name: a, path: a.yaml}\n  - {name: b, data_hash: json_data, path: b.json}\n" +
			"  - {name: c, data_hash: json_data, path: c.json, options: {x: y}}\n  - {name: d, data_hash: nowhere, path: a.yaml}\n  - {name: e, datadir: modules/hieradata/data, path: e.yaml}\n",
		"hieradata/a.yaml":                "a: :symbol\nlookup_options:\n  a: {merge: deeep}\nb: \"x\\/y\"\n---\n[\n",
		"hieradata/b.json":                "{\"a\": 1,}\n",
		"hieradata/c.json":                "{}\n",
		"hieradata/common.yaml":           "not read: [\n",
		"modules/hieradata/data/e.yaml":   "- list\n",
		"modules/thirdparty/hiera.yaml":   "version: 5\nhierarchy: [{name: x, path: x.yaml, backend: yaml}]\n",
		"modules/thirdparty/data/x.yaml":  "{}\n",
		"modules/other/hiera.yaml":        "version: 5\nhierarchy: [{name: x, path: x.yaml}]\n",
		"modules/other/data/x.yaml":       "other::x: 2024-01-01\n1: v\n",
		"modules/other/manifests/init.pp": "class other { }\n", "manifests/y.pp": "node y { include other }\n",
	}), Options{Puppet: PuppetValidator("puppet"), Complete: true, Vendored: func(name string) bool { return strings.HasPrefix(name, "modules/hieradata/") }})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range report.Findings {
		got = append(got, f.String())
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{
		"hiera.yaml:6: error: Puppet cannot use this hiera.yaml: data_hash function 'json_data' of level 'c' does not accept the options [x, path]",
		"hiera.yaml: error: Puppet cannot use this hiera.yaml: Puppet and the modules have no function nowhere",
		"hieradata/a.yaml:1:1: warning: the runs of the nodes that look up the key fail: a: its type is Runtime[ruby, 'Symbol']",
		"hieradata/a.yaml:2:1: warning: the runs of the nodes that look up the key fail: lookup_options of a: Unknown merge strategy: 'deeep'",
		"hieradata/b.json: error: Hiera cannot parse a data file: ",
		"modules/hieradata/data/e.yaml: warning: the data file is not a mapping",
		"modules/other/data/x.yaml:1:11: error: Hiera cannot parse a data file: Tried to load unspecified class: Date",
		"modules/thirdparty/hiera.yaml:2: warning: the file does not parse; no code or data of this repository names it, or its module is vendored: entry 'hierarchy' index 0 unrecognized key 'backend'",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
	for _, f := range report.Findings {
		if f.Vendored {
			t.Errorf("data of the hierarchy is somebody else's: %v", f)
		}
	}
}
