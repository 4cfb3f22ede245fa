package server

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"pulley/internal/join"
)

// How often one party that is let in may ask: a first boot says two dozen words within minutes, a node renews and registers
// once in weeks. What a party writes through serve is bounded so, whatever it sends.
const (
	askedBurst = 30
	askedEvery = 10 * time.Second // one more is allowed
)

// How many may be refused of one party, which is an address or who has a certificate: a whole rack behind one address that
// has a wrong token still gets through with the right one. Debt is bounded, as who has mended what was wrong has to wait for
// it.
const (
	refusedBurst = 60
	refusedEvery = time.Second
	mostDebt     = 60
	maxBuckets   = 4096
)

// limiter is a bucket of tokens for each party. Who has not been heard of has a full one.
type limiter struct {
	burst float64
	every time.Duration // one token more

	mu      sync.Mutex
	buckets map[string]*bucket
}

func newLimiter(burst float64, every time.Duration) *limiter {
	return &limiter{burst: burst, every: every, buckets: map[string]*bucket{}}
}

// bucket holds how many more may be spent; less than 0 is debt.
type bucket struct {
	left float64
	at   time.Time
}

// filled is what a bucket holds now.
func (l *limiter) filled(b *bucket, now time.Time) float64 {
	if gone := now.Sub(b.at); gone > 0 {
		return min(b.left+gone.Seconds()/l.every.Seconds(), l.burst)
	}
	return b.left
}

// blocked is how long a party has to wait; 0 for not at all.
func (l *limiter) blocked(party string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.buckets[network(party)]; ok {
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

// spend takes one, whether or not it is there.
func (l *limiter) spend(party string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.take(l.bucket(party, now), now)
}

// ask takes one that is there, and says else how long to wait.
func (l *limiter) ask(party string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(party, now)
	if wait := l.wait(b, now); wait > 0 {
		return wait
	}
	l.take(b, now)
	return 0
}

func (l *limiter) take(b *bucket, now time.Time) {
	b.left, b.at = max(l.filled(b, now)-1, -mostDebt), now
}

func (l *limiter) bucket(party string, now time.Time) *bucket {
	key := network(party)
	b, ok := l.buckets[key]
	if !ok {
		l.makeRoom(now)
		b = &bucket{left: l.burst, at: now}
		l.buckets[key] = b
	}
	return b
}

// makeRoom drops who has been quiet, and where nobody has, anybody: the map is bounded before it is fair. It drops a part at
// once, so that not each newcomer costs a look at all.
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

// inTurn has do wait for a turn, which joins have others of: words of first boots don't hold them up, nor the other way
// round. The body is read before, so that who sends it slowly has no turn meanwhile.
func (d *Server) inTurn(do func(context.Context, *caller) (any, error)) func(context.Context, *caller) (any, error) {
	return func(ctx context.Context, c *caller) (any, error) {
		b, err := io.ReadAll(c.Body)
		c.Body = io.NopCloser(io.MultiReader(bytes.NewReader(b), failing{err}))
		select {
		case d.othersWaiting <- struct{}{}:
		default:
			return nil, &busyError{join.TooBusy, 5 * time.Second}
		}
		select {
		case d.othersTurn <- struct{}{}:
			<-d.othersWaiting
			defer func() { <-d.othersTurn }()
			return do(ctx, c)
		case <-ctx.Done():
			<-d.othersWaiting
			return nil, &busyError{join.TooBusy, 5 * time.Second}
		}
	}
}

// failing is the end of a body: as it was.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// within refuses what a party asks beyond its budget.
func (d *Server) within(party string) error {
	wait := d.asked.ask(party, d.Now())
	if wait == 0 {
		return nil
	}
	return &busyError{join.TooOften, wait}
}
