package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A collector that parses JSON must be able to read every line, also warnings and the error that ends the program.
func TestMessagesAreRecordsOfAJSONLog(t *testing.T) {
	var b bytes.Buffer
	e := Env{Stderr: &b}
	log, err := LogFlags{Level: "warn", Format: "json"}.Open(&e)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("below the level")
	Complain(e, "pulley", errors.New("warning: a disk\x1b is nearly full\nmake room"))
	Exit(e, "pulley", errors.New("cannot serve: no"))
	type record struct{ Level, Msg, Hint string }
	want := []record{{"WARN", "a disk\x1b is nearly full", "make room"}, {"ERROR", "cannot serve: no", ""}}
	for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		var got record
		if err := json.Unmarshal([]byte(line), &got); err != nil || i >= len(want) || got != want[i] {
			t.Errorf("line %d is %s: %+v, %v", i, line, got, err)
		}
	}
}

// A person or a service manager that starts a program must see its last error, and the log must have it, too.
func TestLastErrorIsInTheLogFileAndOnStandardError(t *testing.T) {
	var b bytes.Buffer
	file := filepath.Join(t.TempDir(), "pulley.log")
	e := Env{Stderr: &b}
	if _, err := (LogFlags{File: file, Level: "info", Format: "text"}).Open(&e); err != nil {
		t.Fatal(err)
	}
	Exit(e, "pulley", errors.New("cannot serve: no\nremedy"))
	if got := b.String(); got != "pulley: cannot serve: no\n  remedy\n" {
		t.Errorf("standard error has %q", got)
	}
	if got := read(t, file); !strings.HasSuffix(got, "level=ERROR msg=\"cannot serve: no\" hint=remedy\n") {
		t.Errorf("the log has %q", got)
	}
}

// A log that was moved away must not take further lines, and a folder that is away must lose none.
func TestLogFollowsItsPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	file := filepath.Join(dir, "pulley.log")
	if _, err := (LogFlags{File: file, Level: "info", Format: "text"}).Open(&Env{}); err == nil || !strings.Contains(err.Error(), "create its folder") {
		t.Errorf("a log in no folder: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := LogFlags{File: file, Level: "info", Format: "text"}.Open(&Env{})
	if err != nil {
		t.Fatal(err)
	}
	say := func(log *slog.Logger, text string) { log.Info("a line", "text", text) }
	say(log, "first")
	for _, to := range []string{file + ".1", file + ".2"} {
		if err := os.Rename(file, to); err != nil {
			t.Fatal(err)
		}
		say(log, "after "+filepath.Base(to))
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	say(log, "without a folder")
	for name, want := range map[string][]string{".1": {"first"}, ".2": {"after pulley.log.1"}, "": {"after pulley.log.2", "without a folder"}} {
		lines := strings.Split(strings.TrimSpace(read(t, filepath.Join(dir+".away", "pulley.log"+name))), "\n")
		for i, line := range lines {
			if len(lines) != len(want) || !strings.Contains(line, want[i]) {
				t.Errorf("pulley.log%s has %q, want %q", name, lines, want)
			}
		}
	}
}

func TestLogFlagsRefuseOtherWords(t *testing.T) {
	for _, l := range []LogFlags{{Level: "loud", Format: "text"}, {Level: "info", Format: "xml"}, {Level: "INFO+2", Format: "text"}} {
		var usage *UsageError
		if _, err := l.Open(&Env{}); !errors.As(err, &usage) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// `pulley serve --log-file PIPE` hung, and ignored SIGTERM.
func TestLogRefusesPipe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := (LogFlags{File: file, Level: "info", Format: "text"}).Open(&Env{}); done <- err }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), file+": it is a named pipe, not a regular file\ngive another --log-file") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the open waits")
	}
	given, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	defer writer.Close()
	// In a container, the standard streams are pipes, and in a service a socket.
	var out, errs strings.Builder
	for file, to := range map[string]*strings.Builder{"/dev/stdout": &out, "/dev/stderr": &errs} {
		log, err := (LogFlags{File: file, Level: "info", Format: "text"}).Open(&Env{Stdout: &out, Stderr: &errs})
		if err != nil {
			t.Fatal(err)
		}
		if log.Info("written", "to", file); !strings.Contains(to.String(), "to="+file) {
			t.Errorf("the log to %s has %q", file, to)
		}
	}
	for _, file := range []string{os.DevNull, fmt.Sprintf("/dev/fd/%d", writer.Fd())} {
		if _, err := (LogFlags{File: file, Level: "info", Format: "text"}).Open(&Env{}); err != nil {
			t.Error(err)
		}
	}
}
