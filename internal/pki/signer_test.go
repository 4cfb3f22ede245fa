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
func TestCommandThatIsWrong(t *testing.T) {
	dir, key, next := kept(t)
	for what, c := range map[string]struct {
		argv []string
		says string
	}{
		"another key":   {[]string{self(t), next}, "no signature of the CA"},
		"no such file":  {[]string{self(t), key + "x"}, "no such file"},
		"no program":    {[]string{filepath.Join(dir, "none")}, "no such file"},
		"prints words":  {[]string{"/bin/sh", "-c", "cat >/dev/null; echo hello"}, "(6 bytes) is no signature"},
		"prints no end": {[]string{"/bin/sh", "-c", "exit 3"}, "exit status 3"},
	} {
		ca := open(t, dir, Options{SignCommand: c.argv})
		if _, err := ca.IssueClient(newKey(t).Public(), nodeName("compute1"), time.Hour); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := OpenCA(t.TempDir(), Options{SignCommand: []string{self(t), key}}); err == nil || !strings.Contains(err.Error(), "has to be there first") {
		t.Errorf("no certificate: %v", err)
	}
}

// Keys in an outside file: the first is the current CA's, the second the next one's.
func TestKeyFile(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "ca.key")
	text := ""
	more := func() {
		b, err := encodeKey(newKey(t))
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
		write(t, file, text)
	}
	if _, err := OpenCA(dir, Options{KeyFile: file}); err == nil || !strings.Contains(err.Error(), "no key file") {
		t.Errorf("no file: %v", err)
	}
	more()
	ca := open(t, dir, Options{KeyFile: file})
	first := client(t, ca, time.Hour)
	if n := len(ca.Fingerprints()); n != 1 {
		t.Errorf("%d pins with one key", n)
	}
	if err := ca.Rotate(false); err == nil || !strings.Contains(err.Error(), "no next CA") {
		t.Errorf("a rotation to nothing: %v", err)
	}
	more()
	ca = open(t, dir, Options{KeyFile: file})
	if n := len(ca.Fingerprints()); n != 2 {
		t.Fatalf("%d pins with two keys", n)
	}
	if err := ca.Rotate(false); err != nil {
		t.Fatal(err)
	}
	second := client(t, ca, time.Hour)
	for _, id := range []Identity{first, second} {
		if err := trusted(t, ca.Bundle(), id.Leaf(), time.Now()); err != nil {
			t.Error(err)
		}
	}
	if first.Leaf().CheckSignatureFrom(ca.Authorities()[1].Certificate) == nil || second.Leaf().CheckSignatureFrom(ca.Authorities()[1].Certificate) != nil {
		t.Error("the rotation did not change who signs")
	}
	if err := ca.Retire(); err != nil {
		t.Fatal(err)
	}
	_, keys, err := parsePEM([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		var b []byte
		for _, i := range order {
			one, err := encodeKey(keys[i])
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, one...)
		}
		write(t, file, string(b))
		if n := len(open(t, dir, Options{KeyFile: file}).Fingerprints()); n != 1 {
			t.Error("a key that was retired is trusted again")
		}
	}
	if all := files(t, dir); all[currentKey]+all[nextKey] != "" {
		t.Error("a key came into the folder")
	}
	if _, err := OpenCA(dir, Options{KeyFile: file, SignCommand: []string{"x"}}); err == nil {
		t.Error("both a file and a command")
	}
}
