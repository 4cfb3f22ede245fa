package steps

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
)

// A machine that loses another line of /etc/hosts, or whose block doubles at each boot, loses services that have nothing to do with
// Puppet. The old provisioner deleted every line with "puppet" in it, also puppetdb.
func TestHostsBlockChangesNoOtherLine(t *testing.T) {
	const four = hostsBegin + "\n10.0.0.1\tpuppet puppetmaster\n" + hostsEnd + "\n"
	six := strings.Replace(four, "10.0.0.1", "fd00::1", 1)
	named := strings.Replace(four, "puppetmaster", "puppetmaster eu1.example.com", 1)
	for situation, c := range map[string]struct{ before, address, after, name string }{
		"an empty file":             {"", "10.0.0.1", four, ""},
		"other lines stay":          {"127.0.0.1 localhost\n10.0.0.9 puppetdb # puppet\n", "10.0.0.1", four + "127.0.0.1 localhost\n10.0.0.9 puppetdb # puppet\n", ""},
		"another line has the name": {"10.9.9.9 puppet\n", "10.0.0.1", four + "10.9.9.9 puppet\n", ""},
		"odd lines stay":            {"\t\n#\r\n10.0.0.9\n\xff\x00 x\nno end", "10.0.0.1", four + "\t\n#\r\n10.0.0.9\n\xff\x00 x\nno end", ""},
		"a second start":            {four + "127.0.0.1 localhost\n", "10.0.0.1", four + "127.0.0.1 localhost\n", ""},
		"IPv6":                      {four + "::1 localhost\n", "fd00::1", six + "::1 localhost\n", ""},
		"an owner moved the block":  {"127.0.0.1 localhost\n" + four + "::1 localhost\n", "fd00::1", six + "127.0.0.1 localhost\n::1 localhost\n", ""},
		"the server has a name":     {four + "127.0.0.1 localhost\n", "", "127.0.0.1 localhost\n", ""},
		"a block without its end":   {hostsBegin + "\n10.0.0.1 puppet\n127.0.0.1 localhost\n", "10.0.0.1", four + "10.0.0.1 puppet\n127.0.0.1 localhost\n", ""},
		"two begins":                {hostsBegin + "\n127.0.0.1 localhost\n" + four, "10.0.0.1", four + "127.0.0.1 localhost\n", ""},
		"an end alone":              {"127.0.0.1 localhost\n" + hostsEnd + "\n", "", "127.0.0.1 localhost\n", ""},
		"a name in the certificate": {four + "127.0.0.1 localhost\n", "10.0.0.1", named + "127.0.0.1 localhost\n", "eu1.example.com"},
		"it has an old name":        {four, "10.0.0.1", four, "puppetmaster"},
	} {
		var address netip.Addr
		if c.address != "" {
			address = netip.MustParseAddr(c.address)
		}
		name := cmp.Or(c.name, "puppet")
		got := withServerHosts(c.before, address, name)
		if got != c.after {
			t.Errorf("%s: %q, want %q", situation, got, c.after)
		}
		if again := withServerHosts(got, address, name); again != got {
			t.Errorf("%s: the second time %q", situation, again)
		}
	}
}

// Puppet refuses a file with a section twice, and a setting of the owner must not win over the chosen server or get lost.
func TestAgentSettingsKeepTheRestOfPuppetConf(t *testing.T) {
	ours := map[string]string{"server": "eu1.example", "certname": "web1"}
	const block = confBegin + "\ncertname = web1\nserver = eu1.example\n" + confEnd + "\n"
	const made = "[agent]\n" + block
	for name, c := range map[string]struct{ before, after string }{
		"no file":                {"", made},
		"no section":             {"# mine\n[main]\nserver = old\n", "# mine\n[main]\nserver = old\n" + made},
		"a section":              {"[agent]\nserver = old\nruninterval = 1h\n[main]\nx = y\n", "[agent]\n" + block + confOff + "server = old\nruninterval = 1h\n[main]\nx = y\n"},
		"without a line end":     {"[agent]\nruninterval=1h", "[agent]\n" + block + "runinterval=1h\n"},
		"comments and odd lines": {"[agent]\n#server = x\n = \n\xff\n", "[agent]\n" + block + "#server = x\n = \n\xff\n"},
		"a value back":           {"[agent]\n" + block + confOff + "noop = true\n", "[agent]\n" + block + "noop = true\n"},
	} {
		got := withAgentSettings(c.before, ours)
		if got != c.after {
			t.Errorf("%s: %q, want %q", name, got, c.after)
		}
		if again := withAgentSettings(got, ours); again != got {
			t.Errorf("%s: the second time %q", name, again)
		}
		const later = "noop = true\n"
		if kept := withoutAgentSettings(got + later); strings.HasSuffix(got, confEnd+"\n") && !strings.HasSuffix(kept, "[agent]\n"+later) {
			t.Errorf("%s: a setting of the owner is in another section: %q", name, kept)
		}
		if back := withoutAgentSettings(got); back != c.before && back != c.before+"\n" && !strings.Contains(c.before, confBegin) {
			t.Errorf("%s: without Pulley's settings %q, want %q", name, back, c.before)
		}
	}
}
