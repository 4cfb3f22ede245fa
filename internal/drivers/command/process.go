package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/clip"
)

const (
	maxAnswerBytes = 16 << 20

	// From SIGTERM to SIGKILL. A program that has lost the lock has some seconds until another one may take it: this and restDeadline
	// must fit in (inFlight in a test of package store).
	gentle       = 5 * time.Second
	restDeadline = 2 * time.Second // for output after the command's end, by processes in other groups
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
	stdout := &bounded{most: maxAnswerBytes}
	stderr := &lines{log: p.config.Log.With("command", p.config.Command[0], "do", r.Do)}
	cmd := exec.Command(p.program, p.config.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(input, '\n')), stdout, stderr
	cmd.Env = environ(p.config.Environ)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = restDeadline
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("cannot start: %w", err)
	}
	endGroup(limited, cmd.Process.Pid)
	waitErr := cmd.Wait()
	stderr.finish()
	switch {
	case ctx.Err() != nil:
		return nil, nil, fmt.Errorf("was ended: %w", ctx.Err())
	case limited.Err() != nil:
		return nil, nil, fmt.Errorf("was ended at its deadline of %v%s", p.config.Timeout, stderr.last())
	case stdout.over:
		return nil, nil, fmt.Errorf("printed more than %d MiB", maxAnswerBytes>>20)
	case errors.Is(waitErr, exec.ErrWaitDelay): // the command succeeded; a process that it left has the output open
	case waitErr != nil:
		ended = fmt.Errorf("ended with %w%s", waitErr, stderr.last())
	}
	return stdout.data, ended, nil
}

// endGroup waits until a process has ended, by itself or with the context, and kills the rest of its group.
func endGroup(ctx context.Context, pid int) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for { // it stays a zombie: no other group gets its number until it is collected
			if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		unix.Kill(-pid, unix.SIGTERM)
		hard := time.AfterFunc(gentle, func() { unix.Kill(-pid, unix.SIGKILL) })
		<-ended
		hard.Stop()
	}
	unix.Kill(-pid, unix.SIGKILL)
}

// bounded keeps output up to a limit. A write beyond it fails.
type bounded struct {
	data []byte
	most int
	over bool
}

func (b *bounded) Write(data []byte) (int, error) {
	if len(b.data)+len(data) > b.most {
		b.over = true
		return 0, errors.New("too much output")
	}
	b.data = append(b.data, data...)
	return len(data), nil
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

// The variables of this program's environment that a command gets: paths, proxies, and the settings of the clouds' tools. Pulley's own
// settings are not among them: they contain keys of etcd.
var (
	passed         = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
	passedAnyCase  = []string{"http_proxy", "https_proxy", "no_proxy"}
	passedPrefixes = []string{"OS_", "AWS_", "LIBVIRT_"}
)

// environ returns the variables that a command gets.
func environ(all []string) []string {
	kept := []string{}
	for _, v := range all {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains(passed, name) || slices.Contains(passedAnyCase, strings.ToLower(name)) ||
			slices.ContainsFunc(passedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			kept = append(kept, v)
		}
	}
	return kept
}
