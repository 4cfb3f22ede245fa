package puppettest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/agent"
)

// Cases returns the contract. hermeticCases returns the cases about the machine's own Puppet.
func Cases() []Case {
	return append(append(endings(), interruptions()...), hermeticCases()...)
}

const motd = `file { '{{dir}}/motd': content => 'hello' }
# fake: file {{dir}}/motd hello
`

// endings are the runs that Puppet itself ends.
func endings() []Case {
	untouched := func(t *testing.T, r *Ran) {
		if r.Report != "" || r.File("motd") != "" {
			t.Errorf("something was applied: report %q, motd %q", r.Report, r.File("motd"))
		}
	}
	return []Case{
		{
			Name: "changed", Manifest: motd,
			Kind: agent.Success, Outcome: agent.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *Ran) {
				if r.File("motd") != "hello" || r.Counts.Changed != 1 || r.Counts.Failed != 0 {
					t.Errorf("motd %q, counts %+v", r.File("motd"), r.Counts)
				}
				want := "File[" + r.Dir + "/motd]"
				if len(r.Resources) != 1 || r.Resources[0].Resource != want || r.Resources[0].Status != "changed" ||
					r.Resources[0].File != "manifests/site.pp" || r.Resources[0].Line == 0 || len(r.Resources[0].Messages) == 0 {
					t.Errorf("resources %+v, want %s changed in manifests/site.pp", r.Resources, want)
				}
				if _, err := os.Stat(r.Report); err != nil || len(r.Log) == 0 || r.Durations["total"] <= 0 {
					t.Errorf("report %q (%v), %d log lines, durations %v", r.Report, err, len(r.Log), r.Durations)
				}
				if !strings.Contains(r.Stdout, "Compiled catalog for web1 in environment dev") {
					t.Error("the output of the run was not shown")
				}
				again, err := r.Puppet.Apply(t.Context(), r.Job)
				if err != nil || again.Kind != agent.Success || again.Outcome != agent.Unchanged || again.ExitCode != 0 {
					t.Errorf("a second run: %+v, %v; want success, unchanged, 0", again, err)
				}
			},
		},
		{
			Name: "compile error", Manifest: motd + `fail('not today')
# fake: compile-error Evaluation Error: Error while evaluating a Function Call, not today (file: %{manifest}, line: 3, column: 1)
`,
			Kind: agent.Untouched, Outcome: agent.Failed, Codes: []int{1}, Check: untouched,
			Problem: "not today (file: manifests/site.pp, line: 3, column: 1)",
		},
		{
			Name: "syntax error", Manifest: motd + `node default { file {
# fake: compile-error Could not parse for environment %{env}: Syntax error at end of input (file: %{manifest})
`,
			Kind: agent.Untouched, Outcome: agent.Failed, Codes: []int{1}, Check: untouched,
			Problem: "Syntax error at end of input (file: manifests/site.pp)",
		},
		{
			Name: "no matching node", Manifest: motd + "node /^controller/ { }\n# fake: node ^controller\n",
			Kind: agent.Untouched, Outcome: agent.Failed, Codes: []int{1}, Check: untouched,
			Problem: "Could not find node statement with name 'default' or 'web1'",
		},
		{
			Name: "override of the wrong type", Data: map[string]string{"role": "demo::port: many\n"},
			Manifest: motd + "class demo(Integer $port = 80) { }\ninclude demo\n# fake: integer demo::port\n",
			Kind:     agent.Untouched, Outcome: agent.Failed, Codes: []int{1}, Check: untouched,
			Problem: "Class[Demo]: parameter 'port' expects an Integer value, got String",
		},
		{
			Name: "dependency cycle", Manifest: `exec { '/bin/true': require => Exec['/bin/date'] }
exec { '/bin/date': require => Exec['/bin/true'] }
# fake: cycle
`,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{1}, Problem: "dependency cycle",
		},
		{
			Name: "failing resource", Manifest: motd + `exec { '/bin/false': } -> notify { 'after': }
# fake: fail Exec[/bin/false] change from 'notrun' to ['0'] failed: '/bin/false' returned 1 instead of one of [0]
# fake: skip Notify[after]
`,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{4, 6},
			Problem: "1 resource failed: Exec[/bin/false]: change from 'notrun' to ['0'] failed: '/bin/false' returned 1",
			Check: func(t *testing.T, r *Ran) {
				if r.Counts.Failed != 1 || r.Counts.Skipped != 1 || r.Counts.Changed != 1 || len(r.Resources) != 3 ||
					r.Resources[0].Status != "failed" || r.Resources[1].Status != "skipped" || r.Resources[2].Status != "changed" {
					t.Errorf("counts %+v, resources %+v", r.Counts, r.Resources)
				}
			},
		},
		{
			Name: "failed restart", Manifest: motd + `exec { '/bin/false': refreshonly => true, subscribe => File['{{dir}}/motd'] }
# fake: refresh-fail Exec[/bin/false] '/bin/false' returned 1 instead of one of [0]
`,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{4, 6},
			Problem: "Exec[/bin/false]: Failed to call refresh: '/bin/false' returned 1",
			Check: func(t *testing.T, r *Ran) {
				if r.Counts.FailedToRestart != 1 {
					t.Errorf("counts %+v, want one failed to restart", r.Counts)
				}
			},
		},
		{
			Name: "noop job", Manifest: motd, Noop: true,
			Kind: agent.Untouched, Outcome: agent.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *Ran) {
				if !r.Noop || r.File("motd") != "" || len(r.Resources) != 1 || r.Resources[0].Status != "noop" {
					t.Errorf("noop %t, motd %q, resources %+v", r.Noop, r.File("motd"), r.Resources)
				}
			},
		},
		{
			Name: "noop job of a release that insists", Noop: true, Manifest: `file { '{{dir}}/motd': content => 'hello', noop => false }
# fake: insist {{dir}}/motd hello
`,
			Kind: agent.Between, Outcome: agent.Changed, Codes: []int{2}, Problem: "noop => false",
		},
		{
			Name: "missing report", Manifest: motd + "file { $settings::lastrunreport: ensure => directory }\n# fake: no-report\n",
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{0, 2}, Problem: "Could not send report",
		},
		{
			Name: "refused pulley.yaml", Manifest: motd, Files: map[string]string{"pulley.yaml": "live_dat: above\n"},
			Kind: agent.Untouched, Outcome: agent.Failed, Codes: []int{0}, Check: untouched,
			Problem: `pulley.yaml is refused: line 1: unknown key "live_dat"`,
		},
		{
			Name: "a lot of output", Manifest: `Integer[1, 3000].each |$i| { notice('a line of some length that fills the log of the run, again and again and again, to no purpose') }
fail('at last')
# fake: print 3000 a line of some length that fills the log of the run, again and again and again, to no purpose
# fake: compile-error at last
`,
			Kind: agent.Untouched, Outcome: agent.Failed, Codes: []int{1}, Problem: "at last",
			Check: func(t *testing.T, r *Ran) {
				if n := len(r.Log); n != 500 || !strings.Contains(r.Log[n-1].Message, "at last") || r.Log[n-1].Level != "err" {
					t.Errorf("%d log lines, want 500 with the error at the end", n)
				}
			},
		},
	}
}

// interruptions are the runs that are ended early.
func interruptions() []Case {
	return []Case{
		{
			Name: "SIGTERM in the middle", Manifest: motd + `exec { '/bin/sh -c "kill -TERM $PPID; sleep 1"': require => File['{{dir}}/motd'] }
# fake: signal TERM
`,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{1}, Problem: "ended by a signal", Check: motdStays,
		},
		{
			Name: "SIGKILL in the middle", Manifest: motd + `exec { '/bin/sh -c "kill -KILL $PPID; sleep 1"': require => File['{{dir}}/motd'] }
# fake: signal KILL
`,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{137}, Problem: "signal 9",
			Check: func(t *testing.T, r *Ran) {
				if motdStays(t, r); r.Report != "" {
					t.Errorf("report %q of a Puppet that was killed", r.Report)
				}
			},
		},
		{
			Name: "deadline while compiling", Manifest: motd + "notice(generate('/bin/sleep', '71.{{own}}'))\n# fake: compile-sleep 71.{{own}}\n", Strike: true,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{1, 143}, Problem: "at its deadline", Check: childrenEnded("71"),
		},
		{
			Name: "deadline with children", Manifest: motd + `exec { '/bin/sh -c "trap : TERM; sleep 72.{{own}}; sleep 72.{{own}}"': require => File['{{dir}}/motd'], timeout => 0 }
# fake: sleep 72.{{own}}
`, Strike: true, Applying: true,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{1, 137, 143}, Problem: "at its deadline",
			Check: func(t *testing.T, r *Ran) {
				motdStays(t, r)
				childrenEnded("72")(t, r)
			},
		},
		{
			Name: "agent told to stop", Manifest: motd + `exec { '/bin/sleep 73.{{own}}': require => File['{{dir}}/motd'], timeout => 0 }
# fake: sleep 73.{{own}}
`, Stop: true, Applying: true,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{1, 143}, Problem: "told to stop", Check: childrenEnded("73"),
		},
	}
}

// motdStays checks that changes before the end stay.
func motdStays(t *testing.T, r *Ran) {
	if r.File("motd") != "hello" {
		t.Errorf("motd is %q, want what was applied before the signal", r.File("motd"))
	}
}

// own identifies this process's commands, among those of other test processes: {{own}} in a manifest, digits.
func own() string { return fmt.Sprintf("%07d", os.Getpid()) }

// childrenEnded checks that no process that Puppet started still runs, and that ending them was quick.
func childrenEnded(seconds string) func(t *testing.T, r *Ran) {
	return func(t *testing.T, r *Ran) {
		if most := r.Boot + 50*time.Second; r.Took > most {
			t.Errorf("the run took %s, want at most %s", r.Took, most)
		}
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range names {
			line, _ := os.ReadFile(name)
			args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
			if len(args) == 2 && filepath.Base(args[0]) == "sleep" && args[1] == seconds+"."+own() && syscall.Access(name, 4) == nil {
				t.Errorf("%s (%v) outlived the run", name, args)
			}
		}
	}
}
