package controlrepo

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// repo writes a new repository and replaces some files. An empty text removes a file; "-> x" is a link to x.
func repo(t *testing.T, changes map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	if _, err := Init(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) { // a folder is removed before files are written into it
		path, content := filepath.Join(dir, name), changes[name]
		if content == "" {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, link := strings.CutPrefix(content, "-> "); link {
			if err := errors.Join(os.RemoveAll(path), os.Symlink(target, path)); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Problems of a release must be found before nodes apply it.
func TestValidateFinds(t *testing.T) {
	for name, c := range map[string]struct {
		changes map[string]string
		want    []string
	}{
		"nothing": {nil, nil},
		"an environment with a typo": {
			map[string]string{"environments/dev.yaml": "roles:\n  controller:\n    cardinalty: 2\n"},
			[]string{"environments/dev.yaml:3:5: error: "}},
		"a cloud with a typo": {
			map[string]string{"clouds/west.yaml": "flavours: {bare-metal: m1.large}\n"}, []string{"clouds/west.yaml:1:1: error: a cloud has no key \"flavours\""}},
		"a cloud that is not found": {
			map[string]string{"clouds/west.yml": "flavors: {bare-metal: m1.large}\n"}, []string{"clouds/west.yml: warning: `--cloud` does not find a file that ends with .yml"}},
		"an environment that is only right in a cloud": {
			map[string]string{"environments/dev.yaml": "provider: exec\nroles: {compute: {cardinality: 1}}\n", "clouds/west.yaml": "provider: {driver: exec, command: [/c]}\n"}, nil},
		"an environment that is right in no cloud": {
			map[string]string{"environments/dev.yaml": "provider: exec\nroles: {compute: {cardinality: 1}}\n", "clouds/west.yaml": "provider: {driver: exec, timeout: 1m}\n"},
			[]string{"environments/dev.yaml:1:11: error: provider exec has no command"}},
		"a role without node declaration": {
			map[string]string{"environments/dev.yaml": "roles:\n  compute: {cardinality: 1, flavor: x}\n  storage: {cardinality: 3, flavor: x}\n"},
			[]string{"environments/dev.yaml:3:3: warning: no node declaration matches a node of the environment: storage1 of role storage"}},
		"a declaration that only matches one digit": {
			map[string]string{"manifests/site.pp": "node /^controller\\d+/, /\\Acompute[1-9]\\z/ { include pulley }\nnode default { }\n",
				"environments/dev.yaml": "roles:\n  compute: {cardinality: 12, flavor: x}\n", "environments/production.yaml": ""},
			[]string{"environments/dev.yaml:2:3: warning: no node declaration matches a node of the environment: compute12 of role compute"}},
		"names instead of patterns": {
			map[string]string{"manifests/site.pp": "node 'controller1', \"controller2\" { }\nnode compute1 { include pulley }\n", "environments/production.yaml": ""}, nil},
		"a pattern of Ruby's own": {
			map[string]string{"manifests/site.pp": "node /^(?!x)c\\h*/ { include pulley }\n"}, nil},
		"members without node declaration": {
			map[string]string{"manifests/site.pp": "node 'old1' { include pulley }\n", "environments/production.yaml": "",
				"environments/dev.yaml": "roles:\n  web: {members: [old1, old.example.com]}\n  db: {cardinality: 0}\n"},
			[]string{"environments/dev.yaml:2:3: warning: no node declaration matches a node of the environment: old.example.com of role web"}},
		"only the default declaration": {
			map[string]string{"manifests/site.pp": "node default { contain pulley }\n"}, nil},
		"classes from elsewhere": {
			map[string]string{"manifests/site.pp": "File { backup => false }\nnode default {\n # include x\n }\n",
				"hiera.yaml": "version: 5\nhierarchy:\n- {name: a, path: 'role/%{role}/%{::site}/%{fqdn}/%{own}.yaml'}\n", "modules/role/lib/facter/own.rb": "x"},
			[]string{"hiera.yaml:3: warning: hiera.yaml reads a variable that no site manifest and no fact of a module sets: without an external classifier it is empty: role [unset_variable]",
				"hiera.yaml:3: warning: hiera.yaml reads a variable that no site manifest and no fact of a module sets: without an external classifier it is empty: site",
				"manifests/site.pp: warning: no site manifest includes a class"}},
		"variables that the site manifest sets": {
			map[string]string{"manifests/site.pp": "$role = 'x'\nnode default { include \"role::${role}\" }\n", "hiera.yaml": "version: 5\nhierarchy: [{name: a, path: '%{::role}.yaml'}]\n"}, nil},
		"external nodes": {
			map[string]string{"manifests/site.pp": "node default { }\n", "hiera.yaml": "version: 5\nhierarchy: [{name: a, path: '%{site}/%{zone}.yaml'}]\n", "external_nodes/old.yaml": "classes: {used::a: }\nparameters: {site: x}\n",
				"external_nodes/pe.yaml":      `{"name": "x", "groups": ["a"], "environment": "production", "classes": {"used::a": {}, "ntp": {"servers": ["a"]}}, "parameters": {"zone": 1}}`,
				"modules/used/manifests/a.pp": "class used::a { } # caf\xe9\n", "external_nodes/list.yaml": "classes: [ntp, {x: 1}]\n", "external_nodes/two.yaml": "classes: []\n---\nclasses: []\n",
				"external_nodes/empty.yaml": "# nothing\n", "external_nodes/other.yaml": "hosts: []\n", "external_nodes/params.yaml": "classes: {x: [y]}\n", "external_nodes/README.md": "x", "external_nodes/default.yaml": "classes: []\n"},
			[]string{"external_nodes/empty.yaml: error: nodes would refuse the release because of their file in external_nodes: it is empty", "external_nodes/list.yaml: error: nodes would refuse the release because of their file in external_nodes: line 1: a class is not a name",
				"external_nodes/other.yaml: error: nodes would refuse the release because of their file in external_nodes: line 1: it has neither classes nor",
				"external_nodes/params.yaml: error: nodes would refuse the release because of their file in external_nodes: line 1: the parameters of class x are not",
				"external_nodes/pe.yaml:1:88: warning: no module has this class: the nodes that include it fail: ntp", "modules/used/manifests/a.pp:1: error: Puppet cannot parse"}},
		"nodes without an answer": {
			map[string]string{"external_nodes/web1.yaml": "classes: [pulley]\n", "external_nodes/db1_east.yaml": "classes: [pulley]\n", "environments": "", "manifests/site.pp": "node default { include pulley }\n",
				"environments/dev.yaml":  "roles: {web: {cardinality: 2, flavor: x}, db: {cardinality: 1, flavor: x}}\n",
				"environments/full.yaml": "roles: {web: {cardinality: 1, flavor: x}}\n",
				"environments/many.yaml": "roles: {web: {cardinality: 9, flavor: x, members: [old.example.com]}}\n"},
			[]string{"environments/dev.yaml: warning: nodes of the environment have no answer in external_nodes, and their runs fail: web2 [external_node_missing]",
				"environments/many.yaml: warning: nodes of the environment have no answer in external_nodes, and their runs fail: web2, web3, web4, web5, web6 and 4 more [external_node_missing]"}},
		"nodes with the answer for all": {
			map[string]string{"external_nodes/default.yaml": "classes: [pulley]\n", "environments/dev.yaml": "roles: {compute: {cardinality: 2, flavor: x}}\n"}, nil},
		"a folder of answers without any": {
			map[string]string{"external_nodes/README.md": "x", "environments": "", "environments/dev.yaml": "roles: {compute: {cardinality: 1, flavor: x}}\n"},
			[]string{"environments/dev.yaml: warning: nodes of the environment have no answer in external_nodes, and their runs fail: compute1 [external_node_missing]"}},
		"data on the server": {
			map[string]string{"hiera.yaml": "version: 5\nhierarchy:\n- {name: a, datadir: '/etc/puppetlabs/code/environments/%{environment}/data', path: a.yaml}\n- {name: b, path: /srv/b.yaml}\n"},
			[]string{"hiera.yaml:3: warning: hiera.yaml reads a folder outside of the repository: nodes find only what they have there themselves: /etc/puppetlabs/code/environments/%{environment}/data, which is data of the repository on a Puppet server [data_outside]",
				"hiera.yaml:4: warning: hiera.yaml reads a folder outside of the repository: nodes find only what they have there themselves: /srv [data_outside]"}},
		"data that eyaml encrypted": {
			map[string]string{"hiera.yaml": "version: 5\ndefaults: {lookup_key: eyaml_lookup_key, options: {pkcs7_private_key: /k/private.pem, pkcs7_public_key: /k/public.pem}}\nhierarchy: [{name: a, path: a.yaml}, {name: b, data_hash: yaml_data, path: b.yaml}]\n", "data/a.yaml": "a: ENC[PKCS7,MIIB]\n"},
			[]string{"hiera.yaml: warning: nodes need hiera-eyaml and the keys that hiera.yaml names: /k/private.pem, /k/public.pem [eyaml_keys]"}},
		"keys that come as a secret": {
			map[string]string{"hiera.yaml": "version: 5\nhierarchy:\n- {name: a, lookup_key: eyaml_lookup_key, path: a.yaml, options: {pkcs7_private_key: '%{facts.pulley.data}/eyaml.pem', pkcs7_public_key: '%{facts.pulley.data}/eyaml.pem'}}\n", "data/a.yaml": "a: ENC[PKCS7,MIIB]\n"}, nil},
		"live data in the hierarchy, and only keys there": {
			map[string]string{"pulley.yaml": "live_data: hierarchy\n", "hiera.yaml": "version: 5\nhierarchy:\n- {name: a, lookup_key: eyaml_lookup_key, path: a.yaml, options: {pkcs7_private_key: '%{facts.pulley.data}/eyaml.pem'}}\n"},
			[]string{"pulley.yaml: error: live_data is hierarchy, but"}},
		"data that nothing decrypts": {
			map[string]string{"hieradata/common.yaml": "a: 1\nb: >\n  ENC[PKCS7,MIIB\n  abcd]\nc: 'ENC[' \n", "hiera.yaml": "version: 5\nhierarchy: [{name: a, datadir: hieradata, path: common.yaml}]\n"},
			[]string{"hieradata/common.yaml:3: warning: Hiera does not decrypt this value"}},
		"no declarations": {
			map[string]string{"manifests/site.pp": "# node /x/ { }\ninclude pulley\n"},
			[]string{"manifests/site.pp: warning: there are no node declarations"}},
		"no manifests, environments, hiera": {
			map[string]string{"manifests": "", "environments": "", "hiera.yaml": ""},
			[]string{"environments: warning: there is no environment", "hiera.yaml: warning: there is no hiera.yaml", "manifests/site.pp: warning: there is no site manifest"}},
		"broken data": {
			map[string]string{"hieradata/common.yaml": "a: 1\nb: [\n", "hieradata/x.yaml": "a: 1\nb: {c: 1, c: 2}\na: 3\n", "hieradata/y.yaml": "d: 2024-01-01\n",
				"hieradata/z.yaml": "a: caf\xe9\n", "hiera.yaml": "version: 5\nhierarchy: [{name: a, datadir: hieradata, globs: ['*.yaml']}]\n"},
			[]string{"hieradata/common.yaml:2: error: Hiera cannot parse a data file: ", "hieradata/x.yaml:2:11: warning: the mapping contains a key twice, and Puppet uses the last value: \"c\", first in line 2 [duplicate_key]",
				"hieradata/x.yaml:3:1: warning: the mapping contains a key twice", "hieradata/y.yaml:1:4: error: Puppet refuses to read a data file with a date: 2024-01-01 [data_date]",
				"hieradata/z.yaml:1: error: Hiera cannot parse a data file: the line is not UTF-8 [data_syntax]"}},
		"data of modules": {
			map[string]string{"modules/role/hiera.yaml": "version: 5\n", "modules/role/data/common.yaml": "a: [", "modules/role/files/x.yaml": "a: ["},
			[]string{"modules/role/data/common.yaml:1: error: Hiera cannot parse a data file"}},
		"data of a module that nothing names": {
			map[string]string{"modules/other/hiera.yaml": "version: 9\n", "modules/other/manifests/init.pp": "class other { }\n", "modules/more/hiera.yaml": "version: 5\n", "modules/more/data/common.yaml": "a: ["},
			[]string{"modules/more/data/common.yaml:1: warning: the file does not parse", "modules/other/hiera.yaml:1:10: warning: the file does not parse"}},
		"data of the environment in a module": {
			map[string]string{"hiera.yaml": "version: 5\nhierarchy: [{name: a, datadir: modules/hieradata/data, path: a.yaml}]\n", "modules/hieradata/data/a.yaml": "a: ["},
			[]string{"modules/hieradata/data/a.yaml:1: error: Hiera cannot parse a data file"}},
		"data that no hierarchy reads": {
			map[string]string{"ci.yaml": "a: [", "modules/role/files/x.yaml": "[", "modules/role/templates/hiera.yaml": "[", "docker/hiera.yaml": "version: 9\n", "spec/fixtures/x.yaml": "["}, nil},
		"flawed interpolations": {
			map[string]string{"hieradata/common.yaml": "a: 1\n\"%{x'}\": 1\nb: {c: [\"%{lookup('x'}\"]}\nd: '%{User-Agent} %{unclosed'\ne: \"%{lookup('a')}\"\n",
				"hiera.yaml": "version: 5\ndefaults: {datadir: hieradata}\nhierarchy:\n- {name: \"%{x('y')}\", paths: [common.yaml, \"%{lookup('a')}.yaml\"]}\n- {name: b, mapped_paths: [facts.a, b, \"%{b\"]}\n"},
			[]string{"hiera.yaml:4:44: error: every lookup of every node fails: %{lookup('a')}: hiera.yaml may interpolate variables only [interpolation]",
				"hiera.yaml:5:40: warning: Puppet does not interpolate the text as it is meant: %{b: it has no closing brace, and Puppet keeps the text [interpolation_odd]",
				"hieradata/common.yaml:3:9: warning: the runs of the nodes that look up the value fail: %{lookup('x'}: Puppet cannot read the name in it [interpolation_fails]",
				"hieradata/common.yaml:4:4: warning: Puppet does not interpolate the text as it is meant: %{User-Agent}: no variable has this name",
				"hieradata/common.yaml:4:4: warning: Puppet does not interpolate the text as it is meant: %{unclosed: it has no closing brace"}},
		"flawed interpolations of a module that nothing names": {
			map[string]string{"modules/more/hiera.yaml": "version: 5\nhierarchy: [{name: a, path: \"%{find('a')}\"}]\n", "modules/role/hiera.yaml": "version: 5\nhierarchy: [{name: a, path: \"%{..}\"}]\n"},
			[]string{"modules/more/hiera.yaml:2:29: warning: the runs of the nodes that look up the value fail: %{find('a')}: hiera.yaml may interpolate variables only",
				"modules/role/hiera.yaml:2:29: error: every lookup of every node fails: %{..}: Puppet cannot read the name in it"}},
		"names of environments": {
			map[string]string{"environments": "", "environments/prod.yaml": "roles: {controller: {cardinality: 1, flavor: x}}\n",
				"hiera.yaml":             "version: 5\nhierarchy: [{name: a, paths: ['%{environment}/x.yaml', '%{::environment}.yaml', common.yaml, 'os/%{facts.os.name}.yaml']}]\n",
				"data/production/x.yaml": "a: 1\n", "data/staging.yaml": "a: 1\n", "data/common.yaml": "a: 1\n", "data/os/production.yaml": "a: 1\n",
				"modules/role/manifests/x.pp": "class role::x {\n  if $environment == 'production' or 'dev' != $::environment { }\n  case $environment { 'qa', 'uat': { notice('no') } default: { } }\n  $a = $environment ? { 'e2e' => 'no', default => 'x' }\n}\n",
				"modules/role/manifests/y.pp": "class role::y ($environment) {\n  if $environment == 'other' { }\n}\n"},
			[]string{"data/production/x.yaml: warning: data or code is for an environment that the repository does not have: $environment is the name of the environment file: production; the environments are prod [environment_name]",
				"data/staging.yaml: warning: data or code is for an environment that the repository does not have: $environment is the name of the environment file: staging",
				"modules/role/manifests/x.pp:2:39: warning: data or code is for an environment that the repository does not have: $environment is the name of the environment file: dev;",
				"modules/role/manifests/x.pp:3:24: warning: data or code is for an environment that the repository does not have: $environment is the name of the environment file: qa;",
				"modules/role/manifests/x.pp:3:30: warning: data or code is for an environment that the repository does not have: $environment is the name of the environment file: uat;",
				"modules/role/manifests/x.pp:4:26: warning: data or code is for an environment that the repository does not have: $environment is the name of the environment file: e2e;"}},
		"environments that data and code name": {
			map[string]string{"environments": "", "environments/production.yaml": "roles: {controller: {cardinality: 1, flavor: x}}\n",
				"hiera.yaml": "version: 5\nhierarchy: [{name: a, path: '%{environment}.yaml'}]\n", "data/production.yaml": "a: 1\n", "data/staging.yaml": "a: 1\n"}, nil},
		"what Hiera may have": {
			map[string]string{"hieradata/common.yaml": "x: &x {a: 1}\ny:\n  <<: *x\n  b: *x\n'1': a\n1: b\nd: '2024-01-01'\n"}, nil},
		"an old hiera.yaml": {
			map[string]string{"hiera.yaml": "version: 3\n", "modules/role/hiera.yaml": "version: 4\n"},
			[]string{"hiera.yaml: warning: Puppet ignores a hiera.yaml of version 3 in an environment or a module [hiera_version_3]",
				"modules/role/hiera.yaml: warning: a hiera.yaml of version 4 is deprecated"}},
		"a hiera.yaml of Hiera 3": {
			map[string]string{"hiera.yaml": ":backends: [yaml]\n:hierarchy: [common]\n"}, []string{"hiera.yaml: warning: Puppet ignores a hiera.yaml of version 3"}},
		"data of version 4": {
			map[string]string{"hiera.yaml": "version: 4\ndatadir: hieradata\nhierarchy: [{name: common, backend: yaml}]\n", "hieradata/common.yaml": "a: ["},
			[]string{"hiera.yaml: warning: a hiera.yaml of version 4", "hieradata/common.yaml:1: error: Hiera cannot parse a data file"}},
		"an unknown hiera.yaml": {
			map[string]string{"hiera.yaml": "version: 6\n"}, []string{"hiera.yaml:1:10: error: Puppet cannot use this hiera.yaml: version \"6\" is unknown"}},
		"unknown settings": {
			map[string]string{"pulley.yaml": "live_data: above\nlive_date: x\n"},
			[]string{"pulley.yaml:2: error: nodes would refuse the release because of its pulley.yaml: unknown key \"live_date\" (there are live_data and silence) [settings]"}},
		"a wrong setting": {
			map[string]string{"pulley.yaml": "live_data: below\n"}, []string{"pulley.yaml:1: error: nodes would refuse the release because of its pulley.yaml: live_data is \"below\""}},
		"live data without a place": {
			map[string]string{"pulley.yaml": "live_data: hierarchy\n"}, []string{"pulley.yaml: error: live_data is hierarchy, but"}},
		"live data where Puppet would not find it": {
			map[string]string{"pulley.yaml": "live_data: hierarchy\n", "hiera.yaml": "version: 5\nhierarchy: [{name: x, datadir: '%{facts.pulley.data}', path: node.yaml}]\n"},
			[]string{"pulley.yaml: error: live_data is hierarchy, but"}},
		"live data with two places": {
			map[string]string{"hiera.yaml": "version: 5\nhierarchy: [{name: x, path: '%{facts.pulley.data}/node.yaml'}]\n"},
			[]string{"pulley.yaml: warning: hiera.yaml has a place"}},
		"live data in its place": {
			map[string]string{"pulley.yaml": "live_data: hierarchy\n", "hiera.yaml": "version: 5\nhierarchy: [{name: x, path: '%{facts.pulley.data}/node.yaml'}]\n"}, nil},
		"settings that are null": {
			map[string]string{"pulley.yaml": "live_data:\n"}, []string{"pulley.yaml:1: error: nodes would refuse the release because of its pulley.yaml: live_data is \"\""}},
		"settings twice": {
			map[string]string{"pulley.yaml": "live_data: above\n---\nlive_data: hierarchy\n"}, []string{"pulley.yaml: error: nodes would refuse the release because of its pulley.yaml: more than one document"}},
		"a private key": {
			map[string]string{"keys/private_key.pkcs7.pem": "-----BEGIN RSA PRIVATE KEY-----\nx\n", "keys/public_key.pkcs7.pem": "-----BEGIN CERTIFICATE-----\n"},
			[]string{"keys/private_key.pkcs7.pem: error: git does not track this private key"}},
		"no settings": {map[string]string{"pulley.yaml": ""}, nil},
		"a check that can't run": {
			map[string]string{"validate.d/20-x": "#!/bin/sh\n"}, []string{"validate.d/20-x: error: the hook is not executable, and nodes would skip it [not_executable]"}},
		"a hook that can't run": {
			map[string]string{"retire.d/20-x": "#!/bin/sh\n"}, []string{"retire.d/20-x: error: the hook is not executable"}},
		"exported resources": {
			map[string]string{"modules/role/manifests/x.pp": "class role::x {\n  @@file { '/x': }\n}\n"},
			[]string{"modules/role/manifests/x.pp:2:3: warning: exported resources need PuppetDB: Puppet warns and ignores them [exported_resource]"}},
		"manifests that Puppet never reads": {
			map[string]string{"modules/role/files/x.pp": "@@file { 'x': }", "modules/role/files/selinux.pp": "\x8f\xff\x7c", "modules/role/plans/x.pp": "@@file { 'x': }",
				"modules/role/examples/x.pp": "@@file { 'x': }", "docs/x.pp": "@@file { 'x': }", "other/m/manifests/x.pp": "@@file { 'x': }"}, nil},
		"folders that Puppet does not find": {
			map[string]string{"environment.conf": "modulepath = modules:$codedir/environments/$environment/site\n"},
			[]string{"environment.conf:1: warning: Puppet does not replace $environment in this setting, and finds no such folder: $codedir/environments/$environment/site [environment_variable]"}},
		"a default hierarchy of the environment": {
			map[string]string{"hiera.yaml": "version: 5\nhierarchy: [{name: a, path: a.yaml}]\ndefault_hierarchy: [{name: b, path: b.yaml}]\n", "modules/m/hiera.yaml": "version: 5\ndefault_hierarchy: [{name: b, path: b.yaml}]\n"},
			[]string{"hiera.yaml:3: error: Puppet cannot use this hiera.yaml: default_hierarchy is for modules only, and every lookup fails [hiera_config]"}},
		"another modulepath": {
			map[string]string{"environment.conf": "# modulepath = x\nmodulepath = ./site:modules:$basemodulepath # ours\n", "site/m/manifests/x.pp": "@@file { 'x': }"},
			[]string{"environment.conf:2: warning: Puppet does not read environment.conf as it looks: modulepath contains a #", "site/m/manifests/x.pp:1:1: warning: exported resources"}},
		"another site manifest": {
			map[string]string{"environment.conf": "manifest = main/site.pp\n", "main/site.pp": "node x1 { include pulley }\nnode default { }\n", "manifests/old.pp": "@@file { 'x': }", "environments": "",
				"environments/dev.yaml": "roles: {compute: {cardinality: 1, flavor: x}}\n"},
			[]string{"environments/dev.yaml:1:9: warning: no node declaration matches"}},
		"a site manifest that is Latin-1": {
			map[string]string{"manifests/x.pp": "# 1\n# caf\xe9\n"}, []string{"manifests/x.pp:2: error: Puppet cannot parse a manifest that nodes read: the line is not UTF-8 [manifest_syntax]"}},
		"a class that is Latin-1": {
			map[string]string{"manifests/x.pp": "node x1 { include used::a }\n", "modules/used/manifests/a.pp": "class used::a { } # caf\xe9\n", "modules/used/manifests/b.pp": "class used::b { } # caf\xe9\n"},
			[]string{"modules/used/manifests/a.pp:1: error: Puppet cannot parse", "modules/used/manifests/b.pp:1: warning: the file does not parse; no code or data of this repository names it"}},
		"what nodes never read": {
			map[string]string{".git/x.yaml": "[", "modules/role/spec/x.pp": "@@file { 'x': }", "modules/role/.fixtures.yml": "["}, nil},
		"environment.conf that Puppet refuses or reads otherwise": {
			map[string]string{"environment.conf": "modulepath\nmanifest = ${environmentpath}/x\nmodulepath = modules\nmodulepath = site\nparser = future\n[dev]\nmanifest = y\n"},
			[]string{"environment.conf:1: error: Puppet cannot read environment.conf, and every run fails: the line is no setting: modulepath",
				"environment.conf:2: error: Puppet cannot read environment.conf, and every run fails: braces hold",
				"environment.conf:4: warning: Puppet does not read environment.conf as it looks: modulepath is set twice",
				"environment.conf:5: warning: Puppet does not read environment.conf as it looks: Puppet ignores the setting parser",
				"environment.conf:6: warning: Puppet does not read environment.conf as it looks: Puppet ignores the section [dev]"}},
		"classes that no module has": {
			map[string]string{"modules/own/manifests/init.pp": "class own inherits own::params {\n  include own::gone, $x, lookup('y')\n  class { '::absent': }\n  require Own\n}\nclass own::params { }\n",
				"modules/unused/manifests/init.pp": "class unused { include other }\n", "modules/asks/manifests/init.pp": "class asks { if defined('nope') { include nope } }\n",
				"manifests/x.pp": "node x1 { contain own, asks }\n"},
			[]string{"modules/own/manifests/init.pp:2:11: warning: no module has this class: the nodes that include it fail: own::gone", "modules/own/manifests/init.pp:3:12: warning: no module has this class: the nodes that include it fail: absent"}},
		"links": {
			map[string]string{"manifests/site.pp": "-> ../real.pp", "real.pp": "node default { include profile }\n", "modules/profile": "-> ../site/profile", "site/profile/manifests/init.pp": "class profile { @@file { 'x': } } # \xe9\n",
				"hieradata/common.yaml": "-> ../c.yaml", "c.yaml": "a: [", "manifests/linked": "-> ../more", "more/x.pp": "@@file { 'y': }\n", "site/profile/loop": "-> ..", "modules/out": "-> /usr"},
			[]string{"c.yaml:1: error: Hiera cannot parse a data file", "site/profile/manifests/init.pp:1: error: Puppet cannot parse a manifest that nodes read: the line is not UTF-8",
				"site/profile/manifests/init.pp:1:17: warning: exported resources"}},
		"a pointer of Git LFS": {
			map[string]string{"modules/x/files/tool": "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 3\n"}, []string{"modules/x/files/tool: warning: the file is a pointer of Git LFS"}},
		"a file that its module does not have": {
			map[string]string{"Puppetfile": "mod 'brought', '1.0'\n", "modules/brought/files/x": "x\n", "modules/own/files/linked": "-> /srv/private", "manifests/x.pp": "include own\n", "modules/own/files/here": "x\n",
				"modules/own/manifests/init.pp": "class own {\n  file { '/a': source => 'puppet:///modules/own/gone' }\n  file { '/b': source => 'puppet:///modules/own/linked/x' }\n" +
					"  file { '/c': source => 'puppet:///modules/brought/gone' }\n  file { '/d': source => 'puppet:///modules/other/gone' }\n  file { '/e': source => 'puppet:///modules/own/here' }\n}\n"},
			[]string{"modules/own/manifests/init.pp:2:27: warning: the module has no such file: the nodes that read it fail: puppet:///modules/own/gone",
				"modules/own/manifests/init.pp:4:27: warning: the module has no such file: the nodes that read it fail: puppet:///modules/brought/gone"}},
		"Puppet 8 without legacy facts": {
			map[string]string{"environments/dev.yaml": "roles: {compute: {cardinality: 1, flavor: x}}\nuserdata: {puppet_version: 8.19.0-1+debian12}\n",
				"hiera.yaml":                    "version: 5\nhierarchy: [{name: a, datadir: hieradata, path: \"os/%{::osfamily}.yaml\"}, {name: b, datadir: hieradata, path: \"%{domain}.yaml\"}]\n",
				"modules/own/manifests/init.pp": "class own($hostname) { notice($hostname, $::fqdn, $facts['lsbdistid'], \"${operatingsystem}\", $other) }\n",
				"modules/own/templates/x.erb":   "<%= @osfamily %> <%= @hostname %> <%= scope['::fqdn'] %>\n", "manifests/x.pp": "$domain = 'x'\n"},
			[]string{"hiera.yaml:2:57: warning: machines that get Puppet 8 by `userdata.puppet_version` or `package_repo` have no legacy facts: this one is empty there: osfamily", "modules/own/manifests/init.pp:1:42: warning: machines that get Puppet 8 by `userdata.puppet_version` or `package_repo` have no legacy facts: this one is empty there: fqdn",
				"modules/own/manifests/init.pp:1:59: warning: machines that get Puppet 8 by `userdata.puppet_version` or `package_repo` have no legacy facts: this one is empty there: lsbdistid", "modules/own/manifests/init.pp:1:75: warning: machines that get Puppet 8 by `userdata.puppet_version` or `package_repo` have no legacy facts: this one is empty there: operatingsystem",
				"modules/own/templates/x.erb:1:6: warning: machines that get Puppet 8 by `userdata.puppet_version` or `package_repo` have no legacy facts: this one is empty there: osfamily", "modules/own/templates/x.erb:1:48: warning: machines that get Puppet 8 by `userdata.puppet_version` or `package_repo` have no legacy facts: this one is empty there: fqdn"}},
		"Puppet 8 with legacy facts": {
			map[string]string{"environments/dev.yaml": "roles: {compute: {cardinality: 1, flavor: x}}\nuserdata: {puppet_version: 8.19.0-1+debian12}\npuppet: {settings: {include_legacy_facts: \"true\"}}\n", "manifests/x.pp": "notice($::fqdn)\n"}, nil},
		"an encrypted value beside a level that decrypts": {
			map[string]string{"hiera.yaml": "version: 5\ndefaults: {datadir: hieradata}\nhierarchy: [{name: s, lookup_key: eyaml_lookup_key, path: s.eyaml, options: {pkcs7_private_key: /k}}, {name: c, data_hash: yaml_data, path: c.yaml}]\n",
				"hieradata/s.eyaml": "a: ENC[PKCS7,MIIB]\n", "hieradata/c.yaml": "# ENC[PKCS7,MIIB]\nb: ENC[PKCS7,MIIB]\n"},
			[]string{"hiera.yaml: warning: nodes need hiera-eyaml", "hieradata/c.yaml:2: warning: Hiera does not decrypt this value"}},
		"a default declaration for other nodes": {
			map[string]string{"manifests/site.pp": "node /^controller/ { include pulley }\nnode default { include pulley }\n"}, nil},
		"directory environments": {
			map[string]string{"environments/a/manifests/site.pp": "x", "environments/b/environment.conf": "x", "manifests": "", "hiera.yaml": "", "modules": "", "environment.conf": ""},
			[]string{"environments: warning: the folder holds directory environments of Puppet, and each of them is a control repository: environments/a, environments/b"}},
		"what Psych reads": {
			map[string]string{"hieradata/common.yaml": "%YAML 1.2\n---\na: \"x\\/y\"\n---\nb: [\n", "external_nodes/default.yaml": "{\"classes\": [], \"parameters\": {\"u\": \"http:\\/\\/x\"}}\n"}, nil},
		"too large": {
			map[string]string{"hieradata/common.yaml": "a: " + strings.Repeat("x", maxFileBytes)}, []string{"hieradata/common.yaml: warning: the file is not checked: "}},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := Validate(t.Context(), repo(t, c.changes), Options{Complete: true})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range report.Findings {
				got = append(got, f.String())
			}
			same := len(got) == len(c.want)
			for i := 0; same && i < len(got); i++ {
				same = strings.HasPrefix(got[i], c.want[i])
			}
			if !same {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if report.Errors()+report.Warnings() != len(report.Findings) {
				t.Errorf("%d errors, %d warnings of %d", report.Errors(), report.Warnings(), len(report.Findings))
			}
		})
	}
}

// A hook that the kernel refuses fails every node that takes the release.
func TestHooksThatCannotStart(t *testing.T) {
	dir := repo(t, nil)
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"crlf": {"#!/bin/sh\r\nexit\r\n", true}, "env": {"#!/usr/bin/env bash\r\n", true}, "bom": {"\ufeff#!/bin/sh\n", true}, "none": {"exit 0\n", true}, "blank": {"#! \n", true}, "bare": {"#!sh\n", true},
		"empty": {"", true}, "good": {"#! /bin/sh -e\nexit\r\n", false}, "elf": {"\x7fELF\x02", false},
	} {
		file := filepath.Join(dir, "hosts.d", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(c.text), 0o755)); err != nil {
			t.Fatal(err)
		}
		report, err := Validate(t.Context(), dir, Options{})
		if got := slices.ContainsFunc(report.Findings, func(f Finding) bool { return f.File == "hosts.d/"+name && f.Rule == HookStart }); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, report.Findings, err)
		}
	}
	for line, want := range map[string]string{
		"/bin/sh -e": "", "/usr/bin/env bash": "", "/usr/bin/env -S python3 -u": "python3", "/opt/puppetlabs/puppet/bin/ruby": "/opt/puppetlabs/puppet/bin/ruby", "/usr/bin/env A=b sh": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, "hosts.d", "good"), []byte("#!"+line+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		report, err := Validate(t.Context(), dir, Options{})
		got := ""
		for _, f := range report.Findings {
			if f.Rule == HookInterpreter {
				got += f.detail
			}
		}
		if got != want || err != nil {
			t.Errorf("the interpreter of %s: %q, %v", line, got, err)
		}
	}
}

// All manifests must be parsed, in one run.
func TestValidateParsesManifestsOnce(t *testing.T) {
	dir := repo(t, nil)
	calls := 0
	report, err := Validate(t.Context(), dir, Options{Puppet: func(_ context.Context, d string, files PuppetFiles) []Finding {
		calls++
		if d != dir || !slices.Contains(files.Manifests, PuppetFile{File: "manifests/site.pp", Names: true, Site: true}) || len(files.Manifests) != 12 || len(files.Hiera) != 1 || len(files.Data) == 0 {
			t.Errorf("asked to parse %v of %s", files, d)
		}
		return []Finding{finding(ManifestSyntax, "manifests/site.pp", 3, 0, "x")}
	}})
	if err != nil || calls != 1 || report.Errors() != 1 || report.Findings[0].Line != 3 {
		t.Errorf("%d calls, %v, %v", calls, report, err)
	}
	if _, err := Validate(t.Context(), filepath.Join(dir, "nowhere"), Options{}); err == nil {
		t.Error("a folder that is not there is valid")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Validate(ended, dir, Options{}); err == nil {
		t.Error("it continues after being stopped")
	}
}

// program writes a script that replaces puppet.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "puppet")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A missing, broken or hanging Puppet must not count as valid manifests.
func TestPuppetValidatorReportsErrorsOfPuppet(t *testing.T) {
	dir := t.TempDir()
	check := func(command string, ctx context.Context) string {
		var lines []string
		for _, f := range PuppetValidator(command)(ctx, dir, PuppetFiles{Manifests: []PuppetFile{{File: "a.pp"}}}) {
			lines = append(lines, f.String())
		}
		return strings.Join(lines, "\n")
	}
	for name, c := range map[string]struct{ command, want string }{
		"fine":    {program(t, `for job; do :; done; echo '[]' > "$(sed 's/.*"answer":"\([^"]*\)".*/\1/' "$job")"`), ""},
		"dumb":    {program(t, "exit 0"), "error: Puppet could not judge the files: "},
		"missing": {filepath.Join(dir, "nothing"), "error: Puppet could not judge the files: there is no "},
		"silent":  {program(t, "echo boom >&2; exit 1"), "error: Puppet could not judge the files: Puppet ended with exit status 1: boom"},
		"errors": {program(t, `echo "Error: Could not parse for environment production: Syntax error at '}' (file: `+dir+`/a.pp, line: 3, column: 1)"
echo "Warning: Unrecognised escape sequence '\\.' (file: `+dir+`/b.pp, line: 4, column: 2)"; exit 1`),
			"a.pp:3:1: error: Puppet cannot parse a manifest that nodes read: Syntax error at '}' [manifest_syntax]\nb.pp:4:2: warning: Puppet warns about a manifest: Unrecognised escape sequence '\\.' [parser_warning]"},
	} {
		if got := check(c.command, t.Context()); got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if got := check(program(t, "sleep 60 & wait"), ctx); !strings.Contains(got, "Puppet was stopped") || time.Since(begun) > 30*time.Second {
		t.Errorf("hanging: %q after %v", got, time.Since(begun))
	}
}

// Ignored files must not prevent publication, in any folder. A pattern that excludes a file needed by nodes must be
// reported.
func TestValidateChecksUnignoredFiles(t *testing.T) {
	dir := repo(t, map[string]string{"fixtures/bad.yaml": "a: [", "fixtures/\xff/x": "x", "data/\xff.yaml": "a: [", "manifests/old.pp": "@@file { 'x': }"})
	ignored := []string{"fixtures", "data/\xff.yaml", "manifests/old.pp"}
	ignore := func(path string, _ bool) bool { return slices.Contains(ignored, path) }
	report, err := Validate(t.Context(), dir, Options{Ignore: ignore})
	if err != nil || len(report.Findings) != 0 {
		t.Errorf("%v %v", report.Findings, err)
	}
	ignored = append(ignored, "manifests")
	if report, err = Validate(t.Context(), dir, Options{Ignore: ignore}); err != nil || report.Errors() != 0 || len(report.Findings) != 1 || report.Findings[0].File != "manifests/site.pp" {
		t.Errorf("%v %v", report.Findings, err)
	}
}

// Backups that go nowhere, and a service that a takeover leaves alone, would surprise a team only on its nodes.
func TestBucketsAndTheAgentsServiceAreReported(t *testing.T) {
	_, report := validated(t, map[string]string{
		"environment.conf": "modulepath = site:modules\n",
		"site/a/manifests/b.pp": "class a::b {\n  filebucket { 'main': server => 'puppet', path => false }\n  filebucket { 'own': path => '/var/bucket' }\n" +
			"  service { ['cron', 'puppet']: ensure => running }\n  service { 'puppetserver': }\n  service { $x: enable => 'puppet' }\n}\n",
	}, Options{})
	var got []string
	for _, f := range report.Findings {
		if f.Rule == RemoteFilebucket || f.Rule == AgentService {
			got = append(got, f.place()+string(f.Rule))
		}
	}
	want := []string{"site/a/manifests/b.pp:2:3: remote_filebucket", "site/a/manifests/b.pp:4:3: agent_service"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A team learns on its nodes that its own code starts the old Puppet beside Pulley.
func TestCodeThatStartsPuppet(t *testing.T) {
	const units = "[Service]\nExecStart=/usr/bin/puppet apply x.pp\n"
	_, report := validated(t, map[string]string{
		"environment.conf":                    "modulepath = modules\n",
		"modules/a/manifests/init.pp":         "class a(String $unit = 'puppet') {\n  service { $unit: ensure => running }\n  service { \"x${unit}\": }\n  service { 'agent': name => 'pe-puppet' }\n}\n",
		"modules/a/manifests/cron.pp":         "class a::cron {\n  cron { 'x': command => '/usr/bin/puppet apply x' }\n  file { '/etc/cron.d/x':\n    content => @(END),\n      @hourly root puppet agent -t\n      | END\n  }\n}\n",
		"modules/a/manifests/exec.pp":         "class a::exec {\n  $run = \"cd ${dir} && puppet apply .\"\n  exec { 'puppet agent -t': unless => 'puppet agent -t --noop' }\n}\n",
		"modules/a/manifests/talks.pp":        "# puppet agent -t\nclass a::talks {\n  notify { 'run puppet agent -t': message => 'puppet agent -t' }\n  notice('puppet apply x')\n  file { '/etc/motd': content => 'managed by Puppet: puppet agents run' }\n  exec { 'puppet agent --disable': }\n}\n",
		"modules/a/files/run.sh":              "#!/bin/sh\n# puppet agent\npuppet agent --onetime\n",
		"modules/a/files/README":              "Do not run puppet agent here.\n",
		"modules/a/templates/run.service.epp": units,
		"modules/a/templates/cron.erb":        "<%= @minute %> * * * * root puppet agent -t\n",
	}, Options{})
	var got []string
	for _, f := range report.Findings {
		if f.Rule == PuppetStarted || f.Rule == AgentService {
			got = append(got, strings.TrimPrefix(f.place(), "modules/a/")+string(f.Rule))
		}
	}
	want := []string{
		"files/run.sh:3: puppet_started", "manifests/cron.pp:2:27: puppet_started", "manifests/cron.pp:5:1: puppet_started", "manifests/exec.pp:2:20: puppet_started", "manifests/exec.pp:3:11: puppet_started",
		"manifests/init.pp:2:3: agent_service", "manifests/init.pp:4:3: agent_service", "templates/cron.erb:1: puppet_started", "templates/run.service.epp:2: puppet_started",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

// A signal while Puppet parses is no error of the repository.
func TestSignalIsNoFinding(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "manifests"), 0o755), os.WriteFile(filepath.Join(dir, "manifests", "site.pp"), []byte("node default { }\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Validate(ctx, dir, Options{Puppet: func(ctx context.Context, _ string, _ PuppetFiles) []Finding {
		cancel()
		return []Finding{cannotParse("Puppet was stopped")}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// What the Puppetfile brings may have the file.
func TestFilesOfThePuppetfileAreNotMissing(t *testing.T) {
	t.Parallel()
	report, err := Validate(t.Context(), repo(t, map[string]string{
		"Puppetfile": "mod 'brought', '1.0'\n", "modules/brought/files/x": "x\n",
		"manifests/x.pp": "file { '/a': source => 'puppet:///modules/brought/gone' }\nfile { '/b': source => 'puppet:///modules/role/gone' }\n",
	}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range report.Findings {
		if f.Rule == FileMissing {
			got = append(got, f.detail)
		}
	}
	if !slices.Equal(got, []string{"puppet:///modules/role/gone"}) {
		t.Error(got)
	}
}
