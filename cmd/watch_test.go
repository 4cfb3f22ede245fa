package cmd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// openTerminal returns both ends of a pseudo terminal with a window of this size.
func openTerminal(t *testing.T, rows, columns uint16) (control, terminal *os.File) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = control.Close() })
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(control.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return control, terminal
}

// An operator who watches a deploy on a terminal must see each change without a new command, on one screen, and end with Ctrl-C.
func TestStatusWatchesOnATerminal(t *testing.T) {
	t.Parallel()
	server, dir := etcdtest.Start(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	environ := append(os.Environ(), "PULLEY_ENDPOINTS="+server.Endpoint, "PULLEY_ENVIRONMENT=dev", "HOME="+dir, "XDG_CONFIG_HOME="+dir, "TERM=xterm")
	pulley := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "pulley"), args...)
		cmd.Env, cmd.Dir = environ, dir
		return cmd
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := pulley(args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	const nodes = 30
	if err := os.WriteFile(filepath.Join(dir, "dev.yaml"), fmt.Appendf(nil, "roles: {web: {cardinality: %d}}\n", nodes), 0o600); err != nil {
		t.Fatal(err)
	}
	run("env", "apply", "dev.yaml")
	run("nodes", "add", "web1")

	const rows, columns = 20, 100
	control, terminal := openTerminal(t, rows, columns)
	watch := pulley("status", "--watch")
	watch.Stdin, watch.Stdout, watch.Stderr = terminal, terminal, terminal
	watch.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	screen, ended := new(observe.Log), make(chan error, 1)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := control.Read(b) // EIO once the program has ended
			if _, _ = screen.Write(b[:n]); err != nil {
				ended <- watch.Wait()
				return
			}
		}
	}()
	shows := func(pattern string) {
		t.Helper()
		is := regexp.MustCompile(pattern)
		observe.Eventually(t, "the screen shows "+pattern, func() bool { return is.MatchString(screen.String()) })
	}
	const clear = `\x1b\[H\x1b\[2J`
	shows(`(?s)` + clear + `dev: target nothing.*29 missing.*web2 .*missing.*Ctrl-C ends`)
	run("nodes", "add", "web2")
	shows(`(?s)` + clear + `.*` + clear + `.*2 pending, 28 missing.*web2 .*pending.*Ctrl-C ends`)
	colour := regexp.MustCompile(`\x1b\[\d*m`)
	for _, painted := range strings.Split(screen.String(), "\x1b[H\x1b[2J")[1:] {
		lines := 0
		for line := range strings.Lines(colour.ReplaceAllString(painted, "")) {
			lines += 1 + (utf8.RuneCountInString(strings.TrimRight(line, "\r\n"))-1)/columns
		}
		if lines >= rows {
			t.Errorf("%d lines scroll a terminal of %d:\n%s", lines, rows, painted)
		}
	}
	if _, err := control.WriteString("\x03"); err != nil { // the terminal sends SIGINT to the foreground group
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Ctrl-C ends it with %v\n%q", err, screen.String())
		}
	case <-ctx.Done():
		t.Fatal("Ctrl-C does not end it")
	}
	if regexp.MustCompile("interrupted|canceled").MatchString(screen.String()) {
		t.Errorf("the end looks like a failure: %q", screen.String())
	}
}
