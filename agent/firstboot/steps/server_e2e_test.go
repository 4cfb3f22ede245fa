//go:build e2e

package steps

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pulley/environments/settings"
	"pulley/internal/puppet"
)

// Puppet itself judges the file.
func TestPuppetReadsItsSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "puppet.conf")
	text := withAgentSettings("[main]\nserver = main\ncertname = main\n[agent]\nserver = old\nenvironment = mine\n", map[string]string{"server": "eu1.example", "certname": "web1"})
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "puppet", "config", "print", "server", "certname", "environment", "--section", "agent", "--config", file).CombinedOutput()
	if err != nil || string(out) != "certname = web1\nenvironment = mine\nserver = eu1.example\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// A node whose environment has Puppet's own daemon would run nothing if its service were not enabled.
func TestDaemonIsEnabled(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"run/systemd/system/.keep":              "",
		"usr/lib/systemd/system/puppet.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
	} {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	of := func(enforce string) *server {
		b := &server{boot: &boot{}, read: true, on: true, ServedNode: puppet.ServedNode{Settings: settings.PuppetSettings{Enforce: enforce}}}
		b.Root, b.Log = root, slog.New(slog.DiscardHandler)
		return b
	}
	for _, enforce := range []string{"", settings.EnforceOff} {
		if left, err := of(enforce).daemonLeft(t.Context()); err != nil || left != "" {
			t.Errorf("with enforce %q: %q, %v", enforce, left, err)
		}
	}
	b := of(settings.EnforceDaemon)
	if left, err := b.daemonLeft(t.Context()); err != nil || left == "" {
		t.Errorf("with a daemon: %q, %v", left, err)
	}
	if left, err := b.firstRunLeft(t.Context()); err != nil || left == "" {
		t.Errorf("a later tick runs beside the daemon: %q, %v", left, err)
	}
	for range 2 {
		if err := b.enableDaemon(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, "etc/systemd/system/multi-user.target.wants/puppet.service")); err != nil {
		t.Errorf("the service is not enabled: %v", err)
	}
}
