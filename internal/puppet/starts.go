package puppet

import (
	"strings"

	"pulley/internal/pattern"
)

// The subcommands of Puppet that apply catalogs. Puppet's own lock stops only the agent.
const (
	ByAgent = "agent"
	ByApply = "apply"
)

var (
	// startCommand matches the start of puppet agent or puppet apply in a shell, or in the lists of other languages.
	startCommand = pattern.Lazy(`(?:^|[\s/'";&|(])(?:puppet|\$\{?\w*(?i:puppet)\w*\}?)(?:["']?(?:\s|\\\n)+|["']\s*,\s*["'])(agent|apply)(?:[\s'";&|)]|$)`)
	// idleStart matches the options with which Puppet applies nothing. --enable is excluded: it would remove the lock of a takeover.
	idleStart = pattern.Lazy(`(?:^|\s)(?:--(?:disable|fingerprint|version|help|configprint|genconfig|genmanifest)|-[Vh])(?:[\s=]|$)`)
	// speaks matches commands that only speak of Puppet.
	speaks = pattern.Lazy(`^[\s"']*(?:echo|printf|logger|e?grep|pgrep|pkill|ps)\b`)
)

// Starts returns the subcommand with which a command, or a text of commands, starts a working Puppet; "" for none. Apply is the worse one.
func Starts(text string) (subcommand string) {
	const ends = ";&|)'\"\n"
	if !strings.Contains(text, ByAgent) && !strings.Contains(text, ByApply) { // 51 times faster than the pattern, on a script of init
		return ""
	}
	for _, at := range startCommand().FindAllStringSubmatchIndex(text, -1) {
		line := text[strings.LastIndexByte(text[:at[2]], '\n')+1 : at[2]]
		if strings.HasPrefix(strings.TrimSpace(line), "#") || speaks().MatchString(line[strings.LastIndexAny(line, ";&|(`")+1:]) {
			continue
		}
		options := ""
		if last := text[at[1]-1]; !strings.ContainsRune(ends, rune(last)) {
			options = text[at[1]:]
		}
		if end := strings.IndexAny(options, ";&|)\n"); end >= 0 {
			options = options[:end]
		}
		if found := text[at[2]:at[3]]; !idleStart().MatchString(options) && subcommand != ByApply {
			subcommand = found
		}
	}
	return subcommand
}
