package puppettest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pulley/agent"
)

// hermeticCases are the cases about the machine's own settings and files that could reach a run, and about live data.
func hermeticCases() []Case {
	applied := func(t *testing.T, r *Ran) {
		if r.File("motd") != "hello" {
			t.Errorf("motd is %q: the release was not applied", r.File("motd"))
		}
	}
	success := func(c Case) Case {
		c.Kind, c.Outcome, c.Codes = agent.Success, agent.Changed, []int{2}
		if c.Manifest == "" {
			c.Manifest, c.Check = motd, applied
		}
		return c
	}
	return []Case{
		success(Case{Name: "the machine's noop", Conf: "[main]\nnoop = true\n"}),
		success(Case{Name: "the machine's tags", Conf: "[main]\ntags = nothing\n"}),
		success(Case{Name: "the machine's postrun_command", Conf: "[main]\npostrun_command = /bin/false\n"}),
		success(Case{
			Name: "the machine's certname and environment", Conf: "[main]\ncertname = other.example\nenvironment = other\n",
			Manifest: `file { '{{dir}}/who': content => "${trusted['certname']} ${environment} ${facts['pulley']['role']} ${facts['pulley']['release']} ${facts['pulley']['generation']}" }
# fake: file {{dir}}/who %{certname} %{env} %{fact:role} %{fact:release} %{fact:generation}
`,
			Check: func(t *testing.T, r *Ran) {
				if who := r.File("who"); who != "web1 dev web 1.4.0 12" {
					t.Errorf("Puppet saw %q, want web1 dev web 1.4.0 12", who)
				}
			},
		}),
		success(Case{
			Name: "the machine's pluginsynced facts", Spoil: staleFact, Manifest: refuseStale + motd, Check: applied,
		}),
		success(Case{
			Name: "the agent's environment variables", Manifest: refuseStale + motd, Check: applied,
			Spoil: func(t *testing.T, _ Machine) {
				t.Setenv("FACTER_stale", "old")
				t.Setenv("RUBYOPT", "-rno_such_library")
			},
		}),
		success(Case{
			Name: "the machine's hiera.yaml and modules",
			Spoil: func(t *testing.T, m Machine) {
				write(t, filepath.Join(m.Confdir, "hiera.yaml"), "version: 5\nhierarchy: [{name: machine, path: machine.yaml, datadir: "+m.Confdir+"}]\n")
				write(t, filepath.Join(m.Confdir, "machine.yaml"), "word: machine\n")
				write(t, filepath.Join(m.Confdir, "code", "modules", "stray", "manifests", "init.pp"), "class stray { }\n")
			},
			Manifest: `if defined('stray') { fail('a stray module') }
file { '{{dir}}/word': content => lookup('word', default_value => 'none') }
# fake: file {{dir}}/word %{data:word,none}
`,
			Check: wordIs("none"),
		}),
		success(Case{
			Name: "live data above the release's own", Files: releaseData("", "release"),
			Data: map[string]string{"common": "word: common\n", "role": "word: role\n"}, Manifest: wordManifest,
			Check: func(t *testing.T, r *Ran) {
				wordIs("role")(t, r)
				explains(t, r, `Hierarchy entry "Pulley role layer"`)
			},
		}),
		success(Case{
			Name: "live data where the release wants it", Data: map[string]string{"node": "word: node\n"}, Manifest: wordManifest,
			Files: releaseData("live_data: hierarchy\n", "release"), Check: wordIs("release"),
		}),
		success(Case{
			Name: "live data within the release's hierarchy", Data: map[string]string{"node": "word: node\n"}, Manifest: wordManifest,
			Files: releaseData("live_data: hierarchy\n", ""),
			Check: func(t *testing.T, r *Ran) {
				wordIs("node")(t, r)
				explains(t, r, `Found key: "word" value: "node"`) // lookup uses the node's own facts, without --node
			},
		}),
		{
			Name: "a Puppet with a postrun_command that fails", Extra: []string{"--postrun_command", "/bin/false"}, Manifest: motd,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{1}, Problem: "postrun_command", Check: applied,
		},
		{
			Name: "a Puppet that runs noop unasked", Extra: []string{"--noop"}, Manifest: motd,
			Kind: agent.Between, Outcome: agent.Failed, Codes: []int{0, 2}, Problem: "noop",
		},
	}
}

const wordManifest = `file { '{{dir}}/word': content => lookup('word') }
# fake: file {{dir}}/word %{data:word,}
`

// releaseData returns a hierarchy of the release: its own value first, then Pulley's node layer. The folder is part of
// the path, because Puppet checks whether a datadir is relative before it interpolates it.
func releaseData(settings, word string) map[string]string {
	files := map[string]string{
		"pulley.yaml": settings,
		"hiera.yaml": `version: 5
hierarchy:
  - {name: own, path: own.yaml, datadir: data}
  - {name: live, path: "%{facts.pulley.data}/node.yaml"}
`,
		"data/own.yaml": "other: 1\n",
	}
	if word != "" {
		files["data/own.yaml"] = "word: " + word + "\n"
	}
	return files
}

func wordIs(want string) func(t *testing.T, r *Ran) {
	return func(t *testing.T, r *Ran) {
		if got := r.File("word"); got != want {
			t.Errorf("lookup('word') is %q, want %q", got, want)
		}
	}
}

// explains checks that `puppet lookup --explain` with the run's settings names the layer.
func explains(t *testing.T, r *Ran, want string) {
	cmd, err := r.Puppet.Command(t.Context(), r.Job, "lookup", "word", "--explain")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), want) {
		t.Errorf("lookup --explain (%v) does not say %s:\n%s", err, want, &out)
	}
}

const refuseStale = `if $facts['stale'] { fail('a stale fact') }
# fake: refuse-fact stale a stale fact
`

// staleFact creates a fact that an old puppet agent synchronised.
func staleFact(t *testing.T, m Machine) {
	write(t, filepath.Join(m.Vardir, "lib", "facter", "stale.rb"), "Facter.add('stale') { setcode { 'old' } }\n")
	write(t, filepath.Join(m.Vardir, "facts.d", "stale.txt"), "stale=old\n")
}

// leaks proves that the hermetic cases can fail: the same settings do reach a Puppet with default options.
func leaks(t *testing.T, m Machine) {
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
