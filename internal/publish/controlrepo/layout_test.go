package controlrepo

import "testing"

// A submodule of tests must not prevent publication, and one with modules must not be published empty.
func TestUnreadFolders(t *testing.T) {
	root := repo(t, map[string]string{
		"environment.conf": "modulepath = $codedir/environments/production/site:external/modules:/opt/modules\nmanifest = main/site.pp\n",
		"hiera.yaml":       "version: 5\nhierarchy: [{name: a, datadir: private/data, path: x.yaml}]\n",
	})
	for folder, want := range map[string]bool{
		"test_modules/cron": true, "docs": true, "modules/m": true, "manifests/old": true, "sites": true,
		"site": false, "site/m": false, "external": false, "external/modules/m": false, "main": false, "private": false, "private/data": false,
		"data": false, "lib/x": false, "environments": false,
	} {
		if got := Unread(root, folder); got != want {
			t.Errorf("Unread(%s) = %v", folder, got)
		}
	}
	if Unread(repo(t, map[string]string{"environment.conf": ""}), "modules/m") {
		t.Error("without environment.conf, nodes read modules/")
	}
	if l := parseLayout("modulepath = .:../x:$basemodulepath\nmanifest = /etc/site.pp\n"); l.manifest != "" || len(l.modulepath) != 1 || l.autoloaded("m/manifests/a/b.pp") != "m::a::b" {
		t.Errorf("%+v", l)
	}
	for _, text := range []string{"modulepath = a\x00b\n", "manifest = m\x00\n", "config_version = \x00x\n"} { // every run ends with an ArgumentError of Ruby
		if l := parseLayout(text); len(l.faults) != 1 || l.faults[0].Rule != EnvironmentConf {
			t.Errorf("%q: %+v", text, l.faults)
		}
	}
	l := parseLayout("modulepath = $environmentpath/$environment/site:$codedir/environments/dev/x:$basemodulepath\nmanifest = $codedir/environments/$environment/m\n")
	if l.manifest != "" || len(l.modulepath) != 1 || l.modulepath[0] != "x" || len(l.literal) != 2 || l.literal[1].line != 2 {
		t.Errorf("Puppet does not replace $environment: %+v", l)
	}
}
