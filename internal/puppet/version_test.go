package puppet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/puppet"
)

// A release whose script works with r10k must show the same version here.
func TestConfigVersionIsReadAsPuppetDoes(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string]string{
		"":                                  "",
		"modulepath = site\n":               "",
		"config_version = /bin/echo a  b\n": "a b",
		"config_version='scripts/v.sh $environmentpath $environment'\r\n":  "v {path} dev",
		"\tconfig_version = \"$environmentpath/dev/scripts/v.sh x\"  \n":   "v x",
		"[agent]\nconfig_version = /bin/false\n":                           "",
		"[agent]\n[main]\nconfig_version = /bin/echo main\n":               "main",
		"config_version = /bin/echo one\nconfig_version = /bin/echo two\n": "one",
		"config_version = /bin/echo out; echo err >&2\n":                   "out",
		"config_version = /bin/pwd\n":                                      "{tree}",
	} {
		dir := environment(t, conf)
		tree, err := filepath.EvalSymlinks(dir)
		if err != nil {
			t.Fatal(err)
		}
		want = strings.NewReplacer("{path}", filepath.Dir(dir), "{tree}", tree).Replace(want)
		if got, err := puppet.ConfigVersion(t.Context(), tree, dir); got.Text != want || err != nil {
			t.Errorf("%q: %q %v, want %q", conf, got.Text, err, want)
		}
	}
}

// A version that can't be had must not stop a run, and its cause must be named once.
func TestConfigVersionNamesItsFailure(t *testing.T) {
	t.Parallel()
	for conf, cause := range map[string]string{
		"config_version = /bin/false\n":                             "exit status 1",
		"config_version = /bin/echo because >&2; exit 3\n":          "exit status 3: because",
		"config_version = scripts/none.sh\n":                        ": scripts/none.sh: not found",
		"config_version = /bin/true\n":                              "prints nothing",
		"config_version = $confdir/v\n":                             "no value for $confdir",
		"config_version = /bin/echo " + strings.Repeat("x", 70<<10): "cannot read environment.conf",
	} {
		dir := environment(t, conf)
		got, err := puppet.ConfigVersion(t.Context(), dir, dir)
		if err == nil || got.Text != "" || !strings.Contains(err.Error(), cause) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %q %v, want %q", conf, got.Text, err, cause)
		}
	}
}

// Several lines, or codes for a terminal, would reach reports and screens, and no one would see at publish what is shown.
func TestOddOutputOfConfigVersionIsNamed(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][2]string{
		"echo 1.0":                           {"1.0", ""},
		"echo; echo ' 1.0 '":                 {"1.0", ""},
		"echo 1.0; echo; echo warning":       {"1.0 warning", "3 lines"},
		`printf '\033[31m1.0\033[0m\t.'`:     {"[31m1.0 [0m .", "control characters, several spaces or bytes that are not UTF-8"},
		"head -c 300 /dev/zero | tr '\\0' x": {strings.Repeat("x", 197) + "…", "more than 200 bytes"},
		`printf 'caf\351'`:                   {"caf?", "control characters, several spaces or bytes that are not UTF-8"},
	} {
		dir := environment(t, "config_version = scripts/odd.sh\n")
		write(t, filepath.Join(dir, "scripts/odd.sh"), "#!/bin/sh\n"+script+"\n")
		if err := os.Chmod(filepath.Join(dir, "scripts/odd.sh"), 0o755); err != nil {
			t.Fatal(err)
		}
		got, err := puppet.ConfigVersion(t.Context(), dir, dir)
		if err != nil || got.Text != want[0] || got.Odd() != want[1] {
			t.Errorf("%s: %q %q %v, want %q", script, got.Text, got.Odd(), err, want)
		}
	}
}

// A script may neither change the release that is verified, nor hold up a run, nor leave a process behind.
func TestConfigVersionIsConfined(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "alive")
	dir := environment(t, "config_version = scripts/w.sh "+mark+"\n")
	write(t, filepath.Join(dir, "scripts/w.sh"), "#!/bin/sh\necho x >scripts/new; rm -f scripts/v.sh\n"+
		"(setsid sh -c 'sleep 0.2; touch '$1) >/dev/null 2>&1 &\nsetsid sleep 60 &\necho done\n")
	if err := os.Chmod(filepath.Join(dir, "scripts/w.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	got, err := puppet.ConfigVersion(t.Context(), dir, dir)
	if got.Text != "done" || err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("%q %v after %s", got.Text, err, time.Since(began))
	}
	if os.Geteuid() != 0 {
		return // the rest needs namespaces, which an agent may create as root
	}
	if _, err := os.Stat(filepath.Join(dir, "scripts/new")); err == nil {
		t.Error("the script wrote into the release")
	}
	if _, err := os.Stat(filepath.Join(dir, "scripts/v.sh")); err != nil {
		t.Errorf("the script removed a file of the release: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "here"), nil, 0o644); err != nil {
		t.Errorf("the release stays read-only for the agent: %v", err)
	}
	eventually(t, "the process would have written by now", func() bool { return time.Since(began) > 700*time.Millisecond })
	if _, err := os.Stat(mark); err == nil {
		t.Error("a process of the script lives on")
	}
}

// environment creates an environment `dev` with a script and returns its folder.
func environment(t *testing.T, conf string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dev")
	write(t, filepath.Join(dir, "environment.conf"), conf)
	write(t, filepath.Join(dir, "scripts", "v.sh"), "#!/bin/sh\necho v \"$@\"\n")
	if err := os.Chmod(filepath.Join(dir, "scripts", "v.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
