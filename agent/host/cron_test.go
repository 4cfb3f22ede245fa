package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cron starts nothing for an account that PAM refuses, and says so only in its own log: the node would be silent from its first day.
func TestCronRefusesExpiredRoot(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 5, 0, 0, 0, time.UTC) // day 20784
	for shadow, want := range map[string]string{
		"root:*:20000:0:99999:7:::":            "",
		"root:*:20000:0:99999:7:::\n":          "",
		"root:!:20000::::::":                   "",
		"root:*:20780:0:30:7:::":               "",
		"root:*:20754:0:30:7:::":               "", // the last day
		"root:*:20753:0:30:7:::":               "the password of root expired on 2026-11-26",
		"root:*:18262:0:30:7:::":               "the password of root expired on 2020-01-31",
		"root:*:0:0:99999:7:::":                "must be changed first",
		"root:*:20000:0:99999:7::20784:":       "the account of root expired on 2026-11-27",
		"root:*:20000:0:99999:7::20785:":       "",
		"root:*:20900:0:30:7:::":               "", // changed in the future
		"bin:*:0:0:30:7:::\nroot:*::0:30:7:::": "",
		"root":                                 "",
	} {
		root := t.TempDir()
		write(t, filepath.Join(root, "etc/shadow"), shadow)
		if err := CronRefuses(root, now); err != nil {
			t.Errorf("%q without PAM: %v", shadow, err)
		}
		write(t, filepath.Join(root, "etc/pam.d/crond"), "account include password-auth\n")
		err := CronRefuses(root, now)
		if got := err != nil; got != (want != "") || got && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", shadow, err, want)
		}
	}
}

// A schedule that exists and does not run must be named; one that something else replaces must not.
func TestUnscheduled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	crontab := filepath.Join(root, "etc/cron.d/pulley-agent")
	if err := Unscheduled(root, crontab, time.Now()); err != nil {
		t.Errorf("without a crontab: %v", err)
	}
	write(t, crontab, "*/5 * * * * root /usr/local/bin/pulley-agent run --splay\n")
	if err := Unscheduled(root, crontab, time.Now()); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(crontab, 0o664); err != nil {
		t.Fatal(err)
	}
	if err := Unscheduled(root, crontab, time.Now()); err == nil || !strings.Contains(err.Error(), "cron does not read "+crontab) {
		t.Errorf("a crontab that cron ignores: %v", err)
	}
	if err := errors.Join(os.Remove(crontab), os.Symlink("/absent/crontab", crontab)); err != nil {
		t.Fatal(err)
	}
	if err := Unscheduled(root, crontab, time.Now()); err == nil || !strings.Contains(err.Error(), "it is a link to a file that does not exist") {
		t.Errorf("a link to nothing: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
