package takeover

import (
	"os"
	"slices"
	"testing"
)

// An agent that a timer starts goes on beside Pulley if it is missed; a unit that only speaks of Puppet is nobody's to switch off.
func TestUnitsThatStartTheAgent(t *testing.T) {
	t.Parallel()
	const runs = "[Service]\nType=oneshot\nExecStart=/opt/puppetlabs/bin/puppet agent --onetime --no-daemonize\n"
	for say, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"none":                    {},
		"a timer and its service": {map[string]string{"etc/systemd/system/puppet-run.timer": "[Timer]\nOnCalendar=hourly\n", "etc/systemd/system/puppet-run.service": runs}, []string{"puppet-run.timer"}},
		"a timer of another name": {map[string]string{
			"etc/systemd/system/nightly.timer": "[Timer]\nUnit=config.service\n", "usr/lib/systemd/system/config.service": runs, "usr/lib/systemd/system/nightly.service": runs,
		}, []string{"nightly.service", "nightly.timer"}},
		"a service":                         {map[string]string{"usr/local/lib/systemd/system/config.service": "[Service]\nExecStart=-/usr/bin/env \\\n  puppet \\\n  agent\n"}, []string{"config.service"}},
		"one by a drop-in":                  {map[string]string{"lib/systemd/system/config.service": "[Service]\nExecStart=/bin/true\n", "etc/systemd/system/config.service.d/a.conf": runs}, []string{"config.service"}},
		"one that a drop-in took":           {map[string]string{"lib/systemd/system/config.service": runs, "etc/systemd/system/config.service.d/a.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"}, nil},
		"one that the machine's own covers": {map[string]string{"lib/systemd/system/config.service": runs, "etc/systemd/system/config.service": "[Service]\nExecStart=/bin/true\n"}, nil},
		"a template":                        {map[string]string{"etc/systemd/system/config@.service": runs}, nil},
		"one that speaks of it":             {map[string]string{"etc/systemd/system/a.service": "[Unit]\nDescription=puppet agent\n[Service]\n# ExecStart=puppet agent\nExecStartPre=puppet agent --disable\nExecStart=/bin/true\n"}, nil},
		"a package's":                       {map[string]string{"lib/systemd/system/puppet.service": runs}, nil},
	} {
		f := bare(t)
		for under, text := range c.files {
			f.write(t, under, text, 0o644)
		}
		if got := f.unitNames()[len(packageUnits):]; !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", say, got, c.want)
		}
	}
	f := bare(t)
	f.write(t, "opt/site/config.service", runs, 0o644)
	f.write(t, "etc/systemd/system/real.service", runs, 0o644)
	f.write(t, "lib/systemd/system/masked.service", runs, 0o644)
	for name, to := range map[string]string{"config": "/opt/site/config.service", "alias": "real.service", "masked": "/dev/null", "dangling": "/nowhere/dangling.service"} {
		must(t, os.Symlink(to, f.path("etc/systemd/system/"+name+".service")))
	}
	if got := f.unitNames()[len(packageUnits):]; !slices.Equal(got, []string{"config.service", "real.service"}) {
		t.Errorf("of links: %q", got)
	}
}

// What a timer was is brought back, as all else.
func TestTakingOverFromATimer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, "etc/systemd/system/puppet-run.timer", "[Timer]\nOnCalendar=hourly\n[Install]\nWantedBy=timers.target\n", 0o644)
	f.write(t, "etc/systemd/system/puppet-run.service", "[Service]\nExecStart=/usr/bin/puppet agent -t\n", 0o644)
	must(t, os.MkdirAll(f.path("etc/systemd/system/timers.target.wants"), 0o755))
	must(t, os.Symlink("/etc/systemd/system/puppet-run.timer", f.path("etc/systemd/system/timers.target.wants/puppet-run.timer")))
	before := f.all(t)
	found, err := f.Look(t.Context())
	if err != nil || !slices.ContainsFunc(found.Units, func(u Unit) bool { return u.Name == "puppet-run.timer" && u.Was == enabled }) {
		t.Fatalf("it finds %+v, %v", found, err)
	}
	must(t, f.disable(t))
	f.idle(t)
	if u, err := f.unit(t.Context(), "puppet-run.timer"); err != nil || u == nil || u.starts() {
		t.Errorf("the timer is %+v, %v", u, err)
	}
	must(t, f.remove(t))
	f.idle(t)
	must(t, f.undo(t))
	if after := f.all(t); after != before {
		t.Errorf("afterwards\n%s\nbefore\n%s", after, before)
	}
}
