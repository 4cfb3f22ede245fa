package mirror

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// cache keeps the most recently read values, up to a number of bytes. Concurrent requests for one name share a single
// read. A fleet that installs one release therefore costs etcd one read, not one per node.
type cache struct {
	limit int64 // bytes
	now   func() time.Time

	mu      sync.Mutex
	bytes   int64
	entries map[name]*list.Element // of *entry
	order   *list.List             // most recently used first
	flights map[name]*flight
	absent  map[name]absence
}

// absence records that a value does not exist.
type absence struct {
	err   error
	until time.Time
}

const (
	// maxFlights limits running and waiting reads. A read can outlive the request that started it.
	maxFlights = maxRequests
	// How long, and for how many names, a missing value is not read again. The time is short, because the value may be
	// published.
	absenceLifetime = 3 * time.Second
	maxAbsent       = 4096
)

var errCrowded = errors.New("too many reads at once")

type entry struct {
	name  name
	value []byte
	until time.Time // zero: never expires
}

// flight is a running read. value and err are valid after done is closed.
type flight struct {
	done  chan struct{}
	value []byte
	err   error
}

func newCache(limit int64, now func() time.Time) *cache {
	return &cache{limit: limit, now: now, entries: map[name]*list.Element{}, order: list.New(), flights: map[name]*flight{}, absent: map[name]absence{}}
}

// get returns the cached value of n, or the result of read. It caches the result for the duration keep (0: forever).
// The read continues if the request that started it is cancelled, because other requests may wait for it. Errors for
// which gone returns true are cached too.
func (c *cache) get(ctx context.Context, n name, keep time.Duration, gone func(error) bool, read func(context.Context) ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	if value, ok := c.kept(n); ok {
		c.mu.Unlock()
		return value, nil
	}
	if a, ok := c.absent[n]; ok && c.now().Before(a.until) {
		c.mu.Unlock()
		return nil, a.err
	}
	f, joined := c.flights[n]
	if !joined {
		if len(c.flights) >= maxFlights {
			c.mu.Unlock()
			return nil, errCrowded
		}
		f = &flight{done: make(chan struct{})}
		c.flights[n] = f
		go c.fly(context.WithoutCancel(ctx), n, keep, f, gone, read)
	}
	c.mu.Unlock()
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *cache) fly(ctx context.Context, n name, keep time.Duration, f *flight, gone func(error) bool, read func(context.Context) ([]byte, error)) {
	f.value, f.err = read(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, n)
	switch {
	case f.err == nil:
		delete(c.absent, n)
		c.keep(n, f.value, keep)
	case gone(f.err):
		if len(c.absent) >= maxAbsent {
			clear(c.absent)
		}
		c.absent[n] = absence{f.err, c.now().Add(absenceLifetime)}
	}
	close(f.done)
}

// kept returns the cached value. The caller holds the lock.
func (c *cache) kept(n name) ([]byte, bool) {
	at, ok := c.entries[n]
	if !ok {
		return nil, false
	}
	e := at.Value.(*entry)
	if !e.until.IsZero() && !c.now().Before(e.until) {
		c.remove(at)
		return nil, false
	}
	c.order.MoveToFront(at)
	return e.value, true
}

// keep caches a value. The caller holds the lock.
func (c *cache) keep(n name, value []byte, keep time.Duration) {
	if int64(len(value)) > c.limit {
		return
	}
	e := &entry{name: n, value: value}
	if keep > 0 {
		e.until = c.now().Add(keep)
	}
	c.entries[n] = c.order.PushFront(e)
	c.bytes += int64(len(value))
	for c.bytes > c.limit {
		c.remove(c.order.Back())
	}
}

func (c *cache) remove(at *list.Element) {
	e := at.Value.(*entry)
	c.order.Remove(at)
	delete(c.entries, e.name)
	c.bytes -= int64(len(e.value))
}
