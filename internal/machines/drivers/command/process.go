package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/child"
	"pulley/internal/clip"
)

const (
	maxAnswerBytes = 16 << 20

	// From SIGTERM to SIGKILL. A program that has lost the lock has some seconds until another one may take it: this and the time for
	// output after the command's end, 2 s, must fit in (inFlight in a test of package etcd).
	gentle = 5 * time.Second
)

// run starts the command for a request and returns its output. ended is set where the exit code is not 0. err is set where there is
// no answer. Both messages follow the command's name.
func (p *Provider) run(ctx context.Context, r request) (out []byte, ended, err error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("was not started: %w", ctx.Err())
	}
	input, err := json.Marshal(r)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot get its request: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	stderr := &lines{log: p.config.Log.With("command", p.config.Command[0], "do", r.Do)}
	out, err = child.Command{
		Path: p.program, Args: p.config.Command[1:], Env: child.Filtered(p.config.Environ, passed...),
		Stdin: bytes.NewReader(append(input, '\n')), Stderr: stderr, Grace: gentle,
		Left: child.KeepServices, // a machine may be a process
	}.Output(limited, maxAnswerBytes)
	stderr.finish()
	var large *bounded.TooLargeError
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out, nil, nil
	case errors.As(err, &exit):
		return out, fmt.Errorf("ended with %w%s", err, stderr.last()), nil
	case ctx.Err() != nil:
		return nil, nil, fmt.Errorf("was ended: %w", ctx.Err())
	case limited.Err() != nil:
		return nil, nil, fmt.Errorf("was ended at its deadline of %v%s", p.config.Timeout, stderr.last())
	case errors.As(err, &large):
		return nil, nil, fmt.Errorf("printed more than %d MiB", maxAnswerBytes>>20)
	}
	return nil, nil, fmt.Errorf("cannot start: %w", err)
}

const (
	maxLine  = 2000
	maxLines = 1000 // of one request
)

// lines logs output line by line, and keeps the last line.
type lines struct {
	log     *slog.Logger
	rest    []byte
	count   int
	lastOne string
}

func (l *lines) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		if room := maxLine - len(l.rest); room > 0 {
			l.rest = append(l.rest, line[:min(room, len(line))]...)
		}
		if whole {
			l.finish()
		}
		rest = after
	}
	return len(data), nil
}

// finish logs a line.
func (l *lines) finish() {
	line := strings.TrimSpace(clip.Line(string(l.rest), maxLine))
	l.rest = l.rest[:0]
	if line == "" {
		return
	}
	l.lastOne = line
	if l.count++; l.count <= maxLines {
		l.log.Info("output of the provider's command", "line", line)
	}
}

// last returns the last line for the end of an error.
func (l *lines) last() string {
	if l.lastOne == "" {
		return ""
	}
	return ": " + l.lastOne
}

// passed are the variables that a command gets besides those of every child process: proxies, and the settings of the clouds' tools.
var passed = []string{
	"XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "OS_*", "AWS_*", "LIBVIRT_*",
	"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY",
}
