package upgrade

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"pulley/internal/child"
	"pulley/internal/clip"
	"pulley/internal/model"
)

// Command starts a candidate.
type Command struct {
	Path   string
	Args   []string // without the program's name
	Stdout io.Writer
	Stderr io.Writer
	Log    *slog.Logger
	Gentle time.Duration // extra time between SIGTERM and SIGKILL for a running Puppet
}

// stopWait is the time for a signal that ended the candidate to reach this agent too. A shutdown signals all processes,
// in no order.
const stopWait = 2 * time.Second

// gentleWait is the time between SIGTERM and SIGKILL.
const gentleWait = 5 * time.Second

// maxSaid limits the stored output of a candidate, in bytes. A panic begins with its reason, and the stacks of all
// goroutines follow.
const maxSaid = 256 << 10

// maxSteps far exceeds the steps of a tick. It limits a candidate that misbehaves.
const maxSteps = 100

// Watch lets a candidate run one tick, and ends it when a step exceeds its limit. It returns only after the candidate
// has exited. A candidate never outlives this process.
func Watch(ctx context.Context, c Command, limits Proof) Trial {
	read, write, err := os.Pipe()
	if err != nil {
		return Trial{Err: err}
	}
	defer read.Close()
	said := &clip.Tail{Limit: maxSaid}
	cmd := c.child(c.Stdout, io.MultiWriter(c.Stderr, said))
	cmd.Files, cmd.Left = []*os.File{write}, child.KeepServices
	c.Log.Info("the new agent does this tick", "command", cmd.String())
	candidate, err := cmd.Start()
	write.Close()
	if err != nil {
		return Trial{Err: err}
	}
	words := make(chan word)
	go listen(read, words)
	t := follow(ctx, words, candidate.Ended(), limits, func(at string) {
		gentle := gentleWait
		if at == "apply" {
			gentle += c.Gentle
		}
		candidate.EndWithin(gentle)
	})
	_ = candidate.Wait() // the exit status is read below
	go func() {
		for range words { // discard later lines
			continue
		}
	}()
	t.Code, t.Words = candidate.State().ExitCode(), said.String()
	if status, ok := candidate.State().Sys().(syscall.WaitStatus); ok && status.Signaled() {
		t.Signal = status.Signal().String()
		gentle := status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGINT
		t.Stopped = t.Stopped || t.Late == "" && gentle && endsSoon(ctx)
	} else if t.Late == "" && t.Code != 0 && (t.Ending == nil || t.Ending.Problem != "") { // a shutdown's signal may have made it fail
		t.Stopped = t.Stopped || endsSoon(ctx)
	}
	return t
}

// endsSoon reports whether this agent is signalled to stop, now or within stopWait.
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

// follow records a candidate's messages, and ends the candidate when a step exceeds its limit.
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
			case w.ending != nil && at != endStep:
				at, t.Ending = endStep, w.ending
			case at != endStep && len(t.Steps) < maxSteps:
				at, t.Steps = w.step, append(t.Steps, w.step)
			default:
				continue // does not extend the limit
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

// rest records the remaining messages of a candidate that has exited. A program that inherited the pipe may hold it
// open.
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
				t.Ending = cmp.Or(t.Ending, w.ending)
			case len(t.Steps) < maxSteps:
				t.Steps = append(t.Steps, w.step)
			}
		case <-timer.C:
			return t
		}
	}
	return t
}

// of returns the time limit of a step.
func (p Proof) of(step string) time.Duration {
	switch step {
	case startStep:
		return p.FirstStep
	case endStep:
		return endLimit
	case "apply":
		return p.Apply
	case "stage", "verify":
		return p.Slow
	}
	return p.Step
}

// child returns the candidate: it is this program, with the same surroundings, and does not outlive a killed agent.
func (c Command) child(stdout, stderr io.Writer) child.Command {
	return child.Command{Path: c.Path, Args: c.Args, Env: os.Environ(), Stdout: stdout, Stderr: stderr, Bound: true}
}

// SelfTest runs a candidate's self-test, and returns its problem and exit code if it failed; -1 without an exit code.
// Nothing means that the machine could not start it, or that ctx ended.
func SelfTest(ctx context.Context, c Command, limit time.Duration) (found Finding, why model.Problem, code int) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	said := &clip.Tail{Limit: maxSaid}
	cmd := c.child(said, said)
	c.Log.Info("testing the new agent", "command", cmd.String())
	err := cmd.Run(ctx)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return Good, model.Problem{}, 0
	case parent.Err() != nil:
		return Nothing, model.Problem{Code: model.UpgradeStopped}, -1
	case ctx.Err() != nil:
		return Bad, model.Problem{Code: model.UpgradeSelfTestLate, Limit: limit}, -1
	case !errors.As(err, &exit) && machines(err):
		return Nothing, model.Problem{Code: model.UpgradeNotStarted, Text: model.Prose(err.Error())}, -1
	}
	text, code := err.Error(), -1
	if exit != nil {
		code = exit.ExitCode()
		if last := (Trial{Words: said.String()}).said(); last != "" {
			text += ": " + string(last)
		}
	}
	return Bad, model.Problem{Code: model.UpgradeSelfTest, Text: model.Prose(text)}, code
}
