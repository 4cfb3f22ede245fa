//go:build e2e

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/cli"
	"pulley/internal/release/trust"
)

// From no key to a record that a node takes, with the commands that the verbs themselves print.
func TestCreatedKeySigns(t *testing.T) {
	dir := t.TempDir()
	file, list, value := filepath.Join(dir, "id"), filepath.Join(dir, "allowed_signers"), filepath.Join(dir, "value")
	must := func(want string, args ...string) string {
		t.Helper()
		stdout, stderr, code := pulley(t, args...)
		if code != cli.ExitDone || !strings.Contains(stdout, want) {
			t.Fatalf("%q: exit code %d:\n%s%s", args, code, stdout, stderr)
		}
		return stdout
	}
	made := must("created the key "+file, "key", "create", file, "--no-passphrase")
	_, next, _ := strings.Cut(strings.TrimSpace(made), "next: pulley ")
	next = strings.NewReplacer("ENVIRONMENT,…", "production,dev", "FILE", list).Replace(next)
	must("ann may sign for production, dev", strings.Fields(next)...)
	record := []byte(`{"v":1}`)
	signatures, err := trust.Key{File: file}.Sign(t.Context(), trust.Release, record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(value, trust.Join(record, signatures), 0o600); err != nil {
		t.Fatal(err)
	}
	must("is authentic in dev: signed by ann", "key", "check", value, "-e", "dev", "--signers", list)
}
