package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"pulley/internal/clip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxAnswerBytes = 16 << 20

	// From the gentle signal to the hard one. Who has lost the lock has some seconds until somebody else may have it: this and
	// restDeadline have to fit in (inFlight in a test of package store).
	gentle       = 5 * time.Second
	restDeadline = 2 * time.Second // for output after the command's end, by what it started in other groups
)

// run starts the command for a request and returns what it printed. ended is how it ended, where that was not with 0; err says
// that there is no answer to be looked at. Both read after the command's name.
func (p *Provider) run(ctx context.Context, r request) (out []byte, ended, err error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("was not started: %w", ctx.Err())
	}
	input, err := json.Marshal(r)
	if err != nil {
		return nil, nil, fmt.Errorf("can't be told what to do: %w", err)
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
		return nil, nil, fmt.Errorf("can't be started: %w", err)
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
	case errors.Is(waitErr, exec.ErrWaitDelay): // it ended well; what it left behind has the output
	case waitErr != nil:
		ended = fmt.Errorf("ended with %w%s", waitErr, stderr.last())
	}
	return stdout.data, ended, nil
}

// endGroup returns when a process has ended, of itself or with the context, and nothing of its group is left.
func endGroup(ctx context.Context, pid int) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for { // it stays a zombie: until it is collected, nobody else gets the number of the group
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

// bounded keeps what is written, up to a limit; who writes more is told that nobody reads any more.
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

// lines logs what is written, line by line, and remembers the last one.
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
		l.log.Info("the provider's command said", "line", line)
	}
}

// last is the last line, for the end of an error.
func (l *lines) last() string {
	if l.lastOne == "" {
		return ""
	}
	return ": " + l.lastOne
}
