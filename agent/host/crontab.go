package host

import (
	"regexp"
	"slices"
	"strings"
)

// A CronJob is a line of a crontab that runs the agent: with which settings, and under which root ("" is the default).
type CronJob struct{ config, root string }

// cronLine is a line of /etc/cron.d as crontab(5) has it: five fields or an @word, the user, the command.
var cronLine = regexp.MustCompile(`^\s*(?:@[a-z]+|[-0-9*/,~A-Za-z]+(?:\s+[-0-9*/,~A-Za-z]+){4})\s+[^\s=]+\s+(\S.*)$`)

var agentRun = regexp.MustCompile(`(?:^|[\s/'"])pulley-agent\s+run(?:\s|['"]|$)`)

// agentJobs finds the jobs that run the agent; comments, variables and commands that only name it are none.
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

// startsSame says whether an agent is started with the settings and the root that it had, as far as a job before named them.
func startsSame(before, now []CronJob) bool {
	return slices.ContainsFunc(before, func(b CronJob) bool {
		return slices.ContainsFunc(now, func(n CronJob) bool {
			return (b.config == "" || b.config == n.config) && (b.root == "" || b.root == n.root)
		})
	})
}

// flagOf is the value of a flag in a command line, "" when it is not there.
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
