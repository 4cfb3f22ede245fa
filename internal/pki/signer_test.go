package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// kept returns a CA whose keys are in another place than its certificates.
func kept(t *testing.T) (dir, currentKeyFile, nextKeyFile string) {
	t.Helper()
	dir, safe := t.TempDir(), t.TempDir()
	open(t, dir, Options{})
	for _, name := range []string{currentKey, nextKey} {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(safe, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, filepath.Join(safe, currentKey), filepath.Join(safe, nextKey)
}

func self(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// A fleet whose CA key is outside Pulley must be able to issue every certificate.
func TestCommandSigns(t *testing.T) {
	dir, key, next := kept(t)
	ca := open(t, dir, Options{SignCommand: []string{self(t), key}})
	id := client(t, ca, time.Hour)
	if err := trusted(t, ca.Bundle(), id.Leaf(), time.Now()); err != nil {
		t.Error(err)
	}
	if err := ca.Rotate(false); err != nil {
		t.Fatal(err)
	}
	rotated := open(t, dir, Options{SignCommand: []string{self(t), next}})
	if err := trusted(t, rotated.Bundle(), client(t, rotated, time.Hour).Leaf(), time.Now()); err != nil {
		t.Error(err)
	}
	if err := rotated.Retire(); err != nil {
		t.Fatal(err)
	}
	if err := rotated.Rotate(false); err == nil || !strings.Contains(err.Error(), "no next CA") {
		t.Errorf("a rotation to nothing: %v", err)
	}
	for name := range files(t, dir) {
		if strings.HasSuffix(name, ".key") {
			t.Errorf("a key appeared: %s", name)
		}
	}
}

// A command that signs with another key would make untrusted certificates. A hanging or failing command must be
// reported.
func TestWrongSigningCommandIsReported(t *testing.T) {
	dir, key, next := kept(t)
	for what, c := range map[string]struct {
		argv []string
		says string
	}{
		"another key":   {[]string{self(t), next}, "is not a signature of the given digest by the CA"},
		"no such file":  {[]string{self(t), key + "x"}, "no such file"},
		"no program":    {[]string{filepath.Join(dir, "none")}, "no such file"},
		"prints words":  {[]string{"/bin/sh", "-c", "cat >/dev/null; echo hello"}, "(6 bytes) is not a signature"},
		"prints no end": {[]string{"/bin/sh", "-c", "exit 3"}, "exit status 3"},
	} {
		ca := open(t, dir, Options{SignCommand: c.argv})
		if _, err := ca.IssueClient(newKey(t).Public(), nodeName("compute1"), time.Hour); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := OpenCA(t.TempDir(), Options{SignCommand: []string{self(t), key}}); err == nil || !strings.Contains(err.Error(), "into the folder first") {
		t.Errorf("no certificate: %v", err)
	}
}
