package puppettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/facts"
	"pulley/internal/model"
	"pulley/internal/puppet"
)

// machine is a Puppet with the settings of the machine's own Puppet, which a case may modify.
type machine struct {
	Program string        // starts Puppet
	Confdir string        // the machine's own confdir: the default source of puppet.conf
	Vardir  string        // the machine's own vardir
	Boot    time.Duration // ample time for Puppet to reach the middle of a catalog
	Grace   time.Duration // ample time for Puppet to exit after a signal
}

// testCase is one row of the contract.
type testCase struct {
	Name     string
	Manifest string            // site.pp, with directives for the fake; {{dir}}: scratch folder, {{own}}: see own
	Files    map[string]string // further files of the release
	Data     map[string]string // live data: layer → YAML
	Core     map[string]string // files of the modules that the distribution splits from Puppet
	Extra    []string          // arguments that the machine appends, to simulate a wrong Puppet
	Conf     string            // the machine's own puppet.conf
	Spoil    func(t *testing.T, m machine)
	Listener *listener // receives reports
	Reports  []string  // the node's report processors
	StaysOff []string  // services that no run changes
	Types    *puppet.Installer
	Noop     bool
	Preview  bool
	Exists   map[string]string // files in the scratch folder, which every user can read
	Part     model.Part
	Code     string // instead of the manifest, with directives for the fake
	Strike   bool   // the deadline ends the run in the middle
	Stop     bool   // the agent is stopped in the middle
	Applying bool   // the middle begins when motd exists

	Kind    model.Kind
	Outcome model.Outcome
	Codes   []int  // the valid exit codes
	Problem string // a substring of the problem; "": no problem
	Check   func(t *testing.T, r *ran)
}

// ran is a case and the result of its run.
type ran struct {
	model.Result
	Dir    string // the scratch folder
	Puppet *puppet.Puppet
	Job    model.Job

	Listener *listener // its case's
	Stdout   string
	Took     time.Duration
	Boot     time.Duration // its machine's

	server puppetServer // of a run against one
}

// file returns the content of a file in the scratch folder, or "" if it is missing.
func (r *ran) file(name string) string {
	text, _ := os.ReadFile(filepath.Join(r.Dir, name))
	return string(text)
}

// suite runs the contract, with more cases and without those of these names, on the Puppets from newMachine.
func suite(t *testing.T, newMachine func(t *testing.T, extra ...string) machine, more []testCase, without []string) {
	all := append(cases(), more...)
	for _, name := range without {
		if !slices.ContainsFunc(all, func(c testCase) bool { return c.Name == name }) {
			t.Errorf("there is no case %q", name)
		}
	}
	t.Run("what_is_spoiled_does_reach_a_Puppet", func(t *testing.T) { leaks(t, newMachine(t)) })
	for _, c := range all {
		if slices.Contains(without, c.Name) {
			continue
		}
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			if c.Spoil == nil { // a case that modifies the environment of this process runs alone
				t.Parallel()
			}
			m := newMachine(t, c.Extra...)
			r := c.apply(t, m)
			for boot := 2 * m.Boot; c.Applying && r.file("motd") == "" && boot < time.Minute; boot *= 2 { // on a busy machine
				m = newMachine(t, c.Extra...)
				m.Boot = boot
				r = c.apply(t, m)
			}
			if r.Kind != c.Kind || r.Outcome != c.Outcome {
				t.Errorf("kind %q outcome %q, want %q %q", r.Kind, r.Outcome, c.Kind, c.Outcome)
			}
			if !slices.Contains(c.Codes, r.ExitCode) {
				t.Errorf("exit code %d, want one of %v", r.ExitCode, c.Codes)
			}
			problem := r.Problem.String()
			if (c.Problem == "") != (problem == "") || !strings.Contains(problem, c.Problem) {
				t.Errorf("problem %q, want %q", problem, c.Problem)
			}
			if strings.Contains(problem, r.Puppet.Dir) || strings.Contains(problem, "\n") {
				t.Errorf("problem names the run's folder or has several lines: %q", problem)
			}
			if c.Check != nil {
				c.Check(t, r)
			}
			if t.Failed() {
				t.Logf("output:\n%s\nresult: %+v", r.Stdout, r.Result)
			}
		})
	}
}

// apply creates the case's release, data and machine, and runs Puppet on them.
func (c testCase) apply(t *testing.T, m machine) *ran {
	t.Helper()
	r := &ran{Dir: t.TempDir()}
	base := t.TempDir()
	write(t, filepath.Join(base, "tree", "manifests", "site.pp"), strings.NewReplacer("{{dir}}", r.Dir, "{{own}}", own()).Replace(c.Manifest))
	for name, text := range c.Files {
		write(t, filepath.Join(base, "tree", name), strings.ReplaceAll(text, "{{dir}}", r.Dir))
	}
	data := ""
	for name, text := range c.Data {
		data = filepath.Join(base, "data")
		write(t, filepath.Join(data, name+".yaml"), text)
	}
	const block = "-----BEGIN %s-----\nAAAA\n-----END %[1]s-----\n"
	write(t, filepath.Join(base, "node.pem"), fmt.Sprintf(block, "EC PRIVATE KEY")+fmt.Sprintf(block, "CERTIFICATE"))
	write(t, filepath.Join(base, "ca.pem"), fmt.Sprintf(block, "CERTIFICATE"))
	for name, text := range c.Core {
		write(t, filepath.Join(base, "core", name), text)
	}
	if c.Conf != "" {
		write(t, filepath.Join(m.Confdir, "puppet.conf"), c.Conf)
	}
	if c.Spoil != nil {
		c.Spoil(t, m)
	}
	for name, text := range c.Exists {
		write(t, filepath.Join(r.Dir, name), text)
		if err := os.Chmod(filepath.Dir(r.Dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(text, "#!") {
			if err := os.Chmod(filepath.Join(r.Dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	var out bytes.Buffer
	r.Puppet = &puppet.Puppet{
		Program: m.Program, Dir: filepath.Join(base, "state"), Grace: m.Grace,
		StateDirs: []string{filepath.Join(m.Vardir, "state")}, StaysOff: c.StaysOff, Installer: c.Types, ConfDirs: []string{m.Confdir}, Stdout: &out, CoreModules: filepath.Join(base, "core"),
		LastRun:     puppet.LastRun{Summary: filepath.Join(r.Dir, "public", "summary.yaml"), Report: filepath.Join(r.Dir, "state", "report.yaml")},
		Certificate: puppet.Certificate{Identity: filepath.Join(base, "node.pem"), CAs: filepath.Join(base, "ca.pem")},
	}
	r.Job = model.Job{
		Identity: model.Identity{Node: "web1", Certname: "web1", Role: "web", Environment: "dev@t1", PuppetEnvironment: "dev"},
		ID:       "20260101T000000Z-1", Target: model.Target{Release: "1.4.0", Tree: "00", Data: 12},
		Tree: filepath.Join(base, "tree"), Data: data, Noop: c.Noop || c.Preview, Preview: c.Preview, Part: c.Part,
		Code: strings.ReplaceAll(c.Code, "{{dir}}", r.Dir),
	}
	if c.Listener != nil {
		c.Listener.start(t)
		r.Listener = c.Listener
		r.Puppet.Reports = puppet.Reports{Processors: c.Reports, URL: c.Listener.URL}
	}
	ctx := t.Context()
	if c.Strike {
		r.Puppet.Deadline = m.Boot
	}
	if c.Stop {
		limited, cancel := context.WithTimeout(ctx, m.Boot)
		defer cancel()
		ctx = limited
	}
	began := time.Now()
	var err error
	if r.Result, err = r.Puppet.Apply(ctx, r.Job); err != nil {
		t.Fatalf("Puppet was not run: %v", err)
	}
	r.Took, r.Boot, r.Stdout = time.Since(began), m.Boot, out.String()
	return r
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cases returns the contract.
func cases() []testCase {
	return slices.Concat(endings(), versions(), interruptions(), hermeticCases(), reportCases(), trustedCases(), factCases(), externalCases(), classCases(), moduleCases())
}

const motd = `file { '{{dir}}/motd': content => 'hello' }
# fake: file {{dir}}/motd hello
`

const tagged = `file { '{{dir}}/motd': content => 'hello', tag => 'first' }
file { '{{dir}}/other': content => 'hello' }
# fake: tagged first {{dir}}/motd hello
# fake: file {{dir}}/other hello
`

// only returns a check that a file was applied and another one was not.
func only(applied, left string) func(t *testing.T, r *ran) {
	return func(t *testing.T, r *ran) {
		if r.file(applied) != "hello" || r.file(left) != "" || r.Counts.Changed != 1 {
			t.Errorf("%s %q, %s %q, counts %+v", applied, r.file(applied), left, r.file(left), r.Counts)
		}
	}
}

// endings are the runs that Puppet itself ends.
func endings() []testCase {
	untouched := func(t *testing.T, r *ran) {
		if r.Report != "" || r.file("motd") != "" {
			t.Errorf("something was applied: report %q, motd %q", r.Report, r.file("motd"))
		}
		if s := r.file("public/summary.yaml"); r.ExitCode == 1 && !strings.Contains(s, "failed: 1\n") {
			t.Errorf("monitoring sees %q", s)
		}
	}
	return []testCase{
		{
			Name: "changed", Manifest: motd,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				if r.file("motd") != "hello" || r.Counts.Changed != 1 || r.Counts.Failed != 0 {
					t.Errorf("motd %q, counts %+v", r.file("motd"), r.Counts)
				}
				want := "File[" + r.Dir + "/motd]"
				if len(r.Resources) != 1 || r.Resources[0].Resource != want || r.Resources[0].Status != "changed" ||
					r.Resources[0].File != "manifests/site.pp" || r.Resources[0].Line == 0 || len(r.Resources[0].Messages) == 0 {
					t.Errorf("resources %+v, want %s changed in manifests/site.pp", r.Resources, want)
				}
				if _, err := os.Stat(r.Report); err != nil || len(r.Log) == 0 || r.Durations["total"] <= 0 {
					t.Errorf("report %q (%v), %d log lines, durations %v", r.Report, err, len(r.Log), r.Durations)
				}
				if s := r.file("public/summary.yaml"); !strings.Contains(s, "last_run: ") || !strings.Contains(r.file("state/report.yaml"), "\nstatus: changed\n") {
					t.Errorf("monitoring sees %q, %q", s, r.file("state/report.yaml"))
				}
				if !strings.Contains(r.Stdout, "Compiled catalog for web1 in environment dev") {
					t.Error("the output of the run was not shown")
				}
				again, err := r.Puppet.Apply(t.Context(), r.Job)
				if err != nil || again.Kind != model.Success || again.Outcome != model.Unchanged || again.ExitCode != 0 {
					t.Errorf("a second run: %+v, %v; want success, unchanged, 0", again, err)
				}
			},
		},
		{
			Name:  "words of a signal",
			Files: map[string]string{"modules/m/lib/facter/words.rb": "Facter.add(:words) { setcode { puts 'Exiting'; 'x' } }\n"},
			Manifest: motd + `exec { '/bin/echo "Caught TERM; exiting"': logoutput => true }
# fake: stray Exiting
# fake: print 1 Caught TERM; exiting
`,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				if !strings.Contains(r.Stdout, "Exiting\n") || !strings.Contains(r.Stdout, "Caught TERM; exiting\n") {
					t.Error("the words were not printed")
				}
			},
		},
		{
			Name: "syntax error", Manifest: motd + `node default { file {
# fake: compile-error Could not parse for environment %{env}: Syntax error at end of input (file: %{manifest})
`,
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1}, Check: untouched,
			Problem: "Syntax error at end of input (file: manifests/site.pp)",
		},
		{
			Name: "no matching node", Manifest: motd + "node /^controller/ { }\n# fake: node ^controller\n",
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1}, Check: untouched,
			Problem: "Could not find node statement with name 'default' or 'web1'",
		},
		{
			Name: "override of the wrong type", Data: map[string]string{"role": "demo::port: many\n"},
			Manifest: motd + "class demo(Integer $port = 80) { }\ninclude demo\n# fake: integer demo::port\n",
			Kind:     model.Untouched, Outcome: model.Failed, Codes: []int{1}, Check: untouched,
			Problem: "Class[Demo]: parameter 'port' expects an Integer value, got String",
		},
		{
			Name: "dependency cycle", Manifest: `exec { '/bin/true': require => Exec['/bin/date'] }
exec { '/bin/date': require => Exec['/bin/true'] }
# fake: cycle
`,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{1}, Problem: "dependency cycle",
		},
		{
			Name: "failing resource", Manifest: motd + `exec { '/bin/false': } -> notify { 'after': }
# fake: fail Exec[/bin/false] change from 'notrun' to ['0'] failed: '/bin/false' returned 1 instead of one of [0]
# fake: skip Notify[after]
`,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{4, 6},
			Problem: "1 resource failed: Exec[/bin/false]: change from 'notrun' to ['0'] failed: '/bin/false' returned 1",
			Check: func(t *testing.T, r *ran) {
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
			Kind: model.Between, Outcome: model.Failed, Codes: []int{4, 6},
			Problem: "Exec[/bin/false]: Failed to call refresh: '/bin/false' returned 1",
			Check: func(t *testing.T, r *ran) {
				if r.Counts.FailedToRestart != 1 {
					t.Errorf("counts %+v, want one failed to restart", r.Counts)
				}
			},
		},
		{
			Name: "code instead of the manifest", Manifest: motd,
			Files: map[string]string{"modules/word/manifests/init.pp": "class word(String $text = 'none') { }\n", "external_nodes/web1.yaml": "classes: [none]\n",
				"environments/dev.yaml": "puppet: {reports: [none]}\n"},
			Data: map[string]string{"environment": "word::text: live\n"},
			Code: "include word\nfile { '{{dir}}/word': content => $word::text }\n# fake: file {{dir}}/word %{data:word::text,none}\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				if r.file("motd") != "" || r.file("word") != "live" {
					t.Errorf("motd %q, word %q", r.file("motd"), r.file("word"))
				}
				if _, err := os.Stat(filepath.Join(r.Puppet.RunDir(r.Job.ID), "unsent.json")); err == nil {
					t.Error("a report processor of the release waits for the report")
				}
			},
		},
		{
			Name: "noop job", Manifest: motd, Noop: true,
			Kind: model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *ran) {
				if !r.Puppet.Manages(r.Job.ID, strings.ToLower("file["+r.Dir+"/motd]")) || r.Puppet.Manages(r.Job.ID, "service[puppet]") {
					t.Error("the list of the catalog's resources is wrong")
				}
				if s := r.file("public/summary.yaml"); s != "" {
					t.Errorf("monitoring sees a noop run: %q", s)
				}
				if !r.Noop || r.file("motd") != "" || len(r.Resources) != 1 || r.Resources[0].Status != "noop" {
					t.Errorf("noop %t, motd %q, resources %+v", r.Noop, r.file("motd"), r.Resources)
				}
			},
		},
		{
			Name: "noop job of a release that insists", Noop: true, Manifest: `file { '{{dir}}/motd': content => 'hello', noop => false }
# fake: insist {{dir}}/motd hello
`,
			Kind: model.Between, Outcome: model.Changed, Codes: []int{2}, Problem: "noop => false",
		},
		{
			Name: "preview of a release that insists", Preview: true, Manifest: `file { '{{dir}}/motd': content => 'hello', noop => false }
# fake: insist {{dir}}/motd hello
`,
			Kind: model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *ran) {
				if r.file("motd") != "" || len(r.Resources) != 1 || fmt.Sprint(r.Resources[0].Properties) != "[{ensure absent file}]" || len(r.Resources[0].Messages) > 0 {
					t.Errorf("motd %q, resources %+v", r.file("motd"), r.Resources)
				}
				if _, err := os.Stat(r.Puppet.RunDir(r.Job.ID)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the folder of the preview is left: %v", err)
				}
			},
		},
		{
			Name: "preview of a changed file", Preview: true, Manifest: `file { '{{dir}}/motd': content => "one\ntwo\n" }
~> exec { '/bin/true': refreshonly => true }
# fake: file {{dir}}/motd one\ntwo\n
# fake: refresh Exec[/bin/true]
`,
			Exists: map[string]string{"motd": "one\n"},
			Kind:   model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *ran) {
				name := filepath.Join(r.Dir, "motd")
				want := "--- " + name + "\n+++ " + name + "\n@@ -1 +1,2 @@\n one\n+two"
				if len(r.Resources) != 2 || r.Resources[0].Diff != want || r.file("motd") != "one\n" {
					t.Fatalf("motd %q, resources %+v, want diff %q", r.file("motd"), r.Resources, want)
				}
				if p := r.Resources[0].Properties; len(p) != 1 || p[0].Property != "content" || !strings.HasPrefix(p[0].Old, "{sha256}") || p[0].Old == p[0].New {
					t.Errorf("properties %+v", p)
				}
				if e := r.Resources[1]; e.Resource != "Exec[/bin/true]" || len(e.Messages) != 1 || !strings.Contains(e.Messages[0], "refresh") {
					t.Errorf("the resource that would be refreshed: %+v", e)
				}
				if r.NoDiffs || r.Left > 0 {
					t.Errorf("left %d, no diffs %t", r.Left, r.NoDiffs)
				}
			},
		},
		{
			Name: "a resource under noop", Manifest: `file { '{{dir}}/motd': content => 'hello', noop => true }
# fake: pending {{dir}}/motd hello
`,
			Kind: model.Success, Outcome: model.Unchanged, Codes: []int{0},
			Check: func(t *testing.T, r *ran) {
				if r.Counts.Pending != 1 || r.file("motd") != "" || len(r.Resources) != 1 || r.Resources[0].Status != "noop" {
					t.Errorf("counts %+v, motd %q, resources %+v", r.Counts, r.file("motd"), r.Resources)
				}
			},
		},
		{
			Name: "only with a tag", Manifest: tagged, Part: model.Part{Tags: []string{"first", "absent"}},
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: only("motd", "other"),
		},
		{
			Name: "without a tag", Manifest: tagged, Part: model.Part{SkipTags: []string{"first"}},
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: only("other", "motd"),
		},
		{
			Name: "missing report", Manifest: motd + "file { $settings::lastrunreport: ensure => directory }\n# fake: no-report\n",
			Kind: model.Between, Outcome: model.Failed, Codes: []int{0, 2}, Problem: "Could not send report",
		},
		{
			Name: "refused pulley.yaml", Manifest: motd, Files: map[string]string{"pulley.yaml": "live_dat: above\n"},
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Check: untouched,
			Problem: `pulley.yaml is refused: line 1: unknown key "live_dat"`,
		},
		{
			Name: "compile error after a lot of output", Manifest: motd +
				`Integer[1, 3000].each |$i| { notice('a line of some length that fills the log of the run, again and again and again, to no purpose') }
fail('not today')
# fake: print 3000 a line of some length that fills the log of the run, again and again and again, to no purpose
# fake: compile-error Evaluation Error: Error while evaluating a Function Call, not today (file: %{manifest}, line: 4, column: 1)
`,
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1},
			Problem: "not today (file: manifests/site.pp, line: 4, column: 1)",
			Check: func(t *testing.T, r *ran) {
				untouched(t, r)
				if n := len(r.Log); n != 500 || !strings.Contains(r.Log[n-1].Message, "not today") || r.Log[n-1].Level != "err" {
					t.Errorf("%d log lines, want 500 with the error at the end", n)
				}
			},
		},
	}
}

// versions are the runs of releases with a config_version, which stock Puppet runs itself.
func versions() []testCase {
	reports := func(want, commit string) func(t *testing.T, r *ran) {
		return func(t *testing.T, r *ran) {
			text, err := os.ReadFile(r.Report)
			if err != nil || !strings.Contains(strings.NewReplacer(`"`, "", "'", "").Replace(string(text)), "\nconfiguration_version: "+want+"\n") {
				t.Errorf("the report (%v) does not contain version %s", err, want)
			}
			if r.ConfigVersion != want || r.Commit != commit {
				t.Errorf("version %q commit %q, want %q %q", r.ConfigVersion, r.Commit, want, commit)
			}
		}
	}
	const commit = "0123456789abcdef0123456789abcdef01234567"
	deploy := `{"signature": "` + commit + `"}`
	return []testCase{
		{
			Name: "config_version reads the deploy file", Manifest: motd, Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Files: map[string]string{
				puppet.DeployFile: deploy, "version": `echo "$2-$(cut -d'"' -f4 $1/$2/` + puppet.DeployFile + `)"`,
				"environment.conf": "modulepath = modules\nconfig_version = '/bin/sh $codedir/environments/$environment/version $environmentpath $environment'\n",
			},
			Check: reports("dev-"+commit, commit),
		},
		{
			Name: "config_version needs the git folder", Manifest: motd, Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Files: map[string]string{
				puppet.DeployFile: deploy, "environment.conf": "config_version = /usr/bin/git --git-dir $environmentpath/$environment/.git rev-parse HEAD\n",
			},
			Check: reports("1.4.0+0123456789ab", commit),
		},
		{
			Name: "no config_version", Manifest: motd, Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: reports("1.4.0", ""),
		},
	}
}

// interruptions are the runs that are ended early.
func interruptions() []testCase {
	return []testCase{
		{
			Name: "SIGTERM in the middle", Manifest: motd + `exec { '/bin/sh -c "kill -TERM $PPID; sleep 1"': require => File['{{dir}}/motd'] }
# fake: signal TERM
`,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{1}, Problem: "ended by a signal", Check: motdStays,
		},
		{
			Name: "SIGKILL in the middle", Manifest: motd + `exec { '/bin/sh -c "kill -KILL $PPID; sleep 1"': require => File['{{dir}}/motd'] }
# fake: signal KILL
`,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{137}, Problem: "signal 9",
			Check: func(t *testing.T, r *ran) {
				if motdStays(t, r); r.Report != "" {
					t.Errorf("report %q of a Puppet that was killed", r.Report)
				}
			},
		},
		{
			Name: "agent stopped while compiling", Manifest: motd + "notice(generate('/bin/sleep', '71.{{own}}'))\n# fake: compile-sleep 71.{{own}}\n", Stop: true,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{1, 143}, Problem: "the agent was stopped", Check: childrenEnded("71"),
		},
		{
			Name: "deadline with children", Manifest: motd + `exec { '/bin/sh -c "trap : TERM; sleep 72.{{own}}; sleep 72.{{own}}"': require => File['{{dir}}/motd'], timeout => 0 }
# fake: sleep 72.{{own}}
`, Strike: true, Applying: true,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{1, 137, 143}, Problem: "at its deadline",
			Check: func(t *testing.T, r *ran) {
				motdStays(t, r)
				childrenEnded("72")(t, r)
			},
		},
	}
}

// motdStays checks that changes before the end stay.
func motdStays(t *testing.T, r *ran) { hasFile(t, r, "motd", "hello") }

// own identifies this process's commands, among those of other test processes: {{own}} in a manifest, digits.
func own() string { return fmt.Sprintf("%07d", os.Getpid()) }

// childrenEnded checks that no process that Puppet started still runs, and that ending them was quick.
func childrenEnded(seconds string) func(t *testing.T, r *ran) {
	return func(t *testing.T, r *ran) {
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

// hermeticCases are the cases about the machine's own settings and files, which must not reach a run, and about live data.
func hermeticCases() []testCase {
	success := func(c testCase) testCase {
		c.Kind, c.Outcome, c.Codes = model.Success, model.Changed, []int{2}
		return c
	}
	return []testCase{
		success(testCase{
			Name: "the machine's own Puppet", Spoil: spoil,
			Conf: "[main]\nnoop = true\ntags = nothing\npostrun_command = /bin/false\ncertname = other.example\nenvironment = other\n",
			Manifest: refuseStale + `if defined('stray') { fail('a stray module') }
file { '{{dir}}/who': content => "${trusted['certname']} ${environment} ${facts['pulley']['role']} ${facts['pulley']['release']} ${facts['pulley']['generation']}" }
# fake: file {{dir}}/who %{certname} %{env} %{fact:role} %{fact:release} %{fact:generation}
file { '{{dir}}/word': content => lookup('word', default_value => 'none') }
# fake: file {{dir}}/word %{data:word,none}
`,
			Check: func(t *testing.T, r *ran) {
				hasFile(t, r, "who", "web1 dev web 1.4.0 12")
				hasFile(t, r, "word", "none")
			},
		}),
		success(testCase{
			Name:  "settings of the environment file",
			Conf:  "[main]\nstrict_variables = false\nfactpath = /nowhere\n",
			Files: map[string]string{"environments/dev.yaml": "puppet:\n  settings: {factpath: '{{dir}}/facts', strict_variables: true, trusted_external_command: '{{dir}}/cmdb'}\n"},
			Exists: map[string]string{
				"facts/site.rb": "Facter.add('site') { setcode { 'north' } }\n", "cmdb": "#!/bin/sh\necho \"{\\\"rack\\\":\\\"r12 of $1\\\"}\"\n",
			},
			Manifest: `file { '{{dir}}/given': content => "${facts['site']} ${trusted['external']['rack']} ${settings::strict_variables}" }
# fake: file {{dir}}/given %{found:site} %{retrieved:rack} %{setting:strict_variables}
`,
			Check: func(t *testing.T, r *ran) { hasFile(t, r, "given", "north r12 of web1 true") },
		}),
		{
			Name: "a setting of the environment file that Pulley owns", Manifest: motd, Files: map[string]string{"environments/dev.yaml": "puppet: {settings: {noop: true}}\n"},
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Problem: "environments/dev.yaml is refused: puppet.settings.noop: Pulley sets it itself",
		},
		success(testCase{
			Name: "settings do not change", Data: map[string]string{"common": "word: live\n"},
			Manifest: refuseStale + `file { '{{dir}}/settings': content => "${settings::confdir} ${settings::codedir} ${settings::environmentpath} ${settings::statedir} ${settings::libdir} ${settings::hiera_config} ${settings::config_version} ${facts['pulley']['data']}" }
# fake: file {{dir}}/settings %{setting:confdir} %{setting:codedir} %{setting:environmentpath} %{setting:statedir} %{setting:libdir} %{setting:hiera_config} %{setting:config_version} %{fact:data}
`,
			Check: func(t *testing.T, r *ran) {
				first := r.file("settings")
				write(t, filepath.Join(r.Puppet.RunDir(r.Job.ID), "facts.d", "stale.txt"), "stale=old\n")
				r.Job.ID, r.Job.Noop = "20260101T000000Z-2", true
				if again, err := r.Puppet.Apply(t.Context(), r.Job); err != nil || again.Problem != (model.Problem{}) || len(again.Resources) > 0 {
					t.Errorf("the next run would change %+v (%v), after %q", again, err, first)
				}
				if strings.Contains(first, "runs/") || !strings.Contains(first, filepath.Join(r.Puppet.Dir, "run", "conf")) {
					t.Errorf("the settings are %q", first)
				}
			},
		}),
		success(testCase{
			Name: "live data above the release's own", Files: releaseData(""),
			Data: map[string]string{"common": "word: common\n", "role": "word: role\n"}, Manifest: wordManifest,
			Check: func(t *testing.T, r *ran) {
				hasFile(t, r, "word", "role")
				explains(t, r, "word", `Hierarchy entry "Pulley role layer"`)
			},
		}),
		success(testCase{
			Name: "live data where the release wants it", Files: releaseData("live_data: hierarchy\n"),
			Data: map[string]string{"node": "word: node\nlive: node\n"},
			Manifest: wordManifest + `file { '{{dir}}/live': content => lookup('live') }
# fake: file {{dir}}/live %{data:live,}
`,
			Check: func(t *testing.T, r *ran) {
				hasFile(t, r, "word", "release")
				hasFile(t, r, "live", "node")
				explains(t, r, "live", `Found key: "live" value: "node"`) // lookup uses the node's own facts, without --node
			},
		}),
		{
			Name: "a Puppet with a postrun_command that fails", Extra: []string{"--postrun_command", "/bin/false"}, Manifest: motd,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{1}, Problem: "postrun_command",
			Check: func(t *testing.T, r *ran) { hasFile(t, r, "motd", "hello") },
		},
		{
			Name: "a Puppet that runs noop unasked", Extra: []string{"--noop"}, Manifest: motd,
			Kind: model.Between, Outcome: model.Failed, Codes: []int{0, 2}, Problem: "noop",
		},
	}
}

// trustedCases check $trusted['extensions'], which comes from the release's environment file only.
func trustedCases() []testCase {
	const manifest = `$e = $trusted['extensions']
$zone = $trusted['extensions'].get('pp_zone')
file { '{{dir}}/word': content => "${trusted['authenticated']} ${trusted['certname']} ${e['pp_role']} ${zone} ${e['pp_cluster']} ${lookup('word')}" }
`
	files := map[string]string{
		"hiera.yaml":         "version: 5\ndefaults: {datadir: data, data_hash: yaml_data}\nhierarchy: [{name: role, path: \"roles/%{trusted.extensions.pp_role}.yaml\"}, {name: common, path: common.yaml}]\n",
		"data/roles/db.yaml": "word: of the database\n", "data/roles/evil.yaml": "word: evil\n", "data/common.yaml": "word: common\n",
		// facts of the node
		"modules/forger/facts.d/forged.json": `{"trusted": {"authenticated": "remote", "certname": "evil", "extensions": {"pp_role": "evil"}}, "pp_role": "evil"}`,
	}
	with := maps.Clone(files)
	with["environments/dev.yaml"] = "trusted: {pp_zone: a, pp_role: none}\nroles: {web: {cardinality: 1, trusted: {pp_role: db}}}\nnodes: {web1: {trusted: {pp_zone: '7'}}}\n"
	unread := maps.Clone(files)
	unread["environments/dev.yaml"] = "roles: {web: {trusted: [pp_role]}}\n"
	warned := func(t *testing.T, r *ran, name string) {
		t.Helper()
		if n := strings.Count(r.Stdout, "trusted extension '"+name+"' is read, and the environment file"); n != 1 {
			t.Errorf("%d warnings of %s, want 1", n, name)
		}
	}
	return []testCase{
		{
			Name: "trusted extensions", Files: with,
			Manifest: manifest + `# fake: print 1 Warning: trusted extension 'pp_cluster' is read, and the environment file of the release does not supply it
# fake: file {{dir}}/word remote web1 %{trusted:pp_role} %{trusted:pp_zone}  of the database
`,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				hasFile(t, r, "word", "remote web1 db 7  of the database")
				warned(t, r, "pp_cluster")
				explains(t, r, "word", `Found key: "word" value: "of the database"`)
			},
		},
		{
			Name: "trusted extensions that nobody supplies", Files: files,
			Manifest: manifest + `# fake: print 1 Warning: trusted extension 'pp_role' is read, and the environment file of the release does not supply it
# fake: file {{dir}}/word local web1 %{trusted:pp_role} %{trusted:pp_zone}  common
`,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				hasFile(t, r, "word", "local web1    common")
				warned(t, r, "pp_role")
			},
		},
		{
			Name: "trusted extensions that cannot be read", Files: unread, Manifest: motd,
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Problem: "environments/dev.yaml is refused: line 1: trusted is not a mapping",
			Check: func(t *testing.T, r *ran) { hasFile(t, r, "motd", "") },
		},
	}
}

// factCases check the facts that a run leaves for the agent: with those of the release, and without volatile ones.
func factCases() []testCase {
	release := map[string]string{
		"modules/demo/lib/facter/rack.rb":   "Facter.add(:rack) { setcode { { 'row' => 7, 'unit' => \"a\\e[31m\" } } }\nFacter.add(:counter) { setcode { rand.to_s } }\n",
		"modules/demo/lib/facter/odd.rb":    "Facter.add(:odd) { setcode { 'x' * 100_000 } }\n",
		"modules/demo/facts.d/shelf.json":   `{"shelf": "b"}`,
		"environments/dev.yaml":             "trusted: {pp_zone: east}\npuppet: {volatile_facts: [counter]}\n",
		"modules/demo/manifests/nothing.pp": "class demo::nothing { }\n",
	}
	directives := "# fake: fact rack {\"row\":7,\"unit\":\"a\\u001b[31m\"}\n# fake: fact counter \"%{certname}\"\n# fake: fact shelf \"b\"\n# fake: fact odd \"" + strings.Repeat("x", 300<<10) + "\"\n"
	read := func(t *testing.T, r *ran) facts.Published {
		b, err := r.Puppet.Facts()
		if err != nil || len(b) == 0 {
			t.Fatalf("no facts: %v", err)
		}
		p, err := facts.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return []testCase{
		{
			Name: "facts of a run", Files: release, Manifest: motd + directives,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				p := read(t, r)
				for path, want := range map[string]string{
					"rack.row": "7", "rack.unit": `"a\u001b[31m"`, "shelf": `"b"`, "kernel": `"Linux"`, "trusted.extensions.pp_zone": `"east"`,
					"counter": "", "system_uptime": "", "pulley": "", "odd": "",
				} {
					if got := string(p.Find(path)); got != want {
						t.Errorf("fact %s is %.100s, want %s", path, got, want)
					}
				}
				if family := string(p.Find("os.family")); len(family) < 3 || !slices.Equal(p.Cut, []string{"odd"}) {
					t.Errorf("os.family is %s, left out are %q", family, p.Cut)
				}
				before, _ := r.Puppet.Facts()
				if _, err := r.Puppet.Apply(t.Context(), r.Job); err != nil {
					t.Fatal(err)
				}
				if after, err := r.Puppet.Facts(); err != nil || !bytes.Equal(before, after) {
					t.Errorf("a second run has other facts (%v): %v, then %v", err, p.Facts, read(t, r).Facts)
				}
			},
		},
		{
			Name: "facts where nothing runs", Files: release, Manifest: motd + directives,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				before, _ := r.Puppet.Facts()
				file, yesterday := filepath.Join(r.Puppet.Dir, "facts.zst"), time.Now().Add(-25*time.Hour)
				if done, err := r.Puppet.Inquire(t.Context(), r.Job.Identity); done || err != nil {
					t.Errorf("an inquiry follows the run at once: %v", err)
				}
				err := errors.Join(os.Symlink(r.Job.Tree, filepath.Join(r.Puppet.Dir, "current")), os.Chtimes(file, yesterday, yesterday))
				if err != nil {
					t.Fatal(err)
				}
				if done, err := r.Puppet.Inquire(t.Context(), r.Job.Identity); !done || err != nil {
					t.Fatalf("no inquiry after a day: %v", err)
				}
				if after, err := r.Puppet.Facts(); err != nil || !bytes.Equal(before, after) {
					t.Errorf("the inquiry has other facts (%v): %s", err, read(t, r).Facts)
				}
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
				if done, err := r.Puppet.Inquire(t.Context(), r.Job.Identity); done || err != nil {
					t.Errorf("a second inquiry on one day: %v", err)
				}
				old := filepath.Join(r.Puppet.Dir, "facts.tried")
				err = errors.Join(os.Chtimes(old, yesterday, yesterday), os.Remove(filepath.Join(r.Puppet.Dir, "current")))
				if err != nil {
					t.Fatal(err)
				}
				if done, err := r.Puppet.Inquire(t.Context(), r.Job.Identity); !done || err != nil || string(read(t, r).Find("kernel")) != `"Linux"` {
					t.Errorf("without a release: %t, %v", done, err)
				}
				// A node that never had facts, for example a held one, waits a quarter of an hour, not a day.
				if err := errors.Join(os.Remove(file), os.Remove(old)); err != nil {
					t.Fatal(err)
				}
				if done, err := r.Puppet.Inquire(t.Context(), r.Job.Identity); done || err != nil {
					t.Errorf("the first tick of a new node gathers facts: %v", err)
				}
				info, err := os.Stat(old)
				if err != nil || time.Since(info.ModTime()) < 23*time.Hour {
					t.Fatalf("the first inquiry is not due soon: %v, %v", info, err)
				}
				soon := info.ModTime().Add(-16 * time.Minute)
				if err := os.Chtimes(old, soon, soon); err != nil {
					t.Fatal(err)
				}
				if done, err := r.Puppet.Inquire(t.Context(), r.Job.Identity); !done || err != nil {
					t.Errorf("a new node gathers no facts: %v", err)
				}
				if left, _ := os.ReadDir(r.Puppet.RunDir("facts")); len(left) > 0 {
					t.Errorf("the inquiry leaves %v", left)
				}
			},
		},
		{
			Name: "no facts of a noop run", Files: release, Manifest: motd + directives, Noop: true,
			Kind: model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *ran) {
				if b, err := r.Puppet.Facts(); err != nil || b != nil {
					t.Errorf("%d bytes, %v", len(b), err)
				}
			},
		},
	}
}

// externalCases check the classes and variables from an external node classifier, whose answers are files of the release.
func externalCases() []testCase {
	const manifest = `file { '{{dir}}/word': content => "${datacenter} ${lookup('word')}" }
class web(Integer $port = 80) { file { '{{dir}}/port': content => "${port}" } }
class base { file { '{{dir}}/base': content => 'base' } }
# fake: file {{dir}}/word %{external:datacenter} of the east
`
	files := func(name, answer string) map[string]string {
		return map[string]string{
			"hiera.yaml":   "version: 5\ndefaults: {datadir: data, data_hash: yaml_data}\nhierarchy: [{name: a, path: \"%{datacenter}.yaml\"}, {name: b, path: common.yaml}]\n",
			"data/e1.yaml": "word: of the east\n", "data/common.yaml": "word: common\n", "external_nodes/" + name: answer,
			"external_nodes/zzz.yaml": "nonsense",
		}
	}
	const answer = "---\nclasses:\n  web:\n    port: 8080\n  base:\nparameters: {datacenter: e1}\nenvironment: other\n"
	check := func(t *testing.T, r *ran) {
		hasFile(t, r, "word", "e1 of the east")
		hasFile(t, r, "port", "8080")
		hasFile(t, r, "base", "base")
		if r.Unclassified {
			t.Error("the run has no class")
		}
	}
	refused := func(name, answer, problem string) testCase {
		return testCase{
			Name: "external nodes refused " + problem, Files: files(name, answer), Manifest: motd,
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{0}, Problem: problem,
			Check: func(t *testing.T, r *ran) { hasFile(t, r, "motd", "") },
		}
	}
	return []testCase{
		{
			Name: "external nodes", Files: files("web1.yaml", answer), Manifest: manifest + "# fake: file {{dir}}/port 8080\n# fake: file {{dir}}/base base\n# fake: classes web base\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: check,
		},
		{
			Name: "external nodes by default", Files: files("default.yaml", "classes: [base]\nparameters: {datacenter: e1}\n"),
			Manifest: manifest + "# fake: file {{dir}}/base base\n# fake: classes base\n",
			Kind:     model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) { hasFile(t, r, "word", "e1 of the east"); hasFile(t, r, "port", "") },
		},
		refused("web2.yaml", answer, "external_nodes is refused: it has neither web1.yaml nor default.yaml"),
		refused("web1.yaml", "Traceback: no such host", "external_nodes/web1.yaml is refused: "),
		refused("web1.yaml", "oops", "external_nodes/web1.yaml is refused: line 1: it is not a mapping"),
	}
}

// classCases check which catalogs classify nothing, and where stray output goes.
func classCases() []testCase {
	bare := func(want bool) func(t *testing.T, r *ran) {
		return func(t *testing.T, r *ran) {
			if r.Unclassified != want {
				t.Errorf("unclassified %t, want %t", r.Unclassified, want)
			}
		}
	}
	logged := func(t *testing.T, r *ran) {
		t.Helper()
		if !slices.ContainsFunc(r.Log, func(l model.LogLine) bool { return l.Level == "notice" && l.Message == "no such device" }) {
			t.Errorf("log %+v lacks the output of the fact", r.Log)
		}
	}
	const fact = "modules/noise/lib/facter/noise.rb"
	files := map[string]string{fact: "Facter.add(:noise) { setcode { $stderr.puts 'no such device'; 'x' } }\n"}
	return []testCase{
		{
			Name: "no class", Manifest: motd + "node /^web/ { }\nnode 'db1' { include a }\nclass a { }\n# fake: classes __node_regexp__web\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: bare(true),
		},
		{
			Name: "a message and no class", Manifest: motd + "node /^web/ { notify { 'no role': } }\n# fake: classes __node_regexp__web\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: bare(true),
		},
		{
			Name: "no class in a noop run", Manifest: motd + "node web1 { }\n# fake: classes web1\n", Noop: true,
			Kind: model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2}, Check: bare(true),
		},
		{
			Name: "a class", Manifest: motd + "class a { }\nnode default { include a }\n# fake: classes default a\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: bare(false),
		},
		{
			Name: "stray output before a compile error", Manifest: "fail(\"no ${facts['noise']}\")\n# fake: stray no such device\n# fake: compile-error Evaluation Error: no x (file: %{manifest}, line: 1)\n",
			Files: files, Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1}, Problem: "no x",
			Check: func(t *testing.T, r *ran) {
				if strings.Contains(r.Problem.String(), "device") {
					t.Error("the problem is the output of a fact")
				}
				logged(t, r)
			},
		},
		{
			Name: "stray output before a good run", Manifest: motd + "notice($facts['noise'])\n# fake: stray no such device\n",
			Files: files, Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				logged(t, r)
			},
		},
	}
}

// moduleCases check which modules of the machine a run sees: the core types, whatever modulepath the release has, and
// nothing else.
func moduleCases() []testCase {
	core := map[string]string{
		"host_core/lib/puppet/type/split.rb": "Puppet::Type.newtype(:split) { newparam(:name) { isnamevar } }\n",
		"stray/manifests/init.pp":            "class stray { }\n",
	}
	const manifest = motd + "split { 'x': }\nif defined('stray') { fail('a module of the machine') }\n"
	return []testCase{
		{
			Name: "core types", Manifest: manifest, Core: core,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
		},
		{
			Name: "core types with a modulepath", Manifest: manifest, Core: core, Files: map[string]string{"environment.conf": "modulepath = site:modules\n"},
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
		},
		{
			Name: "a node's certificate", Manifest: `$word = [$settings::hostcert, $settings::hostprivkey, $settings::localcacert].filter |$f| { find_file($f) == $f }.length
file { '{{dir}}/word': content => "${word}" }
# fake: file {{dir}}/word 3
`,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: func(t *testing.T, r *ran) { hasFile(t, r, "word", "3") },
		},
		{
			Name: "a missing core type", Manifest: "zpool { 'x': }\n# fake: compile-error Evaluation Error: Error while evaluating a Resource Statement, Unknown resource type: 'zpool'\n",
			Kind: model.Untouched, Outcome: model.Failed, Codes: []int{1}, Problem: "a core type of Puppet is missing on the machine",
		},
		{
			Name: "no module of the machine", Manifest: "include stray\n# fake: compile-error Could not find class ::stray for web1\n", Core: core,
			Files: map[string]string{"environment.conf": "modulepath = modules:$codedir/modules:$basemodulepath\n"},
			Kind:  model.Untouched, Outcome: model.Failed, Codes: []int{1}, Problem: "Could not find class ::stray",
		},
	}
}

const wordManifest = `file { '{{dir}}/word': content => lookup('word') }
# fake: file {{dir}}/word %{data:word,}
`

// releaseData returns a hierarchy of the release: its own value first, then Pulley's node layer. The folder is part of
// the path, because Puppet checks whether a datadir is relative before it interpolates it.
func releaseData(settings string) map[string]string {
	return map[string]string{
		"pulley.yaml": settings,
		"hiera.yaml": `version: 5
hierarchy:
  - {name: own, path: own.yaml, datadir: data}
  - {name: live, path: "%{facts.pulley.data}/node.yaml"}
`,
		"data/own.yaml": "word: release\n",
	}
}

func hasFile(t *testing.T, r *ran, name, want string) {
	t.Helper()
	if got := r.file(name); got != want {
		t.Errorf("file %s has %q, want %q", name, got, want)
	}
}

// explains checks that `puppet lookup --explain` with the run's settings names the layer.
func explains(t *testing.T, r *ran, key, want string) {
	t.Helper()
	cmd, err := r.Puppet.Command(r.Job, "lookup", key, "--explain")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(t.Context()); err != nil || !strings.Contains(out.String(), want) {
		t.Errorf("lookup --explain (%v) does not say %s:\n%s", err, want, &out)
	}
}

const refuseStale = `if $facts['stale'] { fail('a stale fact') }
# fake: refuse-fact stale a stale fact
`

// staleFact creates a fact that an old puppet agent synchronised.
func staleFact(t *testing.T, m machine) {
	write(t, filepath.Join(m.Vardir, "lib", "facter", "stale.rb"), "Facter.add('stale') { setcode { 'old' } }\n")
	write(t, filepath.Join(m.Vardir, "facts.d", "stale.txt"), "stale=old\n")
}

// spoil gives the machine facts, data and a module of its own, and this process variables that change a Puppet.
func spoil(t *testing.T, m machine) {
	staleFact(t, m)
	write(t, filepath.Join(m.Confdir, "hiera.yaml"), "version: 5\nhierarchy: [{name: machine, path: machine.yaml, datadir: "+m.Confdir+"}]\n")
	write(t, filepath.Join(m.Confdir, "machine.yaml"), "word: machine\n")
	write(t, filepath.Join(m.Confdir, "code", "modules", "stray", "manifests", "init.pp"), "class stray { }\n")
	t.Setenv("FACTER_stale", "old")
	t.Setenv("RUBYOPT", "-rno_such_library")
}

// leaks proves that the hermetic cases can fail: the same settings do reach a Puppet with default options.
func leaks(t *testing.T, m machine) {
	dir := t.TempDir()
	manifest := filepath.Join(dir, "environments", "dev", "manifests", "site.pp")
	apply := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), m.Program, "apply", "--environmentpath", filepath.Join(dir, "environments"),
			"--environment", "dev", "--detailed-exitcodes", "-e", "")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	write(t, filepath.Join(m.Confdir, "puppet.conf"), "[main]\nnoop = true\ncertname = other.example\n")
	write(t, manifest, strings.ReplaceAll(motd, "{{dir}}", dir))
	out, err := apply()
	if _, missing := os.Stat(filepath.Join(dir, "motd")); missing == nil || !strings.Contains(out, "catalog for other.example") {
		t.Errorf("the machine's noop and certname do not show (%v):\n%s", err, out)
	}
	staleFact(t, m)
	write(t, manifest, refuseStale)
	if out, err := apply(); err == nil || !strings.Contains(out, "a stale fact") {
		t.Errorf("the machine's old facts do not show (%v):\n%s", err, out)
	}
	t.Setenv("FACTER_stale", "old")
	if err := os.RemoveAll(filepath.Join(m.Vardir, "lib")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(m.Vardir, "facts.d")); err != nil {
		t.Fatal(err)
	}
	if out, err := apply(); err == nil || !strings.Contains(out, "a stale fact") {
		t.Errorf("the environment's facts do not show (%v):\n%s", err, out)
	}
}
