package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/pflag"

	"pulley/internal/bounded"
)

// LogFlags are the flags for the log of a service.
type LogFlags struct{ File, Level, Format string }

var levels = []string{"debug", "info", "warn", "error"}

// AddFlags adds --log-file, --log-level and --log-format.
func (l *LogFlags) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&l.File, "log-file", "", "file for the log and all messages (default: standard error); it may be rotated at any time")
	f.StringVar(&l.Level, "log-level", "info", "lowest level of the log: debug, info, warn or error")
	f.StringVar(&l.Format, "log-format", "text", "form of the log: text or json")
}

// Open returns the log. Where it goes to a file or is JSON, e also sends messages there: then e.Log is not nil.
func (l LogFlags) Open(e *Env) (*slog.Logger, error) {
	var level slog.Level
	switch {
	case !slices.Contains(levels, l.Level):
		return nil, Usagef("cannot use log level %q\ngive --log-level debug, info, warn or error", l.Level)
	case l.Format != "text" && l.Format != "json":
		return nil, Usagef("cannot use log format %q\ngive --log-format text or json", l.Format)
	}
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return nil, err
	}
	to := e.Stderr
	switch l.File {
	case "", "/dev/stderr": // a container's is a pipe, and a service's a socket, which cannot be opened
	case "/dev/stdout":
		to = e.Stdout
	default:
		f := &logFile{path: l.File}
		if err := f.open(); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot open the log: %w\ncreate its folder, or give another --log-file", err)
		} else if err != nil {
			return nil, fmt.Errorf("cannot open the log: %w\ngive another --log-file", err)
		}
		to = f
	}
	options := &slog.HandlerOptions{Level: level}
	log := slog.New(slog.NewTextHandler(to, options))
	if l.Format == "json" {
		log = slog.New(slog.NewJSONHandler(to, options))
	}
	if l.File != "" || l.Format == "json" {
		e.Log, e.logsToFile = log, l.File != ""
	}
	return log, nil
}

// logFile appends to the file that has a path now. After another program renamed or deleted the file, the next line opens a new
// one: a rotation needs no signal.
type logFile struct {
	path string
	mu   sync.Mutex
	file *os.File
}

func (l *logFile) open() error {
	if info, err := os.Stat(l.path); err == nil && !bounded.IsGiven(l.path) && info.Mode()&fs.ModeCharDevice == 0 { // as /dev/null
		if err := bounded.Check("open", l.path, info); err != nil { // an open, or a write, could wait for ever
			return err
		}
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0o640)
	if err != nil {
		return err
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	l.file = f
	return nil
}

// Write appends one line. While the path cannot be opened, it continues with the former file.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	has, err := l.file.Stat()
	if err != nil {
		return 0, err
	}
	if named, err := os.Stat(l.path); err != nil || !os.SameFile(has, named) {
		_ = l.open()
	}
	return l.file.Write(line)
}

// log writes a message as one record: its first line, and its hints as an attribute.
func (e Env) log(message string) {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	level := slog.LevelError
	for prefix, of := range map[string]slog.Level{"warning: ": slog.LevelWarn, "note: ": slog.LevelInfo} {
		if text, ok := strings.CutPrefix(lines[0], prefix); ok {
			lines[0], level = text, of
		}
	}
	var hint []any
	if len(lines) > 1 {
		hint = []any{"hint", strings.Join(lines[1:], "\n")}
	}
	e.Log.Log(context.Background(), level, lines[0], hint...) //nolint:sloglint // the text of an error
}
