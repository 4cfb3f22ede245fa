package takeover

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

// found returns the units that may start the agent, except unmodified units of packages.
func (f *fixture) found() (names []string) {
	for _, u := range f.agentUnits(context.Background(), listing{}) {
		if u.Own || !slices.Contains(packageUnits, u.Name) {
			name := u.Name
			if !u.Own {
				name += " of a package"
			}
			if u.Oneshot {
				name += ", oneshot"
			}
			names = append(names, name)
		}
	}
	return names
}

// A missed unit keeps its agent running beside Pulley. A wrong match leaves a new machine unmanaged.
func TestUnitsThatStartTheAgent(t *testing.T) {
	t.Parallel()
	const (
		etc, local, usr = "etc/systemd/system/", "usr/local/lib/systemd/system/", "usr/lib/systemd/system/"
		start, idles    = "[Service]\nExecStart=/opt/puppetlabs/bin/puppet agent --onetime --no-daemonize\n", "[Service]\nExecStart=/bin/true\n"
		once            = start + "Type=oneshot\n"
	)
	for say, c := range map[string]struct {
		files map[string]string // texts, or "→ " and the target of a link
		want  []string
	}{
		"none":                        {},
		"a timer and its service":     {map[string]string{etc + "run.timer": "[Timer]\nOnCalendar=hourly\n", etc + "run.service": once}, []string{"run.service, oneshot", "run.timer"}},
		"puppet apply":                {map[string]string{etc + "a.service": strings.Replace(once, "agent", "apply", 1), etc + "a.timer": "[Timer]\n"}, []string{"a.service, oneshot", "a.timer"}},
		"a script":                    {map[string]string{etc + "a.service": "[Service]\nExecStart=/bin/sh -c 'papply'\n", "usr/local/bin/papply": "#!/bin/sh\npuppet apply x\n"}, []string{"a.service"}},
		"a timer of another name":     {map[string]string{etc + "nightly.timer": "[Unit]\nUnit=x\n[Timer]\nUnit=a.service\nUnit=b.service\n", usr + "a.service": start, usr + "nightly.service": idles}, []string{"a.service of a package", "nightly.timer"}},
		"the first of two counts":     {map[string]string{etc + "nightly.timer": "[Timer]\nUnit=b.service\nUnit=a.service\n", etc + "a.service": start, usr + "b.service": idles}, []string{"a.service"}},
		"a timer by an alias":         {map[string]string{etc + "nightly.timer": "[Timer]\nUnit=b.service\n", etc + "a.service": start, etc + "b.service": "→ a.service"}, []string{"a.service", "nightly.timer"}},
		"a masked timer":              {map[string]string{etc + "a.timer": "→ /dev/null", usr + "a.timer": "[Timer]\n", etc + "a.service": start}, []string{"a.service"}},
		"continued lines":             {map[string]string{local + "a.service": "[Service]\nType=oneshot\nExecStart=-/usr/bin/env \\\n # not this \\\n  puppet \\\n  agent\nType=simple\n"}, []string{"a.service"}},
		"a comment that goes nowhere": {map[string]string{etc + "a.service": "[Service]\n# before \\\nExecStart=puppet agent\n"}, []string{"a.service"}},
		"by a drop-in":                {map[string]string{usr + "a.service": idles, etc + "a.service.d/a.conf": start}, []string{"a.service"}},
		"by a package's drop-in":      {map[string]string{usr + "a.service": idles, usr + "a.service.d/a.conf": start}, []string{"a.service of a package"}},
		"a drop-in takes it":          {map[string]string{usr + "a.service": start, etc + "a.service.d/a.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"}, nil},
		"by the order of names":       {map[string]string{usr + "a.service": idles, usr + "a.service.d/10.conf": start, etc + "a.service.d/50.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"}, nil},
		"a drop-in that is covered":   {map[string]string{usr + "a.service": idles, usr + "a.service.d/10.conf": start, etc + "a.service.d/10.conf": "→ /dev/null"}, nil},
		"the machine's own covers":    {map[string]string{usr + "a.service": start, etc + "a.service": idles}, nil},
		"masked":                      {map[string]string{usr + "a.service": start, etc + "a.service": "→ /dev/null"}, nil},
		"of another folder":           {map[string]string{"opt/a.service": start, etc + "a.service": "→ /opt/a.service"}, []string{"a.service"}},
		"a link to nothing":           {map[string]string{etc + "a.service": "→ /opt/a.service"}, nil},
		"a template":                  {map[string]string{etc + "a@.service": start}, nil},
		"speaks of it":                {map[string]string{etc + "a.service": "[Unit]\nDescription=puppet agent\nExecStart=puppet agent\n[Service]\n# ExecStart=puppet agent\nExecStartPre=puppet agent\nExecStart=/bin/true\n"}, nil},
		"keeps it off":                {map[string]string{etc + "a.service": "[Service]\nExecStart=/usr/bin/puppet agent --disable 'an image'\n"}, nil},
		"a package's":                 {map[string]string{usr + "puppet.service": start}, nil},
		"a package's, made anew":      {map[string]string{usr + "puppet.service": start, etc + "puppet.service": start}, []string{"puppet.service"}},
		"a package's, with a limit":   {map[string]string{usr + "puppet.service": start, etc + "puppet.service.d/a.conf": "[Service]\nMemoryMax=1G\n"}, nil},
	} {
		f := bare(t)
		f.units(t, c.files)
		if got := f.found(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", say, got, c.want)
		}
	}
}

// units writes texts and links.
func (f *fixture) units(t *testing.T, files map[string]string) {
	t.Helper()
	for under, text := range files {
		to, link := strings.CutPrefix(text, "→ ")
		if !link {
			f.write(t, under, text, 0o644)
			continue
		}
		f.write(t, under, "", 0o644)
		must(t, os.Remove(f.path(under)))
		must(t, os.Symlink(to, f.path(under)))
	}
}

// A unit must be restored exactly: `systemctl enable` creates only the links that the unit itself names.
func TestTakeoverOfUnits(t *testing.T) {
	t.Parallel()
	const (
		etc   = "etc/systemd/system/"
		timer = "[Timer]\nOnCalendar=hourly\n"
		wants = "[Install]\nWantedBy=timers.target\n"
		once  = "[Service]\nType=oneshot\nExecStart=/usr/bin/puppet agent -t\n"
	)
	for say, c := range map[string]struct {
		unit  string
		files map[string]string
	}{
		"a timer":               {"a.timer", map[string]string{etc + "a.timer": timer + wants, etc + "a.service": once, etc + "timers.target.wants/a.timer": "→ /etc/systemd/system/a.timer"}},
		"enabled by hand":       {"a.timer", map[string]string{etc + "a.timer": timer, etc + "a.service": once, etc + "timers.target.wants/a.timer": "→ ../a.timer"}},
		"enabled twice":         {"a.timer", map[string]string{etc + "a.timer": timer + wants, etc + "a.service": once, etc + "timers.target.wants/a.timer": "→ /etc/systemd/system/a.timer", etc + "rescue.target.wants/a.timer": "→ /etc/systemd/system/a.timer"}},
		"of another folder":     {"a.timer", map[string]string{"opt/a.timer": timer + wants, etc + "a.timer": "→ /opt/a.timer", etc + "a.service": once, etc + "timers.target.wants/a.timer": "→ /opt/a.timer"}},
		"with another name":     {"a.service", map[string]string{"usr/lib/systemd/system/a.service": strings.Replace(once, "oneshot", "simple", 1) + "[Install]\nWantedBy=multi-user.target\nAlias=b.service\n", etc + "b.service": "→ /usr/lib/systemd/system/a.service", etc + "multi-user.target.wants/a.service": "→ /usr/lib/systemd/system/a.service"}},
		"a run at each boot":    {"a.service", map[string]string{etc + "a.service": once + "[Install]\nWantedBy=multi-user.target\n", etc + "multi-user.target.wants/a.service": "→ /etc/systemd/system/a.service"}},
		"a package's, from usr": {"a.timer", map[string]string{"usr/lib/systemd/system/a.timer": timer + wants, "usr/lib/systemd/system/a.service": once, etc + "timers.target.wants/a.timer": "→ /usr/lib/systemd/system/a.timer"}},
	} {
		f := newFixture(t)
		f.units(t, c.files)
		before := f.all(t)
		found, err := f.Look(t.Context())
		if err != nil || !slices.ContainsFunc(found.Units, func(u Unit) bool { return u.Name == c.unit && u.Was == enabled }) {
			t.Fatalf("%s: it finds %+v, %v", say, found, err)
		}
		must(t, f.disable(t))
		f.idle(t)
		must(t, f.undo(t))
		if after := f.all(t); after != before {
			t.Errorf("%s: undone,\n%s\nbefore\n%s", say, after, before)
		}
		must(t, f.disable(t))
		must(t, f.remove(t))
		f.idle(t)
		must(t, f.undo(t))
		if after := f.all(t); after != before {
			t.Errorf("%s: removed and undone,\n%s\nbefore\n%s", say, after, before)
		}
	}
}

// If the package was removed meanwhile, nothing is restored, and no dangling link is created.
func TestRemovedUnitStaysRemoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	must(t, f.disable(t))
	must(t, os.Remove(f.path("usr/lib/systemd/system/puppet.service")))
	must(t, f.undo(t))
	if _, err := os.Lstat(f.path("etc/systemd/system/multi-user.target.wants/puppet.service")); !os.IsNotExist(err) {
		t.Errorf("a link is left (%v, want %v)", err, fs.ErrNotExist)
	}
}
