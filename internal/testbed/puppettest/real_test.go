//go:build e2e

package puppettest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/puppet"
)

// The agent judges runs by Puppet's documented behaviour. A Puppet with other behaviour would make the agent commit a
// target that was never applied. PULLEY_TEST_PUPPET is the path of another Puppet than the installed one. A run of Puppet costs
// seconds: the variants run where PULLEY_TEST_CONTRACT is "all".
func TestReal(t *testing.T) {
	program, err := exec.LookPath(cmp.Or(os.Getenv("PULLEY_TEST_PUPPET"), "puppet"))
	if err != nil {
		t.Fatal("there is no Puppet here: apt-get install puppet-agent")
	}
	if os.Geteuid() != 0 {
		t.Fatal("only root can give Puppet a machine of its own: run as root")
	}
	without := variants
	if os.Getenv("PULLEY_TEST_CONTRACT") == "all" {
		without = nil
	}
	conf, vardir := printed(t, program, "confdir"), printed(t, program, "vardir")
	suite(t, func(t *testing.T, extra ...string) machine {
		dir := t.TempDir()
		m := machine{Program: filepath.Join(dir, "puppet"), Confdir: filepath.Join(dir, "etc"), Vardir: filepath.Join(dir, "var"), Boot: 6 * time.Second, Grace: 10 * time.Second}
		write(t, filepath.Join(m.Confdir, "puppet.conf"), "[main]\n")
		write(t, filepath.Join(m.Vardir, "state", "keep"), "")
		for i := range extra {
			extra[i] = "'" + extra[i] + "'"
		}
		// A mount namespace lets the test change the machine's own settings. Each step execs the next, so that the
		// started process becomes Puppet.
		script := "#!/bin/sh\nexec unshare -m sh -c 'mount --bind \"$1\" " + conf + " && mount --bind \"$2\" " + vardir +
			" && shift 2 && exec " + program + " \"$@\"' sh '" + m.Confdir + "' '" + m.Vardir + "' \"$@\" " + strings.Join(extra, " ") + "\n"
		if err := os.WriteFile(m.Program, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		return m
	}, realCases(), without)
}

// variants are cases in which Puppet behaves as in another case of the same kind.
var variants = []string{
	"no matching node", "override of the wrong type", "compile error after a lot of output", "stray output before a compile error",
	"failed restart", "missing report", "a resource under noop", "without a tag",
	"noop job of a release that insists", "no facts of a noop run", "no report of a noop run", "no class in a noop run",
	"a message and no class", "a class", "external nodes by default", "trusted extensions that nobody supplies",
	"config_version needs the git folder", "no config_version", "wrong report processors of the release",
	"a Puppet with a postrun_command that fails", "a Puppet that runs noop unasked", "core types",
	"services of a machine that replaced no agent", "stray output before a good run",
}

// printed returns one of Puppet's settings.
func printed(t *testing.T, program, name string) string {
	t.Helper()
	out, err := exec.Command(program, "config", "print", name).Output()
	if err != nil {
		t.Fatalf("cannot ask Puppet for its %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// realCases are about Puppet's types and plug-ins, which the fake does not have.
func realCases() []testCase {
	backup := func(kept bool) func(t *testing.T, r *ran) {
		return func(t *testing.T, r *ran) {
			write(t, filepath.Join(r.Dir, "motd"), "the old contents")
			again, err := r.Puppet.Apply(t.Context(), r.Job)
			if err != nil || again.Outcome != model.Changed || r.file("motd") != "hello" {
				t.Fatalf("%+v, %v", again, err)
			}
			found := false
			_ = filepath.WalkDir(filepath.Join(r.Puppet.Dir, "puppet", "var"), func(path string, _ os.DirEntry, _ error) error {
				text, _ := os.ReadFile(path)
				found = found || strings.Contains(string(text), "the old contents")
				return nil
			})
			if found != kept {
				t.Errorf("the old contents are in a bucket: %t, want %t", found, kept)
			}
		}
	}
	installed := func() bool {
		_, err := os.Stat("/usr/share/puppet/modules/cron_core")
		return err == nil
	}
	before := installed()
	bucket := "filebucket { 'main': server => 'puppet.invalid', path => false }\nFile { backup => 'main' }\n"
	return []testCase{
		{
			Name: "the bucket of a server", Manifest: bucket + motd,
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: backup(true),
		},
		{
			Name: "no bucket of a secret", Manifest: bucket + "file { '{{dir}}/motd': content => Sensitive('hello') }\n",
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2}, Check: backup(false),
		},
		{
			Name: "no bucket where the release has secrets", Manifest: bucket + motd,
			Files: map[string]string{"hiera.yaml": "version: 5\nhierarchy:\n  - {name: secrets, lookup_key: eyaml_lookup_key, path: x.eyaml}\n"},
			Kind:  model.Success, Outcome: model.Changed, Codes: []int{2}, Check: backup(false),
		},
		{
			Name: "the service of a replaced agent", StaysOff: []string{"puppet"},
			Manifest: "service { ['puppet', 'other']: ensure => running, provider => base, status => '/bin/false', start => '/bin/true' }\n",
			Kind:     model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				if r.Counts.Pending != 1 || r.Counts.Changed != 1 {
					t.Errorf("counts %+v, want one pending service and one changed", r.Counts)
				}
			},
		},
		{
			Name:     "services of a machine that replaced no agent",
			Manifest: "service { 'x': ensure => running, provider => base, status => '/bin/false', start => '/bin/true' }\n",
			Kind:     model.Success, Outcome: model.Changed, Codes: []int{2},
		},
		{
			Name: "noop of a release with a split core type", Noop: true, Types: &puppet.Installer{},
			Manifest: "cron { 'x': command => '/bin/true', user => 'root' }\n",
			Kind:     model.Untouched, Outcome: model.Unchanged, Codes: []int{0, 2},
			Check: func(t *testing.T, r *ran) {
				left, _ := filepath.Glob(filepath.Join(r.Puppet.Dir, "puppet", "types-*"))
				if installed() != before || len(left) > 0 || r.Counts.OutOfSync != 1 {
					t.Errorf("the type was installed %t, is installed %t, left: %q, counts %+v", before, installed(), left, r.Counts)
				}
			},
		},
		{
			Name: "a report processor of a module", Manifest: motd, Listener: &listener{}, Reports: []string{"mine"},
			Files: map[string]string{"modules/mine/lib/puppet/reports/mine.rb": `require 'puppet'
Puppet::Reports.register_report(:mine) do
  def process
    File.write(File.read(File.join(Puppet[:confdir], 'mine.yaml')), "#{host} #{status}")
  end
end
`},
			Spoil: func(t *testing.T, m machine) {
				write(t, filepath.Join(m.Confdir, "mine.yaml"), filepath.Join(m.Confdir, "sent"))
			},
			Kind: model.Success, Outcome: model.Changed, Codes: []int{2},
			Check: func(t *testing.T, r *ran) {
				r.Puppet.SendReports(t.Context())
				text, err := os.ReadFile(filepath.Join(r.Puppet.ConfDirs[0], "sent"))
				if err != nil || string(text) != "web1 changed" || r.waiting(t) != 0 {
					t.Errorf("the module's processor wrote %q (%v); %d reports wait", text, err, r.waiting(t))
				}
			},
		},
	}
}
