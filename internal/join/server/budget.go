package server

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"pulley/internal/join"
)

// Limits on the requests of one authenticated party. A first boot reports up to four dozen times within minutes; a node
// renews and registers once in weeks.
const (
	askedBurst = 60
	askedEvery = 10 * time.Second // one more is allowed
	joinsEvery = time.Minute      // of one name, after as many: a machine with a token can join and leave without end
)

// Limits on the refused requests of one party: an address or a certificate. A rack behind one address with a wrong
// token must still get through with the right one. Debt is bounded, because a party with a corrected token waits until
// it is paid.
const (
	refusedBurst = 60
	refusedEvery = time.Second
	mostDebt     = 60
	maxBuckets   = 4096
)

// limiter holds a token bucket for each party. An unknown party has a full one.
type limiter struct {
	burst float64
	every time.Duration // interval of one token

	mu      sync.Mutex
	buckets map[string]*bucket
}

func newLimiter(burst float64, every time.Duration) *limiter {
	return &limiter{burst: burst, every: every, buckets: map[string]*bucket{}}
}

// bucket holds a party's remaining requests; less than 0 is debt.
type bucket struct {
	left float64
	at   time.Time
}

// filled returns the contents of a bucket now.
func (l *limiter) filled(b *bucket, now time.Time) float64 {
	if gone := now.Sub(b.at); gone > 0 {
		return min(b.left+gone.Seconds()/l.every.Seconds(), l.burst)
	}
	return b.left
}

// blocked returns the time that a party must wait; 0 is none.
func (l *limiter) blocked(party string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.buckets[party]; ok {
		return l.wait(b, now)
	}
	return 0
}

func (l *limiter) wait(b *bucket, now time.Time) time.Duration {
	if left := l.filled(b, now); left < 1 {
		return time.Duration((1 - left) * float64(l.every))
	}
	return 0
}

// spend takes one token, even from an empty bucket.
func (l *limiter) spend(party string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spendFrom(l.bucket(party, now), now)
}

// take takes one token, or returns the time until there is one.
func (l *limiter) take(party string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(party, now)
	if wait := l.wait(b, now); wait > 0 {
		return wait
	}
	l.spendFrom(b, now)
	return 0
}

func (l *limiter) spendFrom(b *bucket, now time.Time) {
	b.left, b.at = max(l.filled(b, now)-1, -mostDebt), now
}

func (l *limiter) bucket(party string, now time.Time) *bucket {
	b, ok := l.buckets[party]
	if !ok {
		l.makeRoom(now)
		b = &bucket{left: l.burst, at: now}
		l.buckets[party] = b
	}
	return b
}

// makeRoom drops full buckets, and then others at random: the bound of the map is more important than fairness. It
// drops many at once. Otherwise every new party would cost a pass over the map.
func (l *limiter) makeRoom(now time.Time) {
	if len(l.buckets) < maxBuckets {
		return
	}
	for key, b := range l.buckets {
		if l.filled(b, now) >= l.burst {
			delete(l.buckets, key)
		}
	}
	for key := range l.buckets {
		if len(l.buckets) <= maxBuckets*3/4 {
			return
		}
		delete(l.buckets, key)
	}
}

// inTurn makes a request wait for a slot. Joins have slots of their own, and progress reports do not delay them. The
// body is read before the wait: a slow sender occupies no slot.
func (g gate) inTurn(do func(context.Context, *caller) (any, error)) func(context.Context, *caller) (any, error) {
	return inTurn(g.others, do)
}

func inTurn(in slots, do func(context.Context, *caller) (any, error)) func(context.Context, *caller) (any, error) {
	return func(ctx context.Context, c *caller) (any, error) {
		b, err := c.body()
		if err != nil {
			return nil, err
		}
		c.Body = io.NopCloser(bytes.NewReader(b))
		leave, err := in.enter(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
		return do(ctx, c)
	}
}

// within refuses a request beyond the party's budget.
func (g gate) within(party string) error {
	if wait := g.asked.take(party, g.now()); wait > 0 {
		return &busyError{reason: join.TooOften, after: wait}
	}
	return nil
}

// slots bound concurrent work, and the requests that wait for it.
type slots struct{ turn, waiting chan struct{} }

func newSlots() slots { return slots{make(chan struct{}, maxJoins), make(chan struct{}, maxWaiting)} }

// enter waits for a slot.
func (s slots) enter(ctx context.Context) (leave func(), err error) {
	select {
	case s.waiting <- struct{}{}:
	default:
		return nil, busy(5 * time.Second)
	}
	defer func() { <-s.waiting }()
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, busy(5 * time.Second)
	}
}
