package puppet_test

import (
	"os"
	"path/filepath"
	"testing"

	"pulley/internal/model"
	"pulley/internal/puppet"
)

// A file that is not Pulley's must end no run, and a node must obey the one of its release.
func TestEnforcement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"puppet: {enforce: off}\nroles: {}\n":          model.EnforceOff,
		"puppet:\n  enforce: daemon\nroles: {}\n":      model.EnforceDaemon,
		"puppet: {reports: [http], newer_key: {a: 1}}": "",
		"puppet: a text":        "",
		"puppet: {settings: 5}": "",
		"roles: {}":             "",
		"{":                     "",
	} {
		tree := t.TempDir()
		if err := os.Mkdir(filepath.Join(tree, "environments"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, "environments/dev.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := puppet.Enforcement(tree, model.Identity{Node: "web1", PuppetEnvironment: "dev"}); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
