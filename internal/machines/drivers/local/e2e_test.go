//go:build e2e

package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// need fails the test where the host lacks a program.
func need(t *testing.T, program, debianPackage string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("this test needs %s: apt-get install %s", program, debianPackage)
	}
}

// The demo must show real changes of Puppet, and none on the user's computer.
func TestPuppetChangesMachineAndNotHost(t *testing.T) {
	need(t, "puppet", "puppet-agent")
	word := marker(t)
	m := startMachine(t, Config{Empty: []string{"/var/lib/puppet", "/var/cache/puppet", "/etc/puppet"}})
	manifest := `
file { '/etc/` + word + `': content => "${facts['networking']['hostname']}\n" }
user { 'pulleyprobe': ensure => present, managehome => true }
exec { '/bin/sh -c "echo ran >/var/` + word + `"': creates => '/var/` + word + `' }
`
	for _, want := range []int{2, 0} {
		cmd := m.Command(t.Context(), "puppet", "apply", "--detailed-exitcodes", "--color=false", "-e", manifest)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Fatalf("puppet apply exited with %d, not %d\n%s", code, want, out)
		}
	}
	if got, err := m.ReadFile("/etc/" + word); err != nil || string(got) != m.hostname+"\n" {
		t.Errorf("Puppet's file holds %q, %v", got, err)
	}
	sh(t, m, "getent passwd pulleyprobe; test -d /home/pulleyprobe; test -s /var/"+word)
	for _, path := range []string{"/etc/" + word, "/var/" + word, "/home/pulleyprobe"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is on the host: %v", path, err)
		}
	}
	if passwd, _ := os.ReadFile("/etc/passwd"); strings.Contains(string(passwd), "pulleyprobe") {
		t.Error("the user is on the host")
	}
}

// cron must be able to start the agent in a machine.
func TestCronRunsInMachine(t *testing.T) {
	need(t, "/usr/sbin/cron", "cron")
	word := marker(t)
	m := startMachine(t, Config{Empty: []string{"/etc/cron.d", "/var/spool/cron/crontabs"}})
	// @reboot jobs run when cron starts, so that the test need not wait for the next minute.
	job := "PATH=/usr/bin:/bin\n@reboot root hostname >/var/" + word + ".new && mv /var/" + word + ".new /var/" + word + "\n"
	if err := m.WriteFile("/etc/cron.d/probe", []byte(job), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cron := m.Command(ctx, "/usr/sbin/cron", "-f")
	if err := cron.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "cron ran its job", func() bool {
		got, _ := m.ReadFile("/var/" + word)
		return string(got) == m.hostname+"\n"
	})
	if _, err := os.Lstat(filepath.Join("/var", word)); !errors.Is(err, os.ErrNotExist) {
		t.Error("cron's job ran on the host")
	}
	cancel()
	_ = cron.Wait()
	sh(t, m, "! grep -l '^/usr/sbin/cron' /proc/[0-9]*/cmdline")
}
