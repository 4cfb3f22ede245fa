//go:build e2e

package demo

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// `make demo` in a new checkout must succeed, and leave the computer unchanged.
func TestDemoPlaysThroughAndLeavesNothing(t *testing.T) {
	before := hashEtc(t)
	d := startDemo(t)
	began := time.Now()
	d.eventually(t, "the fleet is up for playing", func() bool { return strings.Contains(d.output.String(), "Logs: tail") })
	t.Logf("the story took %.1f s", time.Since(began).Seconds())
	d.remember(t)
	for _, want := range []string{"10 of 10", "server compute2", "not found", "compute1: failed: its run failed", "it paused by itself: 1 node failed", "reverted", "Every step succeeded"} {
		if !strings.Contains(d.output.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, d.output.String())
		}
	}
	lines := strings.Split(d.output.String(), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasSuffix(l, "# compute1") && strings.Contains(l, "nsenter") })
	enter, _, _ := strings.Cut(lines[i], "#")
	enterArgs := append(strings.Fields(enter)[1:], "hostname")
	if out, err := exec.Command("nsenter", enterArgs...).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "compute1" {
		t.Errorf("the printed command for compute1 leads to %q, %v", out, err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, d.output.String())
	}
	d.leftNothing(t)
	if after := hashEtc(t); after != before {
		t.Error("a file below /etc was changed")
	}
}

// A stopped demo must need no cleanup.
func TestDemoLeavesNothingHoweverItEnds(t *testing.T) {
	t.Parallel()
	const puppet = "Puppet runs"
	for _, c := range []struct {
		name   string
		when   string // the demo has printed this, or Puppet runs in its machines
		signal syscall.Signal
		again  bool // a second time while it ends the fleet
	}{
		{"killed at once", "", syscall.SIGKILL, false},
		{"killed as etcd starts", "pulley serve", syscall.SIGKILL, false},
		{"killed as machines boot", "userdata compute1", syscall.SIGKILL, false},
		{"killed while Puppet runs", puppet, syscall.SIGKILL, false},
		{"interrupted while Puppet runs", puppet, syscall.SIGINT, false},
		{"interrupted twice", puppet, syscall.SIGINT, true},
		{"its terminal closed", "pulley publish", syscall.SIGHUP, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(c.signal) { // as under nohup; the demo inherits only ignored signals
				handled := make(chan os.Signal, 1)
				signal.Notify(handled, c.signal)
				defer signal.Stop(handled)
			}
			d := startDemo(t, "--once")
			d.eventually(t, "it comes to "+c.when, func() bool {
				return strings.Contains(d.output.String(), c.when) || c.when == puppet && d.runsPuppet(t)
			})
			d.remember(t)
			if err := d.cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			if c.again {
				d.eventually(t, "it ends the fleet", func() bool { return strings.Contains(d.output.String(), "The fleet ends") })
				if err := d.cmd.Process.Signal(c.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
					t.Fatal(err)
				}
			}
			if err := d.cmd.Wait(); err == nil {
				t.Error("it was stopped and exits 0")
			}
			d.leftNothing(t)
		})
	}
}

// Without root the error must name the remedy, not the kernel's refusal.
func TestDemoWithoutRootNamesRemedy(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	cmd := exec.Command(filepath.Join(bin, "pulley"), "demo", "--once")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "needs root") || !strings.Contains(string(out), "sudo") {
		t.Errorf("as user nobody: %v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(bin, "pulley-agent")); err != nil {
		t.Fatal(err)
	}
	out, err = exec.Command(filepath.Join(bin, "pulley"), "demo", "--once").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make build") {
		t.Errorf("without an agent: %v\n%s", err, out)
	}
	out, err = exec.Command(filepath.Join(bin, "pulley"), "demo", "--endpoints", "http://10.0.0.1:2379").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("with --endpoints: %v\n%s", err, out)
	}
}
