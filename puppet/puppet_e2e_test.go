//go:build e2e

package puppet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/hieradata"
	"pulley/puppet"
)

// starter writes the repository as an environment "dev" and returns the folder that holds it.
func starter(t *testing.T) string {
	t.Helper()
	environments := t.TempDir()
	repo := filepath.Join(environments, "dev")
	if err := os.CopyFS(repo, puppet.Repo()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(repo, "hieradata"), hieradata.Sample()); err != nil {
		t.Fatal(err)
	}
	return environments
}

// run starts Puppet with settings and folders of its own.
func run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	private := t.TempDir()
	args = append(args, "--confdir", filepath.Join(private, "conf"), "--vardir", filepath.Join(private, "var"), "--color=false")
	cmd := exec.CommandContext(ctx, "puppet", args...)
	cmd.WaitDelay = 10 * time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("install Puppet: %v", err)
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

// Without it, the first thing that a new user publishes might not even parse.
func TestManifestsParse(t *testing.T) {
	environments := starter(t)
	var manifests []string
	err := fs.WalkDir(puppet.Repo(), ".", func(name string, d fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".pp") {
			manifests = append(manifests, filepath.Join(environments, "dev", name))
		}
		return err
	})
	if err != nil || len(manifests) < 6 {
		t.Fatalf("%v, %v", manifests, err)
	}
	if out, problems, code := run(t, append([]string{"parser", "validate"}, manifests...)...); code != 0 {
		t.Errorf("exit %d\n%s%s", code, out, problems)
	}
}

// Without it, a node of the sample environment would not compile, or one without a role would not say why.
func TestStarterAppliesToItsNodes(t *testing.T) {
	environments := starter(t)
	for _, c := range []struct{ certname, role, says string }{
		{"controller1", "controller", "Noop"},
		{"controller12-t42", "controller", "Noop"},
		{"compute1", "compute", "Noop"},
		{"printer1", "printer", "matches printer1: give it a role there"},
	} {
		t.Run(c.certname, func(t *testing.T) {
			out, problems, code := run(t, "apply", "--noop", "--test", "--environmentpath", environments, "--environment", "dev",
				"--certname", c.certname, filepath.Join(environments, "dev", "manifests"))
			want := c.says == "Noop"
			if compiled := code == 0; compiled != want {
				t.Errorf("exit %d\n%s%s", code, out, problems)
			}
			if want && !strings.Contains(out, "/etc/pulley-demo/motd") || !want && !strings.Contains(problems, c.says) {
				t.Errorf("Puppet did not say so:\n%s%s", out, problems)
			}
		})
	}
}

// resources compiles a node's catalog and returns the parameters of its resources by title.
func resources(t *testing.T, environments, certname, role string) map[string]map[string]any {
	t.Helper()
	facts := filepath.Join(t.TempDir(), "facts.d")
	if err := os.MkdirAll(facts, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(facts, "pulley.json"), []byte(`{"pulley":{"role":"`+role+`"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	out, problems, code := run(t, "catalog", "compile", certname, "--certname", certname, "--pluginfactdest", facts,
		"--environmentpath", environments, "--environment", "dev", "--render-as", "json")
	if code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, problems)
	}
	var catalog struct {
		Resources []struct {
			Title      string
			Parameters map[string]any
		}
	}
	_, body, found := strings.Cut(out, "{")
	if !found || json.Unmarshal([]byte("{"+body), &catalog) != nil {
		t.Fatalf("not a catalog:\n%s", out)
	}
	all := map[string]map[string]any{}
	for _, r := range catalog.Resources {
		all[r.Title] = r.Parameters
	}
	return all
}

// Without it, data of nodes and roles would silently not be found.
func TestHieradataReachesNodes(t *testing.T) {
	environments := starter(t)
	for _, c := range []struct{ certname, role, motd string }{
		{"controller1", "controller", "A controller, kept by Pulley\nthe first controller\n"},
		{"controller2", "controller", "A controller, kept by Pulley\n"},
		{"compute1", "compute", "A compute node, kept by Pulley\n"},
		{"compute1", "unheard-of", "Kept by Pulley\n"},
	} {
		motd := resources(t, environments, c.certname, c.role)["/etc/pulley-demo/motd"]
		if motd["content"] != c.motd {
			t.Errorf("%s as %s: %q, want %q", c.certname, c.role, motd["content"], c.motd)
		}
	}
}

// Without it, a change of keys would not reach the nodes, or one line of data would leave a fleet without a trusted signer.
func TestSignersTravelAsARelease(t *testing.T) {
	const alice = "alice@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm8Y7cAjAOJKk1UyHSV1vTM9WKTVQkTNBXEdUDX9LBb"
	environments := starter(t)
	common := filepath.Join(environments, "dev", "hieradata", "common.yaml")
	sample, err := os.ReadFile(common)
	if err != nil {
		t.Fatal(err)
	}
	say := func(data string) {
		t.Helper()
		if err := os.WriteFile(common, []byte(string(sample)+"\n"+data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ data, allowed, revoked string }{
		{"", "", ""},
		{"pulley::allowed_signers: |\n  # who may sign\n  " + alice + "\n", "# who may sign\n" + alice + "\n", ""},
		{"pulley::allowed_signers: '" + alice + "'\npulley::revoked_signers: \"k1\\nk2\"\n", alice + "\n", "k1\nk2\n"},
	} {
		say(c.data)
		all := resources(t, environments, "compute1", "compute")
		for path, want := range map[string]string{"/etc/pulley/allowed_signers": c.allowed, "/etc/pulley/revoked_signers": c.revoked} {
			file, managed := all[path]
			if managed != (want != "") || managed && (file["content"] != want || file["mode"] != "0644" || file["owner"] != "root") {
				t.Errorf("%q: %s is %v, should hold %q", c.data, path, file, want)
			}
		}
	}
	say("pulley::revoked_signers: ''\n")
	if got, managed := resources(t, environments, "compute1", "compute")["/etc/pulley/revoked_signers"]; !managed || got["content"] != "" {
		t.Errorf("no key is revoked any more: %v", got)
	}
	for _, empty := range []string{"''", "|\n  # later\n"} {
		say("pulley::allowed_signers: " + empty)
		if _, problems, code := run(t, "catalog", "compile", "compute1", "--certname", "compute1", "--environmentpath", environments, "--environment", "dev"); code == 0 || !strings.Contains(problems, "allowed_signers") {
			t.Errorf("a list without a signer (%s) is accepted: exit %d\n%s", empty, code, problems)
		}
	}
}

// Without it, the schedule might never start the agent, lose its output, or end it in the middle of a run; or no node of a team whose own
// code installs cron would compile.
func TestCronLineRuns(t *testing.T) {
	environments := starter(t)
	if err := os.WriteFile(filepath.Join(environments, "dev", "manifests", "own.pp"), []byte("package { ['cron', 'cronie']: }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	content, _ := resources(t, environments, "compute1", "compute")["/etc/cron.d/pulley-agent"]["content"].(string)
	lines := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
	if !strings.HasSuffix(content, "\n") || len(lines) != 4 || lines[1] != "SHELL=/bin/bash" || !strings.HasPrefix(lines[2], "PATH=/usr/local/sbin:/usr/local/bin:") {
		t.Fatalf("not what cron reads:\n%s", content)
	}
	command, scheduled := strings.CutPrefix(lines[3], "*/5 * * * * root ")
	if !scheduled {
		t.Fatalf("not on schedule: %s", lines[3])
	}

	bin := t.TempDir()
	write := func(name, script string) string {
		path := filepath.Join(bin, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	agent := write("agent", "echo \"ran $*\"; sleep 0.2; echo complained >&2; exit 3\n")
	command = strings.Replace(command, "/usr/local/bin/pulley-agent", agent, 1)
	logged := filepath.Join(bin, "logged")
	for name, logger := range map[string]string{
		"logged":      "echo \"as $*\" >'" + logged + "'; cat >>'" + logged + "'\n",
		"no syslog":   "exit 1\n",
		"logger dies": "read line; echo \"$line\"; exit 1\n",
	} {
		write("logger", logger)
		cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", command)
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("%s: the agent's exit code is lost: %v", name, err)
		}
		if name == "logged" {
			if out, err = os.ReadFile(logged); err != nil || !strings.HasPrefix(string(out), "as -t pulley-agent\n") {
				t.Errorf("%s: %q, %v", name, out, err)
			}
		}
		if !strings.HasSuffix(string(out), "ran run --splay\ncomplained\n") {
			t.Errorf("%s: output is lost: %q", name, out)
		}
	}
}

// A release whose schedule cron does not start is the last that a node runs.
func TestClassRefusesSchedulesThatCronDoesNotStart(t *testing.T) {
	modules := filepath.Join(starter(t), "dev", "modules")
	manifest := filepath.Join(t.TempDir(), "schedules.pp")
	text := "class { 'pulley': schedule => '99 99 * * *' }\n"
	want := map[string]bool{
		"*/5 * * * *": true, "0-59/10 8,20 * JAN-MAR mon": true, "0 3 * * 7": true, "@hourly": true, "99 99 * * *": false, "60 * * * *": false,
		"* 24 * * *": false, "* * 32 * *": false, "* * * 13 *": false, "* * * * 8": false, "5/10 * * * *": false, "* * * *": false, "@reboot": false,
	}
	for schedule, valid := range want {
		text = fmt.Sprintf("unless pulley::valid_schedule('%s') == %t { notice('wrong: %s') }\n", schedule, valid, schedule) + text
	}
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, problems, code := run(t, "apply", "--noop", "--modulepath", modules, manifest)
	if code == 0 || !strings.Contains(problems, "pulley::schedule 99 99 * * *: cron would not start the agent") || strings.Contains(out+problems, "wrong: ") {
		t.Errorf("exit %d\n%s%s", code, out, problems)
	}
}
