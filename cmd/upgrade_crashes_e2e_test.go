//go:build e2e

package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pulley/agent/upgrade"
)

// TestUpgradeCrashes proves that after a power cut, an OOM kill or a reboot at any point of the agent's upgrade, one
// complete agent is in place. The next runs must end like those of an agent that did not die.
func TestUpgradeCrashes(t *testing.T) {
	t.Parallel()
	f := newCrashFleet(t)
	var names []string
	places := map[string]string{}
	for i, place := range upgrade.CrashPoints {
		name := fmt.Sprintf("good%d", i+2)
		names, places[name] = append(names, name), place
	}
	f.write("crash.yaml", fmt.Sprintf("roles:\n  good: {cardinality: %d, flavor: bare-metal}\n", len(names)+1))
	f.must("pulley", "env", "apply", "crash.yaml")
	f.must("pulley", "init", "R")
	if err := os.RemoveAll(filepath.Join(f.dir, "R", "validate.d")); err != nil {
		t.Fatal(err)
	}
	f.write("R/manifests/site.pp", "node default { }\n")
	f.must("pulley", "publish", "R", "--version", "1.0.0", "--no-puppet")
	f.must("pulley", "promote", "1.0.0", "--foreign")
	for _, name := range append([]string{"good1"}, names...) {
		f.join(name)
		f.write(name+"/etc/pulley/agent.yaml", f.read(name+"/etc/pulley/agent.yaml")+"upgrade: {probation: 1ms}\n")
		install(t, "1.0.0", f.installed(name))
	}
	install(t, "1.1.0", filepath.Join(f.dir, "new", "pulley-agent"))
	f.must("pulley", "agents", "publish", filepath.Join("new", "pulley-agent"))
	f.must("pulley", "agents", "promote", "1.1.0")
	f.upgrade(t, "good1")
	want := f.upgraded(t, "good1")
	for _, name := range names {
		t.Run(places[name], func(t *testing.T) {
			f.dieUpgrading(t, name, places[name])
			if out, err := exec.Command(f.installed(name), "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), "version 1.") {
				t.Fatalf("after the crash no agent is in place: %s, %v", out, err)
			}
			f.upgrade(t, name)
			if got := f.upgraded(t, name); got != want {
				t.Errorf("with the crash:\n%s\nwithout it:\n%s", got, want)
			}
		})
	}
}

// install writes a pulley-agent of this version.
func install(t *testing.T, version, to string) {
	t.Helper()
	b, err := agentOf(version, "")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (f *crashFleet) installed(node string) string {
	return filepath.Join(f.dir, node, "usr", "local", "bin", "pulley-agent")
}

func (f *crashFleet) read(name string) string {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// runInstalled runs the agent in place once.
func (f *crashFleet) runInstalled(node string, env ...string) (string, error) {
	cmd := exec.Command(f.installed(node), "run", "--root", node)
	cmd.Dir, cmd.Env = f.dir, append(append([]string(nil), f.env...), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// upgrade runs a node's agent until its upgrade is complete.
func (f *crashFleet) upgrade(t *testing.T, node string) {
	t.Helper()
	left := 12
	for done := 0; done < 2 && left > 0; left-- { // two more runs tidy the folder and report
		out, err := f.runInstalled(node)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if version, err := exec.Command(f.installed(node), "--version").Output(); err == nil && strings.Contains(string(version), "1.1.0") {
			done++
		}
	}
}

// dieUpgrading runs a node's agent until it dies, and checks that it died at this place by SIGKILL.
func (f *crashFleet) dieUpgrading(t *testing.T, node, place string) {
	t.Helper()
	for range 10 {
		out, err := f.runInstalled(node, "PULLEY_FAILPOINT="+place)
		if err == nil {
			continue
		}
		if !killed(err) {
			t.Fatalf("the agent was not killed at %s: %v\n%s", place, err, out)
		}
		return
	}
	t.Fatalf("it never died")
}

// upgraded returns the upgrade state of a node's agent, without times.
func (f *crashFleet) upgraded(t *testing.T, node string) string {
	t.Helper()
	out, err := exec.Command(f.installed(node), "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("no agent is in place: %v\n%s", err, out)
	}
	before, err := exec.Command(filepath.Join(f.dir, node, "var/lib/pulley/agent/previous"), "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("no agent is kept: %v\n%s", err, before)
	}
	shown := f.must("pulley-agent", "upgrade", "--root", node)
	files, err := filepath.Glob(filepath.Join(f.dir, node, "var/lib/pulley/agent/*"))
	if err != nil {
		t.Fatal(err)
	}
	beside, err := filepath.Glob(filepath.Join(f.dir, node, "usr/local/bin/.*"))
	if err != nil {
		t.Fatal(err)
	}
	agents := f.must("pulley", "agents", "show")
	_, line, _ := strings.Cut(agents, "\n"+node+" ")
	line, _, _ = strings.Cut(line, "\n")
	all := fmt.Sprintf("in place %sbefore %s%s%q %q\n%s", out, before, volatile.ReplaceAllString(shown, "…"), files, beside, strings.Join(strings.Fields(line), " "))
	return strings.ReplaceAll(all, "/"+node+"/", "/NODE/")
}
