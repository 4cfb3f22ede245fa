package steps

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pulley/internal/pattern"
)

// The marks around the lines of Pulley in /etc/hosts and puppet.conf. Everything outside them belongs to the machine's owner.
const (
	hostsBegin = "# Puppet server, by pulley-agent: begin"
	hostsEnd   = "# Puppet server, by pulley-agent: end"
	confBegin  = "# settings by pulley-agent: begin"
	confEnd    = "# settings by pulley-agent: end"
	confOff    = "# replaced by pulley-agent: "
)

// withServerHosts returns the text of /etc/hosts with the names puppet and puppetmaster, and the name in the server's certificate,
// for a server's address, in a block at the top: resolvers take the first line of a name. The zero address removes the block. No
// other line changes.
func withServerHosts(text string, server netip.Addr, name string) string {
	rest := withoutBlock(text, hostsBegin, hostsEnd)
	if !server.IsValid() {
		return rest
	}
	names := "puppet puppetmaster"
	if name != "puppet" && name != "puppetmaster" {
		names += " " + name
	}
	return hostsBegin + "\n" + server.String() + "\t" + names + "\n" + hostsEnd + "\n" + rest
}

// withoutBlock removes the lines between two marks. Of a block without its other mark, only the mark is removed.
func withoutBlock(text, begin, end string) string {
	lines := slices.Collect(strings.Lines(text))
	is := func(i int, mark string) bool { return strings.TrimSpace(lines[i]) == mark }
	var out strings.Builder
	for i := 0; i < len(lines); i++ {
		if is(i, begin) {
			close := i + 1
			for close < len(lines) && !is(close, end) && !is(close, begin) {
				close++
			}
			if close < len(lines) && is(close, end) {
				i = close
			}
			continue
		}
		if !is(i, end) {
			out.WriteString(lines[i])
		}
	}
	return out.String()
}

// The lines of puppet.conf, see puppet/settings/ini_file.rb.
var (
	confSection = pattern.Lazy(`^\s*\[\s*(\w+)\s*\]\s*$`)
	confSetting = pattern.Lazy(`^\s*(\w+)\s*=`)
)

// withAgentSettings returns the text of puppet.conf with settings in a block at the begin of section [agent]. Other values of these
// settings in that section become comments: Puppet takes the last one of a section. No other line changes.
func withAgentSettings(text string, settings map[string]string) string {
	lines := ""
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		lines += name + " = " + settings[name] + "\n"
	}
	text = withoutAgentSettings(text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	var out strings.Builder
	section, placed := "main", false
	for line := range strings.Lines(text) {
		if m := confSection().FindStringSubmatch(line); m != nil {
			section = m[1]
			out.WriteString(line)
			if section == "agent" && !placed {
				out.WriteString(confBegin + "\n" + lines + confEnd + "\n")
				placed = true
			}
			continue
		}
		if m := confSetting().FindStringSubmatch(line); m != nil && section == "agent" {
			if _, ours := settings[m[1]]; ours {
				line = confOff + line
			}
		}
		out.WriteString(line)
	}
	if !placed {
		out.WriteString("[agent]\n" + confBegin + "\n" + lines + confEnd + "\n")
	}
	return out.String()
}

// withoutAgentSettings reverts withAgentSettings. It keeps a section with settings of the owner.
func withoutAgentSettings(text string) string {
	if rest, block, made := strings.Cut(text, "[agent]\n"+confBegin+"\n"); made && strings.Index(block, confEnd) == len(block)-len(confEnd+"\n") {
		text = rest
	}
	var out strings.Builder
	for line := range strings.Lines(withoutBlock(text, confBegin, confEnd)) {
		out.WriteString(strings.TrimPrefix(line, confOff))
	}
	return out.String()
}
