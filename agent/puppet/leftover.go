package puppet

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/atomicfile"
)

// running is the record of a started Puppet, for the next agent.
type running struct {
	Pid      int           `json:"pid"`
	Start    uint64        `json:"start"`    // clock ticks after boot
	Boot     string        `json:"boot"`     // the kernel's id of this boot
	Deadline time.Duration `json:"deadline"` // after boot
}

func (p *Puppet) recordPath() string { return filepath.Join(p.Dir, "puppet", "running.json") }

func (p *Puppet) record(me process, limit time.Duration) error {
	data, err := json.Marshal(running{Pid: me.pid, Start: me.start, Boot: bootID(), Deadline: sinceBoot() + limit})
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
	old := process{pid: r.Pid, start: r.Start}
	if !old.alive() {
		p.forget()
		return nil
	}
	if sinceBoot() < r.Deadline {
		return &BusyError{Path: p.recordPath(), Pid: r.Pid}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.log().Warn("ending a puppet that outlived its agent and its deadline", "pid", r.Pid)
	if !stop(old, p.grace(), func() bool { return !old.alive() }) {
		return fmt.Errorf("cannot end the Puppet of an earlier run (pid %d): it outlived SIGKILL", r.Pid)
	}
	p.forget()
	return nil
}
