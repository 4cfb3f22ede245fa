package upgrade

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"pulley/internal/shellquote"
	"runtime"
	"syscall"
	"time"

	"pulley/agent"
)

// Command is how a candidate is started.
type Command struct {
	Path   string
	Args   []string // without the program's name
	Stdout io.Writer
	Stderr io.Writer
	Log    *slog.Logger
	Gentle time.Duration // what a Puppet that is at work gets besides, between the gentle signal and the hard one
}

// Descriptor is under which number a watched candidate finds its pipe.
const Descriptor = 3

// stopWait is for a signal that ended the candidate to reach this agent too: a shutdown tells all, in no order.
const stopWait = 2 * time.Second

// gentleWait is between the gentle signal and the hard one.
const gentleWait = 5 * time.Second

// maxSaid is how much of a candidate's last words is kept: a panic begins with its reason, and the stacks of all goroutines
// follow.
const maxSaid = 256 << 10

// maxSteps is far more than a tick has: a candidate may be anything.
const maxSteps = 100

// Watch has a candidate do one tick, and ends it when it stands still. It never returns before the candidate is gone, and
// the candidate does not outlive this process, however that ends.
func Watch(ctx context.Context, c Command, limits Proof) Trial {
	read, write, err := os.Pipe()
	if err != nil {
		return Trial{Err: err}
	}
	defer read.Close()
	// The kernel takes the death of the thread that started the child for that of the parent.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	said := &tail{limit: maxSaid}
	cmd := exec.Command(c.Path, c.Args...) //nolint:noctx // it is ended by stop, which is gentle first
	cmd.Stdout, cmd.Stderr = c.Stdout, io.MultiWriter(c.Stderr, said)
	cmd.ExtraFiles = []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	c.Log.Info("the new agent does this tick", "command", quoted(c.Path, c.Args))
	err = cmd.Start()
	write.Close()
	if err != nil {
		return Trial{Err: err}
	}
	words, gone := make(chan word), make(chan struct{})
	go listen(read, words)
	go func() { _ = cmd.Wait(); close(gone) }()
	t := follow(ctx, words, gone, limits, func(at string) {
		gentle := gentleWait
		if at == "apply" {
			gentle += c.Gentle
		}
		stop(cmd.Process.Pid, gentle, gone)
	})
	go func() {
		for range words { // nobody listens any more
			continue
		}
	}()
	t.Code, t.Words = cmd.ProcessState.ExitCode(), said.String()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		t.Signal = status.Signal().String()
		gentle := status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGINT
		t.Stopped = t.Stopped || gentle && endsSoon(ctx)
	} else if t.Late == "" && t.Code != 0 && (t.Ending == nil || t.Ending.Problem != "") { // so ends one that takes the signal
		t.Stopped = t.Stopped || endsSoon(ctx)
	}
	return t
}

// endsSoon says whether this agent is told to end, now or in a moment.
func endsSoon(ctx context.Context) bool {
	timer := time.NewTimer(stopWait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-timer.C:
		return false
	}
}

// follow takes down what a candidate says, and ends it when it says nothing for longer than it may.
func follow(ctx context.Context, words <-chan word, gone <-chan struct{}, limits Proof, end func(at string)) Trial {
	var t Trial
	at := startStep
	timer := time.NewTimer(limits.of(at))
	defer timer.Stop()
	for {
		select {
		case w, speaks := <-words:
			switch {
			case !speaks:
				words = nil
				continue
			case w.ending != nil:
				at, t.Ending = endStep, w.ending
			case at != endStep && len(t.Steps) < maxSteps:
				at, t.Steps = w.step, append(t.Steps, w.step)
			default:
				continue // no sign of life any more
			}
			timer.Reset(limits.of(at))
		case <-gone:
			return t.rest(words)
		case <-timer.C:
			t.Late, t.Limit = at, limits.of(at)
			end(at)
			return t
		case <-ctx.Done():
			t.Stopped = true
			end(at)
			return t
		}
	}
}

// rest takes down what a candidate said that is gone. A program that inherited the pipe may hold it open.
func (t Trial) rest(words <-chan word) Trial {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	for words != nil {
		select {
		case w, speaks := <-words:
			switch {
			case !speaks:
				return t
			case w.ending != nil:
				t.Ending = w.ending
			case len(t.Steps) < maxSteps:
				t.Steps = append(t.Steps, w.step)
			}
		case <-timer.C:
			return t
		}
	}
	return t
}

// of is how long a candidate may be at a step.
func (p Proof) of(step string) time.Duration {
	switch step {
	case startStep:
		return p.FirstStep
	case endStep:
		return EndLimit
	case "apply":
		return p.Apply
	case "stage", "verify":
		return p.Slow
	}
	return p.Step
}

// stop ends a candidate: first gently, so that it can end a Puppet that is at work. What of it outlives the hard signal is
// stuck in the kernel.
func stop(pid int, gentle time.Duration, gone <-chan struct{}) {
	_ = syscall.Kill(pid, syscall.SIGTERM)
	timer := time.NewTimer(gentle)
	defer timer.Stop()
	select {
	case <-gone:
		_ = syscall.Kill(-pid, syscall.SIGKILL) // what it left behind in its group
		return
	case <-timer.C:
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	<-gone
}

// SelfTest runs a candidate's self-test. A *FailedError says why it did not pass, a *StartError that it could not be tried.
func SelfTest(ctx context.Context, c Command, limit time.Duration) error {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// As in Watch: one that hangs must not outlive an agent that is killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	said := &tail{limit: maxSaid}
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	c.Log.Info("testing the new agent", "command", quoted(c.Path, c.Args))
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		return parent.Err()
	case ctx.Err() != nil:
		return &FailedError{Problem: agent.Problem{Code: agent.UpgradeSelfTestLate, Limit: limit}, Code: -1}
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return &FailedError{Problem: selfTestFailed(exit.String(), Trial{Words: said.String()}.said()), Code: exit.ExitCode()}
	case cmd.Process == nil && machines(err):
		return &StartError{err}
	}
	return &FailedError{Problem: selfTestFailed(err.Error(), ""), Code: -1}
}

// StartError says why this machine could not start a candidate.
type StartError struct{ Err error }

func (e *StartError) Error() string { return "cannot start the new agent: " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

func selfTestFailed(how string, said agent.Prose) agent.Problem {
	if said != "" {
		how += ": " + string(said)
	}
	return agent.Problem{Code: agent.UpgradeSelfTest, Text: agent.Prose(how)}
}

// FailedError is why a candidate failed.
type FailedError struct {
	Problem agent.Problem
	Code    int // with which its self-test ended; -1 when it did not end by itself
}

func (e *FailedError) Error() string { return e.Problem.String() }

func quoted(path string, args []string) string {
	line := filepath.Base(path)
	for _, a := range args {
		line += " " + shellquote.Word(a)
	}
	return line
}
