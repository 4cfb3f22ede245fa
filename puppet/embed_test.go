package puppet

import (
	"io/fs"
	"strings"
	"testing"
)

// Without it, `pulley init` would write a repository that lacks a part, or bootstrap a module without its class.
func TestEmbeddedFiles(t *testing.T) {
	for _, name := range []string{
		"environment.conf", "hiera.yaml", "pulley.yaml", "README.md", "manifests/site.pp", "validate.d/10-motd",
		"modules/role/manifests/controller.pp", "modules/role/manifests/compute.pp", "modules/profile/manifests/base.pp",
	} {
		if _, err := fs.Stat(Repo(), name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"manifests/init.pp", "manifests/cron.pp", "manifests/signers.pp", "functions/valid_schedule.pp", "README.md"} {
		a, err := fs.ReadFile(Module(), name)
		if err != nil {
			t.Error(err)
			continue
		}
		b, err := fs.ReadFile(Repo(), "modules/pulley/"+name)
		if err != nil || string(a) != string(b) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
	script, err := fs.ReadFile(Repo(), "validate.d/10-motd")
	if err != nil || !strings.HasPrefix(string(script), "#!/bin/sh\n") {
		t.Errorf("the example check is not a script: %v", err)
	}
}
