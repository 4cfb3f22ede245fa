package source

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Scripts of config_version, and people on a node, find the commit only in this file.
func TestDeployFileNamesTheCommit(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"site.pp": "a", DeployFile: `{"signature": "left by r10k"}`})
	kept := open(t, dir, Options{})
	if got := string(kept.Added[DeployFile]); got != `{"signature": "left by r10k"}` {
		t.Errorf("outside of git: %q", got)
	}
	if !kept.Ignore(DeployFile, false) {
		t.Error("the file would be listed twice")
	}
	if err := os.Remove(filepath.Join(dir, DeployFile)); err != nil {
		t.Fatal(err)
	}
	at := commit(t, dir, "one")
	read := func(o Options) (d deploy) {
		if err := json.Unmarshal(open(t, dir, o).Added[DeployFile], &d); err != nil {
			t.Error(err)
		}
		return d
	}
	d := read(Options{})
	if d.Signature != at || d.StartedAt != "2026-01-02 03:04:05 +0000" || d.FinishedAt != d.StartedAt || !d.DeploySuccess || d.ModuleDeploys == nil {
		t.Errorf("%+v", d)
	}
	one, other := open(t, dir, Options{}), open(t, dir, Options{Ref: "main"})
	if string(one.Added[DeployFile]) != string(other.Added[DeployFile]) {
		t.Error("one commit gives two trees, and the signature of the second publish would be refused")
	}
	write(t, dir, map[string]string{"site.pp": "b", "modules/m/" + DeployFile: "left"})
	if d := read(Options{}); d.Signature != at+"-dirty" {
		t.Errorf("%+v", d)
	}
	copied, err := open(t, dir, Options{}).Copy(t.Context(), "production")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(copied, DeployFile))
	if err != nil || !strings.Contains(string(text), at) || filepath.Base(copied) != "production" {
		t.Errorf("%s: %q %v", copied, text, err)
	}
	if _, err := os.Stat(filepath.Join(copied, "modules/m", DeployFile)); err == nil {
		t.Error("the file of a module was copied")
	}
}
