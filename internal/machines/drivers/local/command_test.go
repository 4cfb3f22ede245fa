package local

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A failed run of an agent in a machine must not count as a success.
func TestCommandPassesStreamsAndExitCodes(t *testing.T) {
	m := startMachine(t, Config{})
	t.Setenv("HOST_SECRET", "x")
	for _, test := range []struct {
		script string
		code   int
	}{{"exit 0", 0}, {"exit 2", 2}, {"exit 255", 255}, {"kill -TERM $$", 128 + 15}, {"kill -KILL $$", 128 + 9}} {
		cmd := m.Command(t.Context(), "sh", "-c", test.script)
		err := cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != test.code || (err == nil) != (test.code == 0) {
			t.Errorf("%s: exit code %d, %v, want %d", test.script, got, err, test.code)
		}
	}
	for program, code := range map[string]int{"no-such-program": 127, "/no/such": 127, "/etc/passwd": 126} {
		var stderr strings.Builder
		cmd := m.Command(t.Context(), program)
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(stderr.String(), "cannot run "+program) {
			t.Errorf("%s: exit code %d, %q, want %d", program, got, &stderr, code)
		}
	}

	var stdout, stderr strings.Builder
	inherited, err := unix.FcntlInt(os.Stdin.Fd(), unix.F_DUPFD, 200) // without close-on-exec, as a shell may leave one
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	cmd := m.Command(t.Context(), "bash", "-c", `cat; echo err >&2; echo "$1|$2|$OWN|$HOST_SECRET|$PATH|$(pwd)|$(umask)|"; ls /proc/self/fd`, "sh", "a b", "")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("in\n"), &stdout, &stderr
	cmd.Env = append(cmd.Env, "OWN=1")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	// 3 is the folder that ls itself reads.
	if want := "in\na b||1||/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin|/|0022|\n0\n1\n2\n3\n"; stdout.String() != want {
		t.Errorf("stdout %q, want %q", &stdout, want)
	}
	if stderr.String() != "err\n" {
		t.Errorf("stderr %q", &stderr)
	}
}

// An agent that gets SIGTERM must be able to finish its work.
func TestSignalReachesCommand(t *testing.T) {
	m := startMachine(t, Config{})
	cmd := m.Command(t.Context(), "sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	cmd.Process.Signal(unix.SIGTERM)
	lines.Scan()
	if lines.Text() != "bye" {
		t.Errorf("the command printed %q", lines.Text())
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d", code)
	}
}

// tree returns a script whose processes are in several sessions, are orphans, ignore SIGTERM, and fork again and again.
func tree(word string) string {
	return `trap '' TERM HUP INT
setsid sh -c 'while :; do sleep 0.01; done' ` + word + ` &
(setsid setsid sh -c 'sh -c "while :; do sleep 0.02; done" ` + word + ` & sleep 1000' ` + word + ` &) &
echo up; sleep 1000; : ` + word
}

// A Puppet that hangs must not outlive its run and hold its locks.
func TestContextEndKillsAllDescendants(t *testing.T) {
	m := startMachine(t, Config{})
	for name, end := range map[string]func(*exec.Cmd, context.CancelFunc){
		"context": func(_ *exec.Cmd, cancel context.CancelFunc) { cancel() },
		"kill":    func(cmd *exec.Cmd, _ context.CancelFunc) { cmd.Process.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			word := marker(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := m.Command(ctx, "sh", "-c", tree(word))
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
				t.Fatal(line, err)
			}
			eventually(t, "all processes run", func() bool { return len(processes(word)) >= 5 })
			end(cmd, cancel)
			if err := cmd.Wait(); err == nil {
				t.Error("a killed command returned no error")
			}
			if left := processes(word); name == "context" && len(left) > 0 {
				t.Errorf("left when Wait returned: %q", left)
			}
			eventually(t, "all processes have ended", func() bool { return len(processes(word)) == 0 })
		})
	}
	sh(t, m, "true") // the machine still works
}

// Bootstrap must be able to start cron.
func TestDaemonOutlivesCommand(t *testing.T) {
	m := startMachine(t, Config{})
	word := marker(t)
	sh(t, m, "setsid sh -c 'while :; do sleep 0.01; done' "+word+" >/dev/null 2>&1 </dev/null &")
	if got := sh(t, m, "grep -l "+word+" /proc/[0-9]*/cmdline | grep -vc self"); got < "1" {
		t.Errorf("%s processes", got)
	}
	if len(processes(word)) == 0 {
		t.Fatal("the daemon is gone")
	}
	// Its parent is the machine's first process.
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if left := processes(word); len(left) > 0 {
		t.Errorf("left after Close: %q", left)
	}
}

// A machine that runs cron must not collect zombies.
func TestOrphansAreCollected(t *testing.T) {
	m := startMachine(t, Config{})
	for range 5 {
		sh(t, m, "for i in 1 2 3 4 5 6 7 8 9; do (setsid sh -c 'sleep 0.01; :' >/dev/null 2>&1 </dev/null &); done")
	}
	eventually(t, "no orphan is left, alive or dead", func() bool {
		return sh(t, m, "grep -q -e '^State:.Z' -e '^Name:.sleep' /proc/[0-9]*/status 2>/dev/null && echo some || echo none") == "none"
	})
}
