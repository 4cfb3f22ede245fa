package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/cli"
)

// pulley runs a command line in this process, with the test's environment.
func pulley(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err, Getenv: func(string) string { return "" }, Now: time.Now, User: "ann"}
	code = Main(t.Context(), env, args)
	return out.String(), err.String(), code
}

// If the machine lacks ssh-keygen, the error must name the package to install.
func TestKeyCreateNeedsOpenSSH(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	file := filepath.Join(dir, "id")
	_, stderr, code := pulley(t, "key", "create", file, "--no-passphrase")
	want := "pulley: cannot create key " + file + ": ssh-keygen is not installed\n  install OpenSSH's client: package openssh-client on Debian"
	if code != cli.ExitFailed || !strings.HasPrefix(stderr, want) {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}
