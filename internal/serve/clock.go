package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pulley/internal/fleetca"
	"pulley/internal/store"
)

// Limits of a clock. A wrong clock replaces certificates, ends holds and tokens, and makes all nodes look silent. Below
// maxAhead the damage heals by itself. maxBehind lets pass a hardware clock in local time.
const (
	maxAhead  = 30 * 24 * time.Hour
	maxBehind = 24 * time.Hour
)

// clockInterval is the pause between two checks of the clock while serve runs.
const clockInterval = 5 * time.Second

// markInterval is the pause between two writes of the mark.
const markInterval = time.Minute

// ClockError reports that the clock of this machine contradicts the newest known time. It stops serve.
type ClockError struct {
	Now, Known time.Time
	Running    bool // the clock jumped while serve ran
}

func (e *ClockError) Error() string {
	verb, newest := "start", "the newest time in etcd and in the data folder is"
	if e.Running {
		verb, newest = "continue", "a moment ago it showed"
	}
	text := fmt.Sprintf("cannot %s serve: this machine's clock shows %s, and %s %s", verb, stamp(e.Now), newest, stamp(e.Known))
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

// clock keeps serve from working with a wrong clock. The modification time of a file, the mark, is the last time at
// which serve ran: a long absence and a wrong clock look the same otherwise.
type clock struct {
	now   func() time.Time
	mark  string // "" for a serve without a data folder
	today string // the date that an operator confirmed; "" for none

	mu     sync.Mutex
	known  time.Time // the newest known time, without a monotonic reading, which does not jump with the clock
	marked time.Time
}

// withClock returns the clock of serve, and c with the times of that clock for all that serve does.
func (c Config) withClock() (Config, *clock) {
	k := &clock{now: c.Now, today: c.Today}
	switch {
	case !c.Cluster:
		k.mark = filepath.Join(c.DataDir, "lock")
	case c.Joins:
		k.mark = filepath.Join(c.DataDir, fleetca.PKIName, "lock")
	}
	c.Now, c.CA.Now = k.time, k.time
	return c, k
}

// time returns the time of the clock, or that of the last check if the two contradict each other. Each reading is judged:
// the clock may jump after a check, in the middle of a task.
func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if judge(now, c.known) != nil {
		return c.known
	}
	return now
}

// start checks the clock against the mark and the newest reports of nodes.
func (c *clock) start(ctx context.Context, st *store.Store) error {
	known, err := st.Cluster.NodesTime(ctx)
	if err != nil {
		return err
	}
	if info, err := os.Stat(c.mark); err == nil && info.ModTime().After(known) {
		known = info.ModTime()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now().Round(0)
	if err := judge(now, known); err != nil && !c.confirmed(now) {
		return err
	}
	c.known = now
	c.note(now)
	return nil
}

// check checks the clock against the last check.
func (c *clock) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now().Round(0)
	var wrong *ClockError
	if err := judge(now, c.known); errors.As(err, &wrong) {
		wrong.Running = true
		return wrong
	}
	c.known = now
	if now.Sub(c.marked).Abs() >= markInterval {
		c.note(now)
	}
	return nil
}

// judge compares a clock with the newest known time, which may be zero.
func judge(now, known time.Time) error {
	if known.IsZero() || now.After(known.Add(-maxBehind)) && now.Before(known.Add(maxAhead)) {
		return nil
	}
	return &ClockError{Now: now, Known: known}
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
