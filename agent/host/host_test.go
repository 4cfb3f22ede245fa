package host

import (
	"slices"
	"testing"
)

// If a crontab that does not start the agent counts as its schedule, the node never runs again.
func TestAgentJobs(t *testing.T) {
	for line, want := range map[string][]CronJob{
		"*/5 * * * * root /usr/local/bin/pulley-agent run --splay":                          {{}},
		"0-59/5 1,2 * jan mon root cd / && pulley-agent run --root=/srv --config /a.yaml\n": {{"/a.yaml", "/srv"}},
		"@reboot root pulley-agent run":                                                     {{}},
		"# */5 * * * * root pulley-agent run":                                               nil,
		"*/5 * * * * root /bin/true # pulley-agent run":                                     nil,
		"MAILTO=pulley-agent@x":                                                             nil,
		"CMD=a b c d root pulley-agent run":                                                 nil,
		"*/5 * * * * root pulley-agent status":                                              nil,
		"*/5 * * * * root my-pulley-agent run":                                              nil,
		"*/5 * * * * root /bin/sh -c 'pulley-agent run' >>/log":                             {{}},
		"PATH=/bin\n\n1 * * * * root /bin/pulley-agent run\n# x":                            {{}},
	} {
		if got := AgentJobs([]byte(line)); !slices.Equal(got, want) {
			t.Errorf("%s: %v", line, got)
		}
	}
}
