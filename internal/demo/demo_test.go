package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pulley/internal/cli"
)

// A demo that ends must not leave an etcd's data and a control repository in /tmp.
func TestFolderOfDemoIsRemoved(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	dir, remove, err := makeFolder([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp})
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(dir) != tmp {
		t.Errorf("the folder is %s", dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, "etcd", "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the folder still exists")
	}
}

// A demo in a shell with the settings of a real fleet must not publish to it.
func TestDemoIgnoresSettingsOfOtherFleet(t *testing.T) {
	t.Parallel()
	env := cli.Env{Getenv: func(name string) string {
		return map[string]string{"HOME": "/h", "PULLEY_PREFIX": "/p", "ETCDCTL_CACERT": "c"}[name]
	}}
	if got := environ(env); !slices.Equal(got, []string{"PATH=:/opt/puppetlabs/bin", "HOME=/h"}) {
		t.Errorf("its commands get %q", got)
	}
}

// A progress line that wraps could not be overwritten.
func TestProgressFitsTerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "short": "short", "naïve c…": "naïve c…", "naïve café": "naïve c…"} {
		if got := cut(in, 8); got != want {
			t.Errorf("%q is cut to %q, not %q", in, got, want)
		}
	}
}

// A reader who types a shown command must get the same result.
func TestPromptIsShellSyntax(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(cli.Env{Stdout: &out, Getenv: func(string) string { return "" }, Now: time.Now})
	s.prompt("$", "pulley", "data", "set", "key::a", "it's noon", "", "$HOME")
	if want := "$ pulley data set key::a 'it'\\''s noon' '' '$HOME'\n"; out.String() != want {
		t.Errorf("shown as %q, not %q", out.String(), want)
	}
}

// Logs of CI must not contain control characters.
func TestProgressIsForTerminals(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(cli.Env{Stdout: &out, Getenv: func(string) string { return "" }, Now: time.Now})
	err := s.during("all are up", func(detail func(string)) error {
		detail("one is missing")
		return nil
	})
	if want := "  ✓ all are up (0.0s)\n"; err != nil || out.String() != want {
		t.Errorf("printed %q, want %q: %v", out.String(), want, err)
	}
}
