package takeover

import (
	"regexp"
	"strings"
)

// mark is the prefix of a line that cron must not run.
const mark = "# pulley-takeover: "

var (
	agentCommand = regexp.MustCompile(`(?:^|[\s/'";&|(])puppet\s+agent(?:[\s'";&|)]|$)`)
	times        = `^\s*(?:@[a-z]+|[-0-9*/,~A-Za-z]+(?:\s+[-0-9*/,~A-Za-z]+){4})\s+`
	ownLine      = regexp.MustCompile(times + `(\S.*)$`)
	systemLine   = regexp.MustCompile(times + `[^\s=]+\s+(\S.*)$`) // with the user field, as in /etc/crontab
)

// starts reports whether a line of a crontab (crontab(5)) starts puppet agent. Comments and variables do not.
func starts(line string, system bool) bool {
	shape := ownLine
	if system {
		shape = systemLine
	}
	m := shape.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
	return m != nil && startsAgent(m[1])
}

// idle matches the options with which puppet agent applies nothing. --enable is excluded: it would remove the lock of a
// takeover.
var idle = regexp.MustCompile(`(?:^|\s)(?:--(?:disable|fingerprint|version|help|configprint|genconfig|genmanifest)|-[Vh])(?:[\s=]|$)`)

// startsAgent reports whether a command, or a text of commands, starts a working puppet agent.
func startsAgent(text string) bool {
	const ends = ";&|)'\"\n"
	for _, at := range agentCommand.FindAllStringIndex(text, -1) {
		options := ""
		if last := text[at[1]-1]; !strings.ContainsRune(ends, rune(last)) {
			options = text[at[1]:]
		}
		if end := strings.IndexAny(options, ";&|)\n"); end >= 0 {
			options = options[:end]
		}
		if !idle.MatchString(options) {
			return true
		}
	}
	return false
}

// agentLines returns the lines that start puppet agent.
func agentLines(text string, system bool) (found []string) {
	for line := range strings.Lines(text) {
		if starts(line, system) {
			found = append(found, strings.TrimRight(line, "\r\n"))
		}
	}
	return found
}

// each rewrites a text line by line.
func each(text string, write func(line string) string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(write(line))
	}
	return b.String()
}

// commented adds the mark to each line that starts puppet agent.
func commented(text string, system bool) string {
	return each(text, func(line string) string {
		if starts(line, system) {
			return mark + line
		}
		return line
	})
}

// uncommented removes the marks.
func uncommented(text string) string {
	return each(text, func(line string) string { return strings.TrimPrefix(line, mark) })
}

// dropped removes the lines with a mark.
func dropped(text string) string {
	return each(text, func(line string) string {
		if strings.HasPrefix(line, mark) {
			return ""
		}
		return line
	})
}

// restored returns the content of a restored crontab, given its present content: the original, or if an administrator
// edited it since, the edited text with the original lines. A deleted crontab is restored as found.
func (f File) restored(now string) string {
	switch {
	case now == "" || now == f.Before || now == f.Disabled || f.Removed != nil && now == *f.Removed:
		return f.Before
	case strings.Contains(now, mark):
		return uncommented(now)
	}
	have := map[string]bool{}
	for line := range strings.Lines(now) {
		have[strings.TrimRight(line, "\r\n")] = true
	}
	for line := range strings.Lines(f.Disabled) {
		gone, marked := strings.CutPrefix(strings.TrimRight(line, "\r\n"), mark)
		if marked && !have[gone] {
			if now != "" && !strings.HasSuffix(now, "\n") {
				now += "\n"
			}
			now += gone + "\n"
		}
	}
	return now
}
