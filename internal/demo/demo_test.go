package demo

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/cli"
)

// A killed demo must not leave an etcd's data and a control repository in /tmp.
func TestKeeperRemovesFolderOfDemo(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "pulley-demo")
	orphan := filepath.Join(base, "scratch-left-by-a-killed-keeper")
	if err := os.MkdirAll(filepath.Join(orphan, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	life, demo := io.Pipe()
	read, printed := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- keep(base, life, printed) }()
	line := make([]byte, 4096)
	n, err := read.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSuffix(string(line[:n]), "\n")
	if err := os.MkdirAll(filepath.Join(dir, "etcd", "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	if exists(orphan) {
		t.Error("the folder of an earlier demo is still there")
	}
	demo.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if exists(base) {
		t.Error("the folder is still there")
	}
}

// Two demos at a time must not remove each other's data.
func TestKeeperKeepsFolderOfAnotherDemo(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "pulley-demo")
	other, err := newScratch(base)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var dir bytes.Buffer
	if err := keep(base, strings.NewReader(""), &dir); err != nil {
		t.Fatal(err)
	}
	if exists(strings.TrimSpace(dir.String())) || !exists(other.Dir) {
		t.Errorf("the keeper kept its own folder, or removed the folder of the other demo: %s", dir.String())
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

// Long messages of Puppet must not break the layout.
func TestScreenKeepsLinesWithinTerminal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    string
		width int
		cut   string
		wrap  []string
	}{
		{"", 10, "", []string{""}},
		{"short", 10, "short", []string{"short"}},
		{"exactly ten", 11, "exactly ten", []string{"exactly ten"}},
		{"naïve café olé", 8, "naïve c…", []string{"naïve", "café olé"}},
		{"a\x1b[2Jb", 20, "a [2Jb", []string{"a [2Jb"}},
		{"unbreakable-word after", 6, "unbre…", []string{"unbreakable-word", "after"}},
		{"x", 0, "x", []string{"x"}},
	} {
		if got := cut(c.in, c.width); got != c.cut {
			t.Errorf("cut(%q, %d) is %q, not %q", c.in, c.width, got, c.cut)
		}
		if got := wrap(c.in, c.width); !slices.Equal(got, c.wrap) {
			t.Errorf("wrap(%q, %d) is %q, not %q", c.in, c.width, got, c.wrap)
		}
	}
}

// A reader who types a shown command must get the same result.
func TestPromptIsShellSyntax(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(cli.Env{Stdout: &out, Getenv: func(string) string { return "" }, Now: time.Now}, false)
	s.prompt("$", "pulley", "data", "set", "key::a", "it's noon", "", "$HOME")
	if want := "$ pulley data set key::a 'it'\\''s noon' '' '$HOME'\n"; out.String() != want {
		t.Errorf("shown as %q, not %q", out.String(), want)
	}
}

// Logs of CI must not contain control characters.
func TestProgressIsForTerminals(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(cli.Env{Stdout: &out, Getenv: func(string) string { return "" }, Now: time.Now}, false)
	err := s.during("all are there", func(detail func(string)) error {
		detail("one is missing")
		return nil
	})
	if want := "  ✓ all are there (0.0s)\n"; err != nil || out.String() != want {
		t.Errorf("printed %q, want %q: %v", out.String(), want, err)
	}
}
