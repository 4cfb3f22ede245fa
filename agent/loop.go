package agent

import (
	"context"
	"time"
)

// Loop ticks at once and then at each time that next gives, until ctx ends. A tick that is still at work when its
// successor is due is not joined by a second one: the successor is left out. The zero time means that there is none.
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

// Splay is how long a node waits before a tick so that a fleet's ticks spread over limit: always the same for one name,
// so that each node keeps its own rhythm.
func Splay(node string, limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return time.Duration((spread(node, 0) + 1) / 2 * float64(limit))
}
