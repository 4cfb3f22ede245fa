package puppet

import (
	"os"
	"path/filepath"
	"testing"
)

// The packages of Puppet and OpenVox have the core types as vendored modules. A run whose own modules replace that folder must not
// lose them.
func TestVendoredModulesStay(t *testing.T) {
	vendored, run := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(vendored, "cron_core/lib/puppet"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := linkVendored(vendored, run); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(run, "cron_core/lib/puppet")); err != nil {
		t.Error(err)
	}
	if err := linkVendored(filepath.Join(vendored, "absent"), run); err != nil { // with other packages
		t.Error(err)
	}
}

// Root starts the agent in any folder. A link there that is named like a core type must not become a module of the run:
// another user could have made it.
func TestCoreTypesComeFromTheirFolderOnly(t *testing.T) {
	here, run := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(here, "elsewhere/lib/facter"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range coreTypes {
		if err := os.Symlink("elsewhere", filepath.Join(here, name+"_core")); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(here)
	p := &Puppet{CoreModules: filepath.Join(run, "absent")}
	linked, err := p.linkCoreTypes(run)
	if entries, _ := os.ReadDir(run); linked || err != nil || len(entries) > 0 {
		t.Errorf("linked: %v, %v, %v", linked, entries, err)
	}
}
