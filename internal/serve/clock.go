package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/access/fleetca"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
)

// Limits of a clock. A wrong clock replaces certificates, ends holds and tokens, and makes all nodes look silent. Below
// maxAhead the damage heals by itself. maxBehind, of what nodes report, lets pass a hardware clock in local time.
const (
	maxAhead  = 30 * 24 * time.Hour
	maxBehind = 24 * time.Hour
)

// clockInterval is the pause between two checks of the clock while serve runs.
const clockInterval = 5 * time.Second

// markInterval is the pause between two writes of the mark.
const markInterval = time.Minute

// notable is a step of the clock that serve logs.
const notable = time.Minute

// ClockError reports that the clock of this machine contradicts the newest known time. It stops serve.
type ClockError struct {
	Now, Known time.Time
	Running    bool // serve started with a clock that agreed; Known includes the time since then
}

func (e *ClockError) Error() string {
	verb, since := "start", ""
	if e.Running {
		verb, since = "continue", ", with the time since the start,"
	}
	text := fmt.Sprintf("cannot %s serve: this machine's clock shows %s, and the newest time in etcd and in the data folder%s is %s", verb, stamp(e.Now), since, stamp(e.Known))
	if e.Now.Before(e.Known) {
		return text + ": the clock is behind"
	}
	return text + fmt.Sprintf(": the clock is %d days ahead", int(e.Now.Sub(e.Known).Hours()/24))
}

// Hint returns the remedy.
func (e *ClockError) Hint() string {
	return fmt.Sprintf("correct the clock, and start serve again; if the clock is correct (`date -u`), start serve with --today %s", e.Now.UTC().Format(time.DateOnly))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// clock keeps serve from working with a wrong clock. What nodes report, and the mark, show the time at the start. From then on,
// a timer that nobody sets counts: each reading must agree with the time at the start plus the time since. A correction of a clock
// that was wrong at the start agrees, and several small steps add up.
type clock struct {
	now   func() time.Time
	nodes func(context.Context) (time.Time, error) // the newest reports, as their median; zero for fewer than three nodes
	timer func() time.Duration                     // since any moment, also while the machine sleeps
	log   *slog.Logger
	mark  string // a file whose modification time is the last time at which serve ran; "" for a serve without a data folder
	today string // the date that an operator confirmed; "" for none

	mu       sync.Mutex
	at       time.Duration // of the start, by the timer
	known    time.Time     // the newest time that was known at the start
	from, to time.Time     // the readings that agree with it, at the start
	last     time.Time     // the last reading that agreed, and its time by the timer
	lastAt   time.Duration
	marked   time.Time
}

// withClock returns the clock of serve, and c with the times of that clock for all that serve does.
func (c Config) withClock() (Config, *clock) {
	k := &clock{now: c.Now, timer: sinceBoot, log: c.Log, today: c.Today}
	switch {
	case !c.Cluster:
		k.mark = filepath.Join(c.DataDir, "lock")
	case c.Joins:
		k.mark = filepath.Join(c.DataDir, fleetca.PKIName, "lock")
	}
	c.Now, c.CA.Now = k.time, k.time
	return c, k
}

// sinceBoot reads the timer of the machine.
func sinceBoot() time.Duration {
	id := int32(unix.CLOCK_MONOTONIC)
	if runtime.GOOS == "linux" {
		id = 7 // CLOCK_BOOTTIME: macOS calls its own monotonic
	}
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // it never fails
	return time.Duration(t.Nano())
}

// time returns the time of the clock. If the clock contradicts the start, it returns the last time that agreed, plus the time
// since. Each reading is judged: the clock may jump after a check, in the middle of a task.
func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, at := c.now(), c.timer()
	if c.judge(now, at) != nil {
		return c.last.Add(at - c.lastAt)
	}
	return now
}

// start checks the clock against the newest reports of nodes and the mark.
func (c *clock) start(ctx context.Context, st *etcd.DB) error {
	c.nodes = cluster.In(st).NodesTime
	reported, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, at := c.now().Round(0), c.timer()
	c.known, c.from = reported, reported.Add(-maxBehind)
	var mark time.Time
	if info, err := os.Stat(c.mark); err == nil {
		mark = info.ModTime()
	}
	switch {
	case reported.IsZero() && mark.IsZero():
		c.known, c.from = now, now.Add(-maxAhead)
	case reported.IsZero(): // the same clock set the mark, and may have been ahead
		c.known, c.from = mark, mark.Add(-maxAhead)
	case mark.After(reported) && !mark.After(now):
		c.known = mark
	}
	if c.to = c.known.Add(maxAhead); now.Before(c.from) || now.After(c.to) {
		if !c.confirmed(now) {
			return &ClockError{Now: now, Known: c.known}
		}
		c.known, c.from, c.to = now, now.Add(-maxAhead), now.Add(maxAhead)
	}
	if day := now.Add(maxBehind); day.After(c.to) { // a small correction of a clock at the limit
		c.to = day
	}
	if day := now.Add(-maxBehind); day.Before(c.from) {
		c.from = day
	}
	c.at, c.last, c.lastAt = at, now, at
	c.note(now)
	return nil
}

// check checks the clock against the time at the start. The timer of a virtual machine may stop while its host pauses it:
// a clock that agrees with the newest reports of nodes is right.
func (c *clock) check(ctx context.Context) error {
	wrong := c.look()
	if wrong == nil {
		return nil
	}
	reported, err := c.nodes(ctx)
	if err != nil || reported.IsZero() {
		return wrong
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, at := c.now().Round(0), c.timer()
	if now.Before(reported.Add(-maxBehind)) || now.After(reported.Add(maxAhead)) {
		return wrong
	}
	if c.log != nil {
		c.log.Warn("the timer of this machine stopped; its clock agrees with the newest reports of nodes", "time", now.UTC())
	}
	c.known, c.from, c.to = reported, reported.Add(-maxBehind), reported.Add(maxAhead)
	c.at, c.last, c.lastAt = at, now, at
	c.note(now)
	return nil
}

// look checks a reading against the time at the start.
func (c *clock) look() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, at := c.now().Round(0), c.timer()
	if err := c.judge(now, at); err != nil {
		return err
	}
	if step := now.Sub(c.last.Add(at - c.lastAt)); step.Abs() >= notable && c.log != nil {
		c.log.Warn("the clock of this machine was set", "step", step.Round(time.Second), "time", now.UTC())
	}
	c.last, c.lastAt = now, at
	if now.Sub(c.marked).Abs() >= markInterval {
		c.note(now)
	}
	return nil
}

// judge compares a reading with the time at the start plus the time since.
func (c *clock) judge(now time.Time, at time.Duration) error {
	since := at - c.at
	if c.last.IsZero() || !now.Before(c.from.Add(since)) && !now.After(c.to.Add(since)) {
		return nil
	}
	return &ClockError{Now: now, Known: c.known.Add(since), Running: true}
}

// confirmed reports whether an operator confirmed the date of the clock. A confirmation that was left behind in a
// service's settings confirms no other date.
func (c *clock) confirmed(now time.Time) bool {
	day, err := time.Parse(time.DateOnly, c.today)
	return err == nil && now.After(day.Add(-maxBehind)) && now.Before(day.Add(2*maxBehind))
}

// note sets the mark. Without a mark, a later start has less to compare the clock with, and works.
func (c *clock) note(now time.Time) {
	c.marked = now
	_ = os.Chtimes(c.mark, now, now)
}
