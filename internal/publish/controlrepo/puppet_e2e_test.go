//go:build e2e

package controlrepo

import (
	"context"
	"fmt"
	"slices"
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
		"modules/other/manifests/init.pp": "class other { }\nclass elsewhere { }\n", "manifests/y.pp": "node y { include other }\n",
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
		"modules/hieradata/data/e.yaml: warning: the data file is not a mapping: Puppet 7 ignores it, and Puppet 8 fails: its type is Array",
		"modules/other/manifests/init.pp:2:1: error: Puppet cannot parse a manifest that nodes read: Unacceptable location. The name 'elsewhere' is unacceptable in file ",
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

// Code and data must not name what no module has, and site manifests must not declare a name twice: nodes would be the first to find it.
func TestRealPuppetFindsMissingNames(t *testing.T) {
	files := map[string]string{
		"manifests/site.pp": "", "environment.conf": "modulepath = modules\n", "Puppetfile": "# the team's: other\n",
		"hiera.yaml":      "version: 5\nhierarchy: [{name: a, paths: [a.yaml, empty.yaml]}]\n",
		"data/a.yaml":     "classes:\n  - a\n  - lost::one\n  - other\ninclude: {day: [lost::two, '--a', '%{x}']}\ntags: {web: [lost::three], cron: [nightly]}\npackages: [vim]\nnames: [lost::four]\nroles: [web]\n",
		"data/empty.yaml": "# later\n",
		"manifests/a.pp": "import 'nodes.pp'\nlookup('classes', Array, 'unique').include\n$day = lookup(\"include.${x}\")\ninclude($day)\n$tags = lookup('tags.web')\n" +
			"$more = $tags + lookup({name => 'names'})\n$more.each |$one| { contain $one }\nensure_packages(lookup('packages'))\nFirst::Allow { ip => any }\n",
		"manifests/other.pp": "lookup('roles').each |$name| {\n  include \"a::${name}\"\n  package { $name: }\n}\ndefine other($x) { include $name }\nlookup('names').each |$name| { include $name }\n" +
			"include(lookup('roles').map |$r| { \"a::${r}\" })\nnode 'b' { $c = lookup('packages') }\nnode 'c' { include $c }\nlookup('names').include\nnode 'd' { scheduled_task { 'x': } a::inner { 'x': } notice($uri.host) puppetdb_query('x') }\n",
		"manifests/nodes.pp":          "class config { }\nnode 'A', /^web\\d/ { }\nnode default { }\n",
		"manifests/old.pp":            "class config { }\nnode 'a' { }\nnode /^web\\d/ { }\n",
		"modules/a/manifests/init.pp": "class a {\n  a::it { 'x': }\n  cron { 'x': }\n  native { 'x': }\n  nowhere { 'x': }\n  a::gone { 'x': }\n  define inner() { nowhere { 'y': } }  $x = [1].ours\n  notice(a::f(), a::r(), legacy(), split('a', 'b'), fai('x'))\n  Gone<| |>\n}\n",
		"modules/a/manifests/it.pp":   "define a::it() { }\n",
		"modules/a/manifests/reads.pp": "class a::reads {\n  file { '/x': source => 'puppet:///modules/a/here', content => epp('a/here', {}) }\n  file { '/y': source => 'puppet:///modules/a/gone' }\n" +
			"  file { '/z': source => ['puppet:///modules/a/gone', 'puppet:///modules/a/dir'], content => template('a/gone.erb') }\n  file { '/d': source => \"puppet:///modules/a/dir\", recurse => true }\n" +
			"  file { '/e': content => epp('a/lost') }\n  notice(file('/etc/hostname', 'a/gone'), file('b/here'), template(\"a/${x}\"))\n}\n",
		"modules/a/files/here": "x", "modules/a/files/dir/x": "x", "modules/a/templates/here.epp": "x",
		"modules/a/manifests/asks.pp": "class a::asks { if defined('gone') { gone { 'x': } } }\n",
		"modules/a/manifests/web.pp":  "class a::web { }\n", "modules/unread/manifests/init.pp": "class unread { nothing_loads_it { 'x': } }\n",
		"modules/a/functions/f.pp":                        "function a::f() { 1 }\n",
		"modules/a/lib/puppet/functions/a/r.rb":           "#\n",
		"modules/a/lib/puppet/functions/ours.rb":          "#\n",
		"modules/a/lib/puppet/parser/functions/legacy.rb": "#\n",
		"modules/a/lib/puppet/type/native.rb":             "#\n",
		"site/other/manifests/init.pp":                    "class other { }\n",
		"external_nodes/default.yaml":                     "classes: {a: {}, lost::five: {}}\n",
	}
	want := []string{
		"data/a.yaml:3:5: class_missing: lost::one", "data/a.yaml:4:5: class_missing: other (it is in site/other, and modulepath does not contain site)", "data/a.yaml:5:17: class_missing: lost::two",
		"data/a.yaml:6:14: class_missing: lost::three", "data/a.yaml:8:9: class_missing: lost::four", "external_nodes/default.yaml:1:18: class_missing: lost::five",
		"manifests/a.pp:1:1: function_missing: import", "manifests/a.pp:8:1: function_missing: ensure_packages", "manifests/a.pp:9:1: type_missing: first::allow",
		"manifests/old.pp:1:1: declared_twice: config, first in manifests/nodes.pp:1:1", "manifests/old.pp:2:6: declared_twice: node a, first in manifests/nodes.pp:2:6",
		"manifests/old.pp:3:6: declared_twice: node __node_regexp__webd, first in manifests/nodes.pp:2:11",
		"modules/a/manifests/init.pp:5:3: type_missing: nowhere", "modules/a/manifests/init.pp:6:3: type_missing: a::gone", "modules/a/manifests/init.pp:8:53: function_missing: fai", "modules/a/manifests/init.pp:9:3: type_missing: gone",
		"modules/a/manifests/reads.pp:3:27: file_missing: puppet:///modules/a/gone", "modules/a/manifests/reads.pp:4:104: file_missing: a/gone.erb", "modules/a/manifests/reads.pp:6:32: file_missing: a/lost",
	}
	for _, complete := range []bool{true, false} {
		answered := map[string]int{} // large repositories have one answer as well
		judge := func(ctx context.Context, dir string, files PuppetFiles) []Finding {
			found := PuppetValidator("puppet")(ctx, dir, files)
			for _, f := range found {
				answered[f.File+" "+f.detail]++
			}
			return found
		}
		report, err := Validate(t.Context(), repo(t, files), Options{Puppet: judge, Complete: complete})
		if err != nil {
			t.Fatal(err)
		}
		if answered["modules/a/manifests/init.pp nowhere"] != 1 || answered["modules/unread/manifests/init.pp nothing_loads_it"] != 0 {
			t.Errorf("the answer has names that the report does not need: %v", answered)
		}
		var got []string
		for _, f := range report.Findings {
			if slices.Contains([]Rule{ClassMissing, TypeMissing, FunctionMissing, FileMissing, DeclaredTwice, DataMapping, NotChecked}, f.Rule) {
				got = append(got, fmt.Sprintf("%s%s: %s", f.place(), f.Rule, f.detail))
			}
		}
		expected := slices.DeleteFunc(slices.Clone(want), func(line string) bool { // a module of a Puppetfile may bring it
			return !complete && (strings.Contains(line, "_missing") && !strings.Contains(line, "file_missing") && !strings.HasSuffix(line, "import") && !strings.HasSuffix(line, "a::gone") && !strings.Contains(line, "it is in"))
		})
		if !slices.Equal(got, expected) {
			t.Errorf("complete %v: got\n%s\nwant\n%s", complete, strings.Join(got, "\n"), strings.Join(expected, "\n"))
		}
	}
}
