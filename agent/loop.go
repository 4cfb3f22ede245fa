package agent

import (
	"context"
	"time"
)

// Loop ticks immediately and then at each time that next returns, until ctx ends. Ticks never overlap: if a tick is
// still running at a due time, Loop skips that time. The zero time ends the schedule.
func Loop(ctx context.Context, now func() time.Time, next func(time.Time) time.Time, tick func(context.Context)) {
	for {
		tick(ctx)
		due := next(now())
		if due.IsZero() {
			<-ctx.Done()
			return
		}
		timer := time.NewTimer(max(due.Sub(now()), 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// Splay returns a node's delay before a tick, below limit, to spread the ticks of a fleet. The delay is constant for
// one name.
func Splay(node string, limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return time.Duration((spread(node, 0) + 1) / 2 * float64(limit))
}
