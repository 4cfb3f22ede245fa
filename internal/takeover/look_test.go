package takeover

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bare returns a machine without a puppet agent.
func bare(t *testing.T) *fixture {
	t.Helper()
	root := t.TempDir()
	return &fixture{Machine: &Machine{Root: root, StateDir: root + "/var/lib/pulley", StateDirs: []string{root + "/state"}, Now: nil}}
}

const line = "*/30 * * * * root puppet agent -t\n"

// A missed agent keeps running beside Pulley. A backup file that is mistaken for a crontab leaves a new machine
// unmanaged.
func TestFilesThatCronReads(t *testing.T) {
	t.Parallel()
	for under, want := range map[string]struct{ debian, other bool }{
		"etc/crontab":                        {true, true},
		"etc/cron.d/puppet":                  {true, true},
		"etc/cron.d/puppet.dpkg-old":         {},
		"etc/cron.d/puppet.dpkg-dist":        {},
		"etc/cron.d/puppet.rpmsave":          {},
		"etc/cron.d/puppet~":                 {},
		"etc/cron.d/.puppet":                 {},
		"etc/cron.d/puppet.cron":             {false, true},
		"var/spool/cron/root":                {true, true},
		"var/spool/cron/crontabs/root":       {true, true},
		"var/spool/cron/tabs/root":           {true, true},
		"var/spool/cron/tabs/first.last":     {true, true},
		"etc/cron.hourly/puppet":             {true, true},
		"etc/cron.weekly/puppet.dpkg-old":    {},
		"etc/cron.hourly/not-executable":     {},
		"usr/share/doc/puppet/examples/cron": {},
	} {
		for system, found := range map[string]bool{"etc/debian_version": want.debian, "etc/redhat-release": want.other} {
			f := bare(t)
			f.write(t, system, "1\n", 0o644)
			f.write(t, "state/last_run_report.yaml", "---\n", 0o644)
			text, mode := line, os.FileMode(0o644)
			switch {
			case strings.HasPrefix(under, "var/spool"):
				text = strings.Replace(line, "root ", "", 1)
			case !strings.HasPrefix(under, "etc/cron.d/") && under != "etc/crontab" && filepath.Base(under) != "not-executable":
				text, mode = "#!/bin/sh\nexec puppet agent --onetime\n", 0o755
			}
			f.write(t, under, text, mode)
			got, err := f.Look(t.Context())
			if err != nil || got.InCharge() != found || got.Empty() == found {
				t.Errorf("/%s with /%s: %+v, %v", under, system, got, err)
			}
		}
	}
}

// cron also reads a crontab that is a link. The target must be changed, and the link must stay.
func TestCrontabBehindLink(t *testing.T) {
	t.Parallel()
	for say, to := range map[string]string{"absolute": "/opt/site/crontab.txt", "relative": "../../opt/site/crontab.txt", "a link to a link": "/opt/site/link"} {
		f := newFixture(t)
		f.write(t, "opt/site/crontab.txt", line, 0o600)
		must(t, os.Symlink("crontab.txt", f.path("opt/site/link")))
		for _, name := range []string{"site", "again"} {
			must(t, os.Symlink(to, f.path("etc/cron.d/"+name)))
		}
		must(t, os.Symlink("/opt/nowhere", f.path("etc/cron.d/dangling")))
		must(t, os.Symlink("round", f.path("etc/cron.d/round")))
		before := f.all(t)
		found, err := f.Look(t.Context())
		if err != nil || !slices.ContainsFunc(found.Lines, func(l Line) bool { return l.Text+"\n" == line }) {
			t.Fatalf("%s: it finds %+v, %v", say, found, err)
		}
		must(t, f.disable(t))
		f.idle(t)
		if got := f.read(t, "opt/site/crontab.txt"); got != mark+line {
			t.Errorf("%s: the target is %q", say, got)
		}
		if now, _ := os.Readlink(f.path("etc/cron.d/site")); now != to {
			t.Errorf("%s: the link is %q", say, now)
		}
		must(t, f.remove(t))
		f.idle(t)
		must(t, f.undo(t))
		if after := f.all(t); after != before {
			t.Errorf("%s: afterwards\n%s\nbefore\n%s", say, after, before)
		}
	}
}

// After an operator reports that no agent manages the machine, a first boot must continue.
func TestForget(t *testing.T) {
	f := newFixture(t)
	must(t, f.Find(usual, "ann"))
	must(t, f.Forget())
	if s, err := Load(f.StateDir); err != nil || s.Stage != None {
		t.Errorf("what is known is %+v, %v", s, err)
	}
	must(t, f.Forget())
	must(t, f.disable(t))
	must(t, f.Forget())
	if s, err := Load(f.StateDir); err != nil || s.Stage != Disabled {
		t.Errorf("what says how the old agent was is gone: %+v, %v", s, err)
	}
}
