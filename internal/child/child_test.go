package child

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/clip"
)

var path = []string{"PATH=" + os.Getenv("PATH")}

func shell(line string, args ...string) Command {
	return Command{Path: "/bin/sh", Args: append([]string{"-c", line, "sh"}, args...), Env: path}
}

// written waits for the process whose number a program writes to a file.
func written(t *testing.T, file string) Process {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(text), "\n") {
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			p, _ := Read(pid)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		if time.Now().After(end) {
			t.Fatal("no process wrote its number")
		}
	}
}

// A daemon that keeps the output made a gate that exits with 0 unanswered for ever, and left a process at each question.
func TestRunEndsWhatIsLeft(t *testing.T) {
	t.Parallel()
	const leaves = `setsid sh -c 'echo $$ > "$0"; exec sleep 1000' "$1" & while ! [ -s "$1" ]; do sleep 0.01; done`
	file := filepath.Join(t.TempDir(), "pid")
	c := shell(leaves, file)
	out := &clip.Tail{Limit: 100}
	c.Stdout, c.Stderr = out, out
	began := time.Now()
	if err := c.Run(t.Context()); err != nil || time.Since(began) > 20*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if p := written(t, file); p.Alive() {
		t.Errorf("%+v still runs", p)
	}

	file = filepath.Join(t.TempDir(), "pid")
	c = shell(leaves+`; (sleep 1000 & echo $! > "$2")`, file, file+"2")
	c.Left, c.Stdout = KeepServices, out
	if err := c.Run(t.Context()); err != nil {
		t.Error(err)
	}
	service := written(t, file)
	if !service.Alive() {
		t.Error("the service does not run")
	}
	Tree{service}.Signal(syscall.SIGKILL)
	if p := written(t, file+"2"); p.Alive() {
		t.Errorf("%+v of the session still runs", p)
	}
}

// A signal after the status was read may reach another process, whose number is the same.
func TestStatusIsReadLast(t *testing.T) {
	t.Parallel()
	p, err := shell("exit 3").Start()
	if err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	if now, ok := Read(p.PID); !ok || !now.Zombie || now.Start != p.Start {
		t.Errorf("before Wait: %+v, %t", now, ok)
	}
	err = p.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || p.ExitCode() != 3 {
		t.Errorf("%v, exit code %d", err, p.ExitCode())
	}
	if now, ok := Read(p.PID); ok && now.Start == p.Start {
		t.Errorf("after Wait: %+v", now)
	}
}

// What a program left is ended while nothing else can have the number of the program, and with it of its group and session.
func TestLeftProcessesEndBeforeTheStatusIsRead(t *testing.T) {
	t.Parallel()
	for _, left := range []Left{EndAll, KeepServices} {
		dir := t.TempDir()
		c := shell(`(echo >"$1/began"; while kill -0 $$; do sleep 0.01; done; echo >"$1/outlived") & while ! [ -e "$1/began" ]; do sleep 0.01; done`, dir)
		c.Left, c.Stdout = left, &clip.Tail{Limit: 100} // the process that it leaves keeps it open: the status is read long before the last output
		if err := c.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "outlived")); err == nil {
			t.Errorf("%d: a process that it left outlived it", left)
		}
	}
}

// A hang ends at its deadline, with processes in other sessions and those that ignore SIGTERM.
func TestDeadlineEndsAll(t *testing.T) {
	t.Parallel()
	for _, kind := range []Command{{}, {Grace: 100 * time.Millisecond}, {Grace: 100 * time.Millisecond, Terminal: true}} {
		file := filepath.Join(t.TempDir(), "pid")
		c := shell(`trap '' TERM; setsid sh -c 'trap "" TERM; echo $$ > "$0"; while :; do sleep 1; done' "$1"; sleep 1000`, file)
		c.Grace, c.Terminal = kind.Grace, kind.Terminal
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		other := written(t, file)
		late := errors.New("late")
		cancel(late)
		if err := <-ended; !errors.Is(err, late) {
			t.Errorf("%+v: %v", kind, err)
		}
		if other.Alive() {
			t.Errorf("%+v: %+v still runs", kind, other)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	out, err := shell("printf 12345678; echo hint >&2").Output(t.Context(), 8)
	if string(out) != "12345678" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	var large *bounded.TooLargeError
	if out, err := shell("trap '' PIPE; yes; sleep 1000").Output(t.Context(), 8); !errors.As(err, &large) || out != nil {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := shell("echo cause >&2; exit 4").Output(t.Context(), 8); err == nil || err.Error() != "exit status 4: cause" {
		t.Error(err)
	}
}

// A descriptor of a shell or a supervisor, such as the socket of another service, is not for children.
func TestDescriptorsAreNotInherited(t *testing.T) {
	fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY, 0) // without O_CLOEXEC, as an inherited one
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	out, err := shell("ls /proc/$$/fd").Output(t.Context(), 1000)
	if err != nil || slices.Contains(strings.Fields(string(out)), strconv.Itoa(fd)) {
		t.Errorf("%q, %v", out, err)
	}
}

// Keys of etcd and credentials of clouds in the environment of serve are not for its children.
func TestEnvironmentIsGiven(t *testing.T) {
	t.Setenv("ETCDCTL_PASSWORD", "secret")
	c := Command{Path: "/usr/bin/env"}
	out, err := c.Output(t.Context(), 1000)
	if err != nil || !bytes.HasPrefix(out, []byte(leftover)) || bytes.Count(out, []byte("\n")) != 1 {
		t.Errorf("%s, %v", out, err)
	}
	all := []string{"PATH=/bin", "LC_ALL=C", "HOME=/", "PULLEY_ENDPOINTS=x", "ETCDCTL_PASSWORD=x", "ETCD_NAME=x", "AWS_SECRET_ACCESS_KEY=x", "https_proxy=http://u:p@x", "PATHS=x"}
	if got := strings.Join(Filtered(all), " "); got != "PATH=/bin LC_ALL=C HOME=/" {
		t.Error(got)
	}
	if got := strings.Join(Filtered(all, "AWS_*", "PATHS"), " "); got != "PATH=/bin LC_ALL=C HOME=/ AWS_SECRET_ACCESS_KEY=x PATHS=x" {
		t.Error(got)
	}
	if got := strings.Join(WithoutOwn(all), " "); got != "PATH=/bin LC_ALL=C HOME=/ AWS_SECRET_ACCESS_KEY=x https_proxy=http://u:p@x PATHS=x" {
		t.Error(got)
	}
}

// An operator whose hook cannot start reads the cause, which the kernel's error does not tell.
func TestStartErrorsNameTheCause(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for text, want := range map[string]string{
		"#!/bin/sh\r\nexit 0\r\n":     "its first line has a line end of Windows",
		"#!/opt/none/ruby -w\nexit\n": "its interpreter /opt/none/ruby -w does not exist",
		"exit 0\n":                    "it does not begin with #!",
		"\ufeff#!/bin/sh\nexit 0\n":   "it does not begin with #!",
	} {
		path := filepath.Join(dir, "x")
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := (Command{Path: path}).Run(t.Context()); err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := CanRun(dir); err != nil {
		t.Error(err)
	}
}

// Another child may hold the descriptor of a program that was just written: the program starts when the descriptor is closed.
func TestStartWaitsForTheWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Command{Path: path}).Start(); err == nil || !strings.Contains(err.Error(), "a process has it open for writing") {
		t.Errorf("an open file: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = f.Close() })
	if err := (Command{Path: path}).Run(t.Context()); err != nil {
		t.Errorf("a file that was closed: %v", err)
	}
}
