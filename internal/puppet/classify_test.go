package puppet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/model"
)

// A false success makes a release the last good one although it was never applied. A false untouched returns a partly
// configured machine to a target that it has already left.
func TestClassify(t *testing.T) {
	good := func(change ...func(*runReport)) *runReport {
		r := &runReport{Status: "changed", Completed: true, Counts: model.Counts{Total: 9, Changed: 2}}
		for _, c := range change {
			c(r)
		}
		return r
	}
	applied := "Notice: Compiled catalog for web1 in environment dev in 0.06 seconds\n"
	for _, c := range []struct {
		name    string
		end     end
		noop    bool
		report  *runReport
		out     string
		kind    model.Kind
		outcome model.Outcome
		problem string // a substring
	}{
		{"changed", end{code: 2}, false, good(), applied, model.Success, model.Changed, ""},
		{"unchanged", end{}, false, good(func(r *runReport) { r.Status, r.Counts.Changed = "unchanged", 0 }), applied, model.Success, model.Unchanged, ""},
		{"compile error", end{code: 1}, false, nil, "Error: Facter: no\nError: Evaluation Error: bad\nError: more\n", model.Untouched, model.Failed, "Evaluation Error: bad"},
		{"an encrypted value", end{code: 1}, false, nil, "Error: hiera-eyaml backend error decrypting ENC[PKCS7," + strings.Repeat("MIIB/+", 2000) + "] when looking up a::b in /r/data/x.yaml. Error was No such file or directory @ rb_sysopen - /k.pem on node web1\n", model.Untouched, model.Failed, "names the keys: a::b in /r/data/x.yaml. Error was No such file or directory @ rb_sysopen - /k.pem"},
		{"no hiera-eyaml", end{code: 1}, false, nil, "Error: Evaluation Error: Function Load Error for function 'eyaml_lookup_key': Lookup using eyaml lookup_key function is only supported when the hiera_eyaml library is present (file: x)\n", model.Untouched, model.Failed, "hiera-eyaml, which is not installed"},
		{"only facter errors", end{code: 1}, false, nil, "Error: Facter: no\n", model.Between, model.Failed, "no report"},
		{"silent", end{code: 1}, false, nil, "\n", model.Between, model.Failed, "no report"},
		{"ruby is broken", end{code: 1}, false, nil, "cannot load such file -- puppet\n", model.Untouched, model.Failed, "cannot load such file"},
		{"output is lost", end{code: 1}, false, nil, "", model.Between, model.Failed, "no report"},
		{"compiled, then gone", end{code: 1}, false, nil, applied + "Error: Parameter path failed\n", model.Between, model.Failed, "Parameter path failed"},
		{"exit 0 without report", end{}, false, nil, applied, model.Between, model.Failed, "no report"},
		{"exit 0, nothing compiled", end{}, false, nil, "Notice: hello\n", model.Between, model.Failed, "no report"},
		{"another exit code", end{code: 63}, false, nil, "Notice: hello\n", model.Between, model.Failed, "exit code 63"},
		{"deadline while compiling", end{code: 1, why: "it was ended at its deadline of 1h"}, false, nil, "Error: Could not run: SIGTERM\n", model.Between, model.Failed, "deadline of 1h"},
		{"deadline of a good run", end{code: 2, why: "it was ended at its deadline of 1h"}, false, good(), applied, model.Between, model.Failed, "deadline"},
		{"a signal while compiling", end{code: 1}, false, nil, "Error: Could not run: SIGTERM\n", model.Between, model.Failed, "SIGTERM"},
		{"words of a signal", end{code: 2}, false, good(), applied + "Exiting\nNotice: /Stage[main]/Main/Exec[x]/returns: Caught TERM; stopping\nNotice: Caught TERM; exiting\nError: Could not run: SIGTERM\n", model.Success, model.Changed, ""},
		{"last words of a signal", end{code: 2}, false, good(), applied + "Exiting\n", model.Success, model.Changed, ""},
		{"words of a signal before a compile error", end{code: 1}, false, nil, "Exiting\nCaught INT; exiting\nError: Evaluation Error: bad\n", model.Untouched, model.Failed, "Evaluation Error: bad"},
		{"words of a signal in a failed run", end{code: 6}, false, good(func(r *runReport) { r.Counts.Failed = 2 }), applied + "Exiting\n", model.Between, model.Failed, "2 resources failed"},
		{"words of a compiled catalog", end{code: 1}, false, nil, "Compiled catalog of books\nError: Evaluation Error: bad\n", model.Untouched, model.Failed, "Evaluation Error: bad"},
		{"a signal in the middle", end{code: 1}, false, good(func(r *runReport) { r.Status, r.Completed = "failed", false }), applied + "Error: Could not run: SIGTERM\n", model.Between, model.Failed, "ended by a signal"},
		{"a signal of the keyboard", end{code: 1}, false, good(func(r *runReport) { r.Completed = false }), applied + "Exiting\n", model.Between, model.Failed, "ended by a signal"},
		{"killed", end{code: 137}, false, nil, "Notice: x\n", model.Between, model.Failed, "signal 9"},
		{"outlived", end{code: 137, why: "it was ended at its deadline of 1h", outlived: true}, false, nil, applied, model.Between, model.Failed, "outlived"},
		{"status failed", end{code: 2}, false, good(func(r *runReport) { r.Status = "failed" }), applied, model.Between, model.Failed, "did not apply the complete catalog"},
		{"not completed", end{code: 2}, false, good(func(r *runReport) { r.Completed = false }), applied, model.Between, model.Failed, "did not apply the complete catalog"},
		{"noop unasked", end{}, false, good(func(r *runReport) { r.Noop = true }), applied, model.Between, model.Failed, "noop"},
		{"tags", end{}, false, good(func(r *runReport) { r.Tags = []string{"ntp"} }), applied, model.Between, model.Failed, "tags (ntp)"},
		{"failed resource", end{code: 2}, false, good(func(r *runReport) { r.Counts.Failed = 2 }), applied, model.Between, model.Failed, "2 resources failed"},
		{"failed restart", end{code: 2}, false, good(func(r *runReport) { r.Counts.FailedToRestart = 1 }), applied, model.Between, model.Failed, "1 resource failed to restart"},
		{"exit 1 with a good report", end{code: 1}, false, good(), applied + "Error: Could not run command from postrun_command: x\n", model.Between, model.Failed, "postrun_command"},
		{"exit 4 with a good report", end{code: 4}, false, good(), applied, model.Between, model.Failed, "exit code is 4"},
		{"exit 6 with a good report", end{code: 6}, false, good(), applied, model.Between, model.Failed, "exit code is 6"},
		{"unknown status", end{}, false, good(func(r *runReport) { r.Status = "splendid" }), applied, model.Between, model.Failed, "splendid"},
		{"noop asked", end{}, true, good(func(r *runReport) { r.Noop, r.Status, r.Counts.Changed = true, "unchanged", 0 }), applied, model.Untouched, model.Unchanged, ""},
		{"noop that failed", end{code: 4}, true, good(func(r *runReport) { r.Noop, r.Status, r.Counts = true, "failed", model.Counts{Failed: 1} }), applied, model.Untouched, model.Failed, "1 resource failed"},
		{"noop that changed", end{code: 2}, true, good(func(r *runReport) { r.Noop = true }), applied, model.Between, model.Changed, "noop => false"},
		{"noop that was none", end{code: 2}, true, good(), applied, model.Between, model.Failed, "did not run as noop"},
		{"noop that did not compile", end{code: 1}, true, nil, "Error: bad\n", model.Untouched, model.Failed, "bad"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			out := console{}
			if c.out != "" {
				path := filepath.Join(t.TempDir(), "log")
				if err := os.WriteFile(path, []byte(c.out), 0o600); err != nil {
					t.Fatal(err)
				}
				out = readConsole(path)
			}
			kind, outcome, p := classify(c.end, c.noop, c.report, out)
			problem := p.String()
			if kind != c.kind || outcome != c.outcome || !strings.Contains(problem, c.problem) || (c.problem == "") != (problem == "") {
				t.Errorf("%q %q %q, want %q %q %q", kind, outcome, problem, c.kind, c.outcome, c.problem)
			}
			if kind == model.Success && c.noop {
				t.Error("a noop run is a success: it would be committed")
			}
		})
	}
}

// The compiled catalog must be found anywhere in the output, even if the output exceeds the limit in memory.
func TestConsoleIsSearchedInFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	const size = 64 << 10
	for _, at := range []int{0, 1, size - 40, size - len(compiledLine), size - len(compiledLine) + 1, size - 1, size, 3*size + 7} {
		text := strings.Repeat("x", at) + compiledLine + strings.Repeat("y", 400<<10) + "\nError: last\nof two lines\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := readConsole(path)
		if !c.compiled || !c.read || c.lastError() != "last\nof two lines" {
			t.Errorf("at %d: compiled %t, read %t, last error %q", at, c.compiled, c.read, c.lastError())
		}
	}
	if c := readConsole(filepath.Join(t.TempDir(), "none")); c.read || c.compiled {
		t.Errorf("no output at all proves something: %+v", c)
	}
}

// The cause of a failed run must be kept, whatever else the run printed.
func TestLimitedLogKeepsErrors(t *testing.T) {
	var lines []model.LogLine
	for i := range 2000 {
		level := "notice"
		if i == 7 || i == 1500 {
			level = "err"
		}
		lines = append(lines, model.LogLine{Level: level, Message: string(rune('a' + i%26))})
	}
	got := limited(lines, 500, 0)
	errs := 0
	for _, line := range got {
		if line.Level == "err" {
			errs++
		}
	}
	if len(got) != 500 || errs != 2 || !strings.Contains(got[0].Message, "1501 lines are left out") || got[499].Message != lines[1999].Message {
		t.Errorf("%d lines, %d errors, first %+v, last %+v", len(got), errs, got[0], got[len(got)-1])
	}
	for i := range lines {
		lines[i].Level = "err"
	}
	if got := limited(lines, 500, 0); len(got) != 500 {
		t.Errorf("%d lines of errors, want 500", len(got))
	}
}

// The environment of the process that starts the agent must not reach Puppet.
func TestEnvironmentIsHermetic(t *testing.T) {
	for _, name := range []string{"RUBYOPT", "RUBYLIB", "FACTER_role", "PUPPET_CONFDIR", "GEM_HOME", "LD_PRELOAD"} {
		t.Setenv(name, "leak")
	}
	t.Setenv("LANG", "de_DE.UTF-8")
	t.Setenv("PATH", "/leak")
	var names []string
	for _, v := range environ() {
		if strings.Contains(v, "leak") || strings.Contains(v, "de_DE") {
			t.Errorf("%s reached Puppet", v)
		}
		name, _, _ := strings.Cut(v, "=")
		names = append(names, name)
	}
	if got := strings.Join(names, " "); got != "PATH HOME LANG LC_ALL" {
		t.Errorf("environment has %s", got)
	}
}
