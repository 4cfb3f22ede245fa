package puppet

import (
	"os"
	"path/filepath"
	"testing"
)

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
