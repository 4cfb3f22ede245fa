package main

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

func TestKeeperRemovesWhatTheDemoLeaves(t *testing.T) {
	// A demo that was killed would leave an etcd's data and a control repository in /tmp.
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
		t.Error("what an earlier demo left is still there")
	}
	demo.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if exists(base) {
		t.Error("the folder is still there")
	}
}

func TestKeeperLeavesAnotherDemoAlone(t *testing.T) {
	// Two demos at a time would remove each other's data.
	base := filepath.Join(t.TempDir(), "pulley-demo")
	other, err := newDemoScratch(base)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var dir bytes.Buffer
	if err := keep(base, strings.NewReader(""), &dir); err != nil {
		t.Fatal(err)
	}
	if exists(strings.TrimSpace(dir.String())) || !exists(other.Dir) {
		t.Errorf("the keeper left its own folder, or removed the other's: %s", dir.String())
	}
}

func TestDemoLeavesOtherFleetsAlone(t *testing.T) {
	// A demo in a shell that knows a real fleet would publish to it.
	env := cli.Env{Getenv: func(name string) string {
		return map[string]string{"HOME": "/h", "PULLEY_PREFIX": "/p", "ETCDCTL_CACERT": "c"}[name]
	}}
	if got := (demoOptions{options: &options{env: env}}).environ(); !slices.Equal(got, []string{"PATH=:/opt/puppetlabs/bin", "HOME=/h"}) {
		t.Errorf("its commands get %q", got)
	}
	var stderr bytes.Buffer
	env.Stderr = &stderr
	if code := Main(t.Context(), env, []string{"demo", "--endpoints", "http://10.0.0.1:2379"}); code != cli.ExitUsage {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
}

func TestScreenKeepsLinesWithinTheTerminal(t *testing.T) {
	// Puppet's long messages would tear the story apart.
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

func TestPromptsCanBeCopied(t *testing.T) {
	// A reader who types what the demo shows would get something else.
	var out bytes.Buffer
	s := newScreen(cli.Env{Stdout: &out, Getenv: func(string) string { return "" }, Now: time.Now}, false)
	s.prompt("$", "pulley", "data", "set", "key::a", "it's noon", "", "$HOME")
	if want := "$ pulley data set key::a 'it'\\''s noon' '' '$HOME'\n"; out.String() != want {
		t.Errorf("shown as %q, not %q", out.String(), want)
	}
}

func TestProgressWithoutATerminalIsPlainLines(t *testing.T) {
	// Logs of CI would be full of control characters, or silent for a minute.
	now := time.Unix(0, 0)
	var out bytes.Buffer
	s := newScreen(cli.Env{Stdout: &out, Getenv: func(string) string { return "" }, Now: func() time.Time { return now }}, false)
	p := &progress{screen: s, what: "all are there", began: now, shown: now}
	p.detail("one is missing")
	for range 110 {
		now = now.Add(100 * time.Millisecond)
		p.frame(0)
	}
	if want := "  … 5s all are there: one is missing\n  … 10s all are there: one is missing\n"; out.String() != want {
		t.Errorf("printed %q, not %q", out.String(), want)
	}
}
