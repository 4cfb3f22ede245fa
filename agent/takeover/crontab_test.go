package takeover

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A missed line keeps running the old agent. A wrong match stops another job, for example a backup.
func TestLinesThatStartPuppetAgent(t *testing.T) {
	for line, want := range map[string]struct{ system, own bool }{
		"*/30 * * * * root puppet agent -t":                                                                {true, true},
		"*/30 * * * * root /opt/puppetlabs/bin/puppet agent --onetime":                                     {true, true},
		"0,30 * * * * root  sleep 5 && puppet  agent":                                                      {true, true},
		"@hourly root /bin/sh -c 'puppet agent -t'":                                                        {true, true},
		"*/30 * * * * puppet agent -t":                                                                     {false, true}, // here, puppet is the user
		"# */30 * * * * root puppet agent -t":                                                              {},
		"# pulley-takeover: */30 * * * * root puppet agent -t":                                             {},
		"MAILTO=puppet agent":                                                                              {},
		"* * * * * root puppet apply /etc/site.pp":                                                         {true, true},
		"@reboot root cd /etc/puppet && git pull -q && /opt/puppetlabs/bin/puppet apply manifests/site.pp": {true, true},
		"@daily root PUPPET=/usr/bin/puppet; \"$PUPPET\" apply x.pp":                                       {true, true},
		"@daily root ${puppet_bin} agent -t":                                                               {true, true},
		"@daily root echo puppet agent -t":                                                                 {false, true},
		"@daily root test -e /x && logger -t x 'puppet apply is done'":                                     {},
		"@daily root pgrep -f 'puppet agent' || puppet agent":                                              {true, true},
		"@daily root python3 -c 'call([\"puppet\", \"apply\"])'":                                           {true, true},
		"* * * * * root puppet agents":                                                                     {},
		"* * * * * root mypuppet agent":                                                                    {},
		"17 * * * * root /usr/local/bin/pulley-agent run":                                                  {},
		"": {},
		"@reboot root puppet agent --disable 'an image'":                         {},
		"@reboot root puppet agent --disable x; puppet agent -t":                 {true, true},
		"@reboot root puppet agent --version >/v && puppet agent":                {true, true},
		"@reboot root (puppet agent)  # not --version":                           {true, true},
		"@daily root puppet agent --enable":                                      {true, true},
		"* * * * * root test -e /x || (puppet agent)":                            {true, true},
		"5 4 * * sun root [ -x /usr/bin/puppet ] && /usr/bin/puppet agent; true": {true, true},
	} {
		for _, end := range []string{"", "\n", "\r\n"} {
			if starts(line+end, true) != want.system || starts(line+end, false) != want.own {
				t.Errorf("%q: %t in /etc, %t of a user", line+end, starts(line+end, true), starts(line+end, false))
			}
		}
	}
}

// A restored crontab must be equal to the original, byte by byte.
func TestCrontabsAreRestored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{"*/5 * * * * root puppet agent -t", "@reboot ann puppet agent", "# a word", "X=1", "", "1 1 1 1 1 root true", " # pulley", "\r"})
		text := strings.Join(rapid.SliceOf(line).Draw(t, "lines"), "\n") + rapid.SampledFrom([]string{"", "\n", "\n\n"}).Draw(t, "end")
		f := File{Path: "etc/cron.d/x", Before: text, Disabled: commented(text, true)}
		if len(agentLines(f.Disabled, true)) > 0 {
			t.Fatalf("still started by\n%s", f.Disabled)
		}
		if got := uncommented(f.Disabled); got != text {
			t.Fatalf("it was\n%q and becomes\n%q", text, got)
		}
		gone := dropped(f.Disabled)
		f.Removed = &gone
		for _, now := range []string{text, f.Disabled, gone} {
			if got := f.restored(now); got != text {
				t.Fatalf("from %q it becomes\n%q, was\n%q", now, got, text)
			}
		}
		// Edited since: new lines stay, and the agent's lines exist at least as often as before.
		for _, now := range []string{f.Disabled + "9 9 * * * root backup\n", gone + "\n9 9 * * * root backup\n"} {
			got := f.restored(now)
			if !strings.Contains(got, "root backup") || strings.Contains(got, mark) {
				t.Fatalf("from %q it becomes\n%q", now, got)
			}
			for _, l := range agentLines(text, true) {
				if !strings.Contains(got, l) {
					t.Fatalf("%q is missing in\n%q", l, got)
				}
			}
		}
	})
}

// agentLines returns the lines that start Puppet.
func agentLines(text string, system bool) (found []string) {
	for line := range strings.Lines(text) {
		if starts(line, system) {
			found = append(found, strings.TrimRight(line, "\r\n"))
		}
	}
	return found
}
