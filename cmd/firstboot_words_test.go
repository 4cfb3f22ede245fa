package cmd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var (
	exports   = regexp.MustCompile(`(?m)^export (PULLEY_\w+=.*)$`)
	joinsAt   = regexp.MustCompile(`serve at (https://[0-9.:]+) with`)
	firstPins = regexp.MustCompile(`fingerprints? (?:are|is) (sha256:[0-9a-f]{64})`)
)

// secured runs `pulley serve --auth` until the script ends, beside the scenario's own etcd, and sets the operators'
// variables to it. From here on the script is its administrator. $SERVE is the address for joins, $PIN its CA.
func secured(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) > 0, "secured")
	log := ts.MkAbs("secured.log")
	out, err := os.Create(log)
	ts.Check(err)
	cmd := exec.CommandContext(context.Background(), "sh", "-c", `exec pulley serve --auth --data-dir "$0" --listen 127.0.0.1:0 --listen-https 127.0.0.1:0`, ts.MkAbs("secured"))
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME")}, out, out
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		out.Close()
	})
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		text := ts.ReadFile(log)
		at, pin := joinsAt.FindStringSubmatch(text), firstPins.FindStringSubmatch(text)
		if at != nil && pin != nil && strings.Contains(text, "PULLEY_ENDPOINTS=") {
			ts.Setenv("SERVE", at[1])
			ts.Setenv("PIN", pin[1])
			for _, m := range exports.FindAllStringSubmatch(text, -1) {
				name, value, _ := strings.Cut(m[1], "=")
				ts.Setenv(name, value)
			}
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("serve does not come up:\n%s", text)
		}
	}
}

// machine NAME [LINE …] creates the root of a machine in $WORK/NAME, with the scripted Puppet. The lines are the plan
// of its first boot. Its agent starts as under cron and systemd: `env -i PATH=$PATH pulley-agent … --root NAME`.
func machine(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "machine NAME [LINE ...]")
	plan := strings.Join(append(args[1:], "steps: {schedule: \"off\"}"), "\n") + "\n"
	for name, text := range map[string]string{
		"etc/machine-id":             fmt.Sprintf("%x%032d", args[0], 0)[:32] + "\n",
		"etc/pulley/agent.yaml":      "timeout: 2s\nverify_timeout: 2s\npuppet:\n  program: " + ts.MkAbs("fake/puppet") + "\n  state_dirs: [" + ts.MkAbs("fake/var/state") + "]\n",
		"etc/pulley/first-boot.yaml": plan,
	} {
		path := ts.MkAbs(filepath.Join(args[0], name))
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		ts.Check(os.WriteFile(path, []byte(text), 0o600))
	}
}
