package takeover

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulley/internal/puppet"
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

// Two managers fight over a machine when Puppet starts by a script that nobody looks into.
func TestScriptsThatStartPuppet(t *testing.T) {
	t.Parallel()
	const apply, agent = "#!/bin/sh\ncd /etc/puppet && git pull -q\nexec puppet apply manifests\n", "#!/bin/sh\npuppet agent -t\n"
	for say, c := range map[string]struct {
		files map[string]string
		want  []Script
	}{
		"by its path":        {map[string]string{"etc/cron.d/x": "@daily root /opt/site/run -q\n", "opt/site/run": apply}, []Script{{"opt/site/run", puppet.ByApply, "etc/cron.d/x"}}},
		"by its name":        {map[string]string{"etc/crontab": "@daily root nice papply\n", "usr/local/bin/papply": apply}, []Script{{"usr/local/bin/papply", puppet.ByApply, "etc/crontab"}}},
		"of a user":          {map[string]string{"var/spool/cron/crontabs/root": "@daily papply\n", "usr/local/sbin/papply": agent}, []Script{{"usr/local/sbin/papply", puppet.ByAgent, "var/spool/cron/crontabs/root"}}},
		"in its folder":      {map[string]string{"etc/crontab": "@daily root cd /srv/p && ./run.sh\n", "srv/p/run.sh": apply}, []Script{{"srv/p/run.sh", puppet.ByApply, "etc/crontab"}}},
		"in two steps":       {map[string]string{"etc/crontab": "@daily root /opt/a\n", "opt/a": "#!/bin/bash\n. /opt/b\npapply\n", "usr/local/bin/papply": apply}, []Script{{"usr/local/bin/papply", puppet.ByApply, "etc/crontab"}}},
		"in a circle":        {map[string]string{"etc/crontab": "@daily root /opt/a\n", "opt/a": "#!/bin/bash\n/opt/b\n", "opt/b": "#!/bin/sh\n/opt/a\n"}, nil},
		"by a hook of git":   {map[string]string{"etc/crontab": "@daily root git -C /etc/puppet pull -q\n", "etc/puppet/.git/hooks/post-merge": apply}, []Script{{"etc/puppet/.git/hooks/post-merge", puppet.ByApply, "etc/crontab"}}},
		"at boot":            {map[string]string{"etc/rc.local": apply}, []Script{{"etc/rc.local", puppet.ByApply, ""}}},
		"by a script there":  {map[string]string{"etc/cron.hourly/x": "#!/bin/sh\npapply\n", "usr/local/bin/papply": apply}, []Script{{"etc/cron.hourly/x", puppet.ByApply, ""}}},
		"by anacron":         {map[string]string{"etc/anacrontab": "1 5 puppet /usr/bin/puppet agent -t\n"}, []Script{{"etc/anacrontab", puppet.ByAgent, ""}}},
		"speaks of it":       {map[string]string{"etc/cron.daily/x": "#!/bin/sh\n# puppet agent\necho puppet apply\nlogger \"puppet agent\"\n"}, nil},
		"a program":          {map[string]string{"etc/crontab": "@daily root /opt/x\n", "opt/x": "\x7fELF\x00 puppet agent -t\n"}, nil},
		"Puppet itself":      {map[string]string{"etc/crontab": "@daily root puppet module list\n", "usr/bin/puppet": agent}, nil},
		"a script of Pulley": {map[string]string{"etc/crontab": "@reboot root sh /var/lib/pulley/first-boot.sh go\n", "var/lib/pulley/first-boot.sh": agent}, nil},
	} {
		f := bare(t)
		f.write(t, "etc/debian_version", "12\n", 0o644)
		for under, text := range c.files {
			f.write(t, under, text, 0o755)
		}
		got, err := f.Look(t.Context())
		if err != nil || !slices.Equal(got.Scripts, c.want) || len(got.Lines) > 0 {
			t.Errorf("%s: %+v, %v", say, got, err)
		}
	}
}

// A log that contains "puppet agent" starts nothing. A file without #! is a script only where a shell reads it.
func TestFilesWithoutInterpreter(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]bool{
		"/usr/bin/rotate /srv/x":           false,
		"/usr/bin/report >> /srv/x 2>&1":   false,
		"cd /srv && cat x":                 false,
		"cat /srv/x; /bin/bash -eu /srv/x": true,
		"sh /srv/x":                        true,
		". /srv/x":                         true,
		"cd /srv && source ./x":            true,
	} {
		f := bare(t)
		f.write(t, "etc/crontab", "@daily root "+command+"\n", 0o644)
		f.write(t, "srv/x", "puppet agent -t\n", 0o644)
		if got, err := f.Look(t.Context()); err != nil || len(got.Scripts) > 0 != want {
			t.Errorf("%s: %+v, %v", command, got.Scripts, err)
		}
	}
}

// A look that ended early knows nothing: its caller keeps what it knew.
func TestLookEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := bare(t)
	f.write(t, "etc/crontab", "@daily root /opt/x\n", 0o644)
	f.write(t, "opt/x", "#!/bin/sh\npuppet agent -t\n", 0o755)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := f.Look(ctx); !errors.Is(err, context.Canceled) || !got.Empty() {
		t.Errorf("%+v, %v", got, err)
	}
}

// A node on which a disabled agent is installed must not be reported as one with two managers, and one with puppet apply must.
func TestRivals(t *testing.T) {
	t.Parallel()
	all := Findings{
		Units: []Unit{{Name: "puppet.service", Was: enabled}, {Name: "own.timer", Was: enabled, Own: true, Starts: puppet.ByApply}},
		Lines: []Line{{"etc/cron.d/a", line}, {"etc/cron.d/b", "@daily root puppet apply x.pp"}, {"etc/cron.d/b", "@hourly root puppet apply y.pp"}},
	}
	if got, want := all.Rivals(), []string{"own.timer", "/etc/cron.d/a", "/etc/cron.d/b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	all.Locked, all.Ran = true, true
	if got, want := all.Rivals(), []string{"own.timer", "/etc/cron.d/b"}; !slices.Equal(got, want) {
		t.Errorf("locked: %q, want %q", got, want)
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
