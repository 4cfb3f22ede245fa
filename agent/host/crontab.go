package host

import (
	"regexp"
	"slices"
	"strings"
)

// A CronJob is a line of a crontab that runs the agent: its settings file and its root ("" means the default).
type CronJob struct{ config, root string }

// cronLine matches a line of /etc/cron.d, see crontab(5): five fields or an @word, the user, the command.
var cronLine = regexp.MustCompile(`^\s*(?:@[a-z]+|[-0-9*/,~A-Za-z]+(?:\s+[-0-9*/,~A-Za-z]+){4})\s+[^\s=]+\s+(\S.*)$`)

var agentRun = regexp.MustCompile(`(?:^|[\s/'"])pulley-agent\s+run(?:\s|['"]|$)`)

// AgentJobs returns the jobs that run the agent. It skips comments, variables, and commands that only name the agent.
func AgentJobs(crontab []byte) []CronJob {
	var jobs []CronJob
	for line := range strings.Lines(string(crontab)) {
		m := cronLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		command, _, _ := strings.Cut(m[1], " #")
		if agentRun.MatchString(command) {
			jobs = append(jobs, CronJob{config: flagOf(command, "--config"), root: flagOf(command, "--root")})
		}
	}
	return jobs
}

// startsSame reports whether a job still starts an agent with the settings and the root of an earlier job. A setting
// that no earlier job named does not count.
func startsSame(before, now []CronJob) bool {
	return slices.ContainsFunc(before, func(b CronJob) bool {
		return slices.ContainsFunc(now, func(n CronJob) bool {
			return (b.config == "" || b.config == n.config) && (b.root == "" || b.root == n.root)
		})
	})
}

// flagOf returns the value of a flag in a command line, or "".
func flagOf(command, flag string) string {
	words := strings.Fields(command)
	for i, w := range words {
		if value, ok := strings.CutPrefix(w, flag+"="); ok {
			return value
		}
		if w == flag && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}
