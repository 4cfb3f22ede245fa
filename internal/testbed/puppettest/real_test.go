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
)

// The agent judges runs by Puppet's documented behaviour. A Puppet with other behaviour would make the agent commit a
// target that was never applied. PULLEY_TEST_PUPPET is the path of another Puppet than the installed one.
func TestReal(t *testing.T) {
	program, err := exec.LookPath(cmp.Or(os.Getenv("PULLEY_TEST_PUPPET"), "puppet"))
	if err != nil {
		t.Fatal("there is no Puppet here: apt-get install puppet-agent")
	}
	if os.Geteuid() != 0 {
		t.Fatal("only root can give Puppet a machine of its own: run as root")
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
	})
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
