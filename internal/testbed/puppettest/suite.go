package puppettest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/agent/puppet"
)

// Machine is a Puppet with the settings of the machine's own Puppet, which a case may modify.
type Machine struct {
	Program string        // starts Puppet
	Confdir string        // the machine's own confdir: the default source of puppet.conf
	Vardir  string        // the machine's own vardir
	Boot    time.Duration // ample time for Puppet to reach the middle of a catalog
	Grace   time.Duration // ample time for Puppet to exit after a signal
}

// Case is one row of the contract.
type Case struct {
	Name     string
	Manifest string            // site.pp, with directives for the fake; {{dir}}: scratch folder, {{own}}: see own
	Files    map[string]string // further files of the release
	Data     map[string]string // live data: layer → YAML
	Extra    []string          // arguments that the machine appends, to simulate a wrong Puppet
	Conf     string            // the machine's own puppet.conf
	Spoil    func(t *testing.T, m Machine)
	Noop     bool
	Strike   bool // the deadline ends the run in the middle
	Stop     bool // the agent is stopped in the middle
	Applying bool // the middle begins when motd exists

	Kind    agent.Kind
	Outcome agent.Outcome
	Codes   []int  // the valid exit codes
	Problem string // a substring of the problem; "": no problem
	Check   func(t *testing.T, r *Ran)
}

// Ran is a case and the result of its run.
type Ran struct {
	agent.Result
	Dir    string // the scratch folder
	Puppet *puppet.Puppet
	Job    agent.Job
	Stdout string
	Took   time.Duration
	Boot   time.Duration // its machine's
}

// File returns the content of a file in the scratch folder, or "" if it is missing.
func (r *Ran) File(name string) string {
	text, _ := os.ReadFile(filepath.Join(r.Dir, name))
	return string(text)
}

// Suite runs the contract on the Puppets from newMachine.
func Suite(t *testing.T, newMachine func(t *testing.T, extra ...string) Machine) {
	t.Run("what_is_spoiled_does_reach_a_Puppet", func(t *testing.T) { leaks(t, newMachine(t)) })
	for _, c := range Cases() {
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			if c.Spoil == nil { // a case that modifies the environment of this process runs alone
				t.Parallel()
			}
			m := newMachine(t, c.Extra...)
			r := c.apply(t, m)
			for boot := 2 * m.Boot; c.Applying && r.File("motd") == "" && boot < time.Minute; boot *= 2 { // on a busy machine
				m = newMachine(t, c.Extra...)
				m.Boot = boot
				r = c.apply(t, m)
			}
			if r.Kind != c.Kind || r.Outcome != c.Outcome {
				t.Errorf("kind %q outcome %q, want %q %q", r.Kind, r.Outcome, c.Kind, c.Outcome)
			}
			right := false
			for _, code := range c.Codes {
				right = right || code == r.ExitCode
			}
			if !right {
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
func (c Case) apply(t *testing.T, m Machine) *Ran {
	t.Helper()
	r := &Ran{Dir: t.TempDir()}
	base := t.TempDir()
	write(t, filepath.Join(base, "tree", "manifests", "site.pp"), strings.NewReplacer("{{dir}}", r.Dir, "{{own}}", own()).Replace(c.Manifest))
	for name, text := range c.Files {
		write(t, filepath.Join(base, "tree", name), text)
	}
	data := ""
	for name, text := range c.Data {
		data = filepath.Join(base, "data")
		write(t, filepath.Join(data, name+".yaml"), text)
	}
	if c.Conf != "" {
		write(t, filepath.Join(m.Confdir, "puppet.conf"), c.Conf)
	}
	if c.Spoil != nil {
		c.Spoil(t, m)
	}
	var out bytes.Buffer
	r.Puppet = &puppet.Puppet{
		Program: m.Program, Dir: filepath.Join(base, "state"), Grace: m.Grace,
		StateDirs: []string{filepath.Join(m.Vardir, "state")}, Stdout: &out,
	}
	r.Job = agent.Job{
		Identity: agent.Identity{Node: "web1", Certname: "web1", Role: "web", Environment: "dev@t1", PuppetEnvironment: "dev"},
		ID:       "20260101T000000Z-1", Target: agent.Target{Release: "1.4.0", Tree: "00", Data: 12},
		Tree: filepath.Join(base, "tree"), Data: data, Noop: c.Noop,
	}
	ctx := t.Context()
	if c.Strike {
		r.Job.Deadline = m.Boot
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
