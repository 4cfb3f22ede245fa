package puppet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/child"
	"pulley/internal/model"
)

// end is the end of a Puppet process.
type end struct {
	code     int    // its exit code, 128+n when signal n ended it
	why      string // why the agent ended it; "" if it exited by itself
	outlived bool   // a process survived SIGKILL
}

// run starts the prepared command, holds the locks while it runs, and ends it at the deadline or when ctx ends.
func (p *Puppet) run(ctx context.Context, cmd *child.Command, job model.Job) (end, error) {
	path := filepath.Join(p.RunDir(job.ID), "puppet.log")
	// Puppet writes to the file directly. With a pipe, the agent's death would break Puppet, and a service that
	// inherited the pipe would block the agent.
	err := os.RemoveAll(path)
	if err != nil {
		return end{}, fmt.Errorf("cannot keep Puppet's log: %w", err)
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600) // never a named pipe, which could block
	if err != nil {
		return end{}, fmt.Errorf("cannot keep Puppet's log: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	limit := cmp.Or(p.Deadline, DefaultDeadline)
	if job.Deadline > 0 {
		limit = min(limit, job.Deadline)
	}
	p.log().Info("running puppet", "command", cmd.String(), "deadline", limit)
	puppet, err := cmd.Start()
	if err != nil {
		return end{}, fmt.Errorf("cannot start Puppet: %w", err)
	}
	release, err := p.claim(puppet.Process, limit)
	if err != nil {
		// Ruby takes hundreds of milliseconds to load, so this Puppet has not changed anything yet.
		if puppet.EndWithin(0) {
			_ = puppet.Wait()
		}
		return end{}, err
	}
	follow := p.follow(path)
	e := watch(ctx, puppet, limit)
	follow()
	if e.outlived {
		e.code = 128 + int(syscall.SIGKILL)
		return e, nil // keep locks and record: it still runs
	}
	_ = puppet.Wait() // the code tells
	release()
	e.code = puppet.ExitCode()
	return e, nil
}

// claim records the started Puppet and takes Puppet's locks for it.
func (p *Puppet) claim(me child.Process, limit time.Duration) (release func(), err error) {
	if err := p.record(me, limit); err != nil {
		return nil, err
	}
	unlock, err := p.hold(me.PID)
	if err != nil {
		p.forget()
		return nil, err
	}
	return func() { unlock(); p.forget() }, nil
}

// watch waits for the process, and ends it at its deadline.
func watch(ctx context.Context, puppet *child.Child, limit time.Duration) end {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var e end
	select {
	case <-puppet.Ended():
		return e
	case <-timer.C:
		e.why = fmt.Sprintf("it was ended at its deadline of %s", limit)
	case <-ctx.Done():
		e.why = "it was ended because the agent was stopped"
	}
	e.outlived = !puppet.End()
	return e
}

// follow copies the growing log to Stdout until the returned function is called, which copies the rest.
func (p *Puppet) follow(path string) (finish func()) {
	if p.Stdout == nil {
		return func() {}
	}
	f, err := os.Open(path)
	if err != nil {
		p.log().Warn("cannot show puppet's output", "error", err)
		return func() {}
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			_, err := io.Copy(p.Stdout, f)
			select {
			case <-stop:
				_, last := io.Copy(p.Stdout, f)
				done <- errors.Join(err, last)
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		close(stop)
		if err := <-done; err != nil {
			p.log().Warn("cannot show puppet's output", "error", err)
		}
		f.Close()
	}
}

// running is the record of a started Puppet, for the next agent.
type running struct {
	Pid      int           `json:"pid"`
	Start    uint64        `json:"start"`    // clock ticks after boot
	Boot     string        `json:"boot"`     // the kernel's id of this boot
	Deadline time.Duration `json:"deadline"` // after boot
}

func (p *Puppet) recordPath() string { return filepath.Join(p.Dir, "puppet", "running.json") }

func (p *Puppet) record(me child.Process, limit time.Duration) error {
	data, err := json.Marshal(running{Pid: me.PID, Start: me.Start, Boot: bootID(), Deadline: sinceBoot() + limit})
	if err == nil {
		err = atomicfile.WriteVolatile(p.recordPath(), data, 0o600) // a crash of the machine voids it
	}
	if err != nil {
		return fmt.Errorf("cannot record the running Puppet: %w", err)
	}
	return nil
}

func (p *Puppet) forget() { _ = os.Remove(p.recordPath()) }

// Reap finds a Puppet whose agent died. Before that run's deadline, Reap returns a *BusyError: Puppet may finish. After
// the deadline, Reap ends Puppet and all its processes, as its agent would have done.
func (p *Puppet) Reap(ctx context.Context) error {
	text, err := readSmall(p.recordPath())
	if err != nil {
		return nil // none
	}
	var r running
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Boot != bootID() || r.Pid <= 1 {
		p.forget()
		return nil
	}
	old := child.Process{PID: r.Pid, Start: r.Start}
	if !old.Alive() {
		p.forget()
		return nil
	}
	if sinceBoot() < r.Deadline {
		return &BusyError{Path: p.recordPath(), Pid: r.Pid}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.log().Warn("ending a Puppet process of an earlier run, which is past its deadline", "pid", r.Pid)
	if !old.End(p.grace()) {
		return fmt.Errorf("cannot end the Puppet of an earlier run (pid %d): it outlived SIGKILL", r.Pid)
	}
	p.forget()
	return nil
}
