package desk

import (
	"net/netip"
	"sync"
	"time"

	"pulley/internal/join"
	"pulley/internal/store"
)

// refuse counts and logs a no.
func (d *Desk) refuse(c *caller, e *join.RefusedError) {
	now := d.Now()
	d.limits.spend(c.from, now)
	d.metrics.refusals.WithLabelValues(string(e.Reason)).Inc()
	r := store.Refusal{At: now.UTC(), Path: c.URL.Path, From: c.from, Reason: string(e.Reason), Detail: e.Detail}
	for i := 0; i+1 < len(c.say); i += 2 {
		text, _ := c.say[i+1].(string)
		switch c.say[i] {
		case "token":
			r.Token = text
		case "env":
			r.Environment = text
		case "node":
			r.Node = text
		case "machine":
			r.Machine = text
		}
	}
	d.refused.add(r)
	d.log.Warn("refused", append(c.say, "path", c.URL.Path, "from", c.from, "reason", string(e.Reason), "detail", e.Detail)...)
}

// refusals are those that etcd has not heard of.
type refusals struct {
	mu   sync.Mutex
	news store.Refusals
}

func (r *refusals) add(one store.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news.Add(one)
}

func (r *refusals) take() store.Refusals {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = store.Refusals{}
	return news
}

// back returns what could not be written.
func (r *refusals) back(news store.Refusals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	news.Merge(r.news)
	r.news = news
}

// How many requests of one address may be refused: a whole rack behind one address that has a wrong token still gets
// through with the right one.
const (
	refusedBurst = 60
	refusedEvery = time.Second // one more is allowed
	maxBuckets   = 4096
)

// limiter turns away addresses whose requests are refused all the time. Who is not refused costs nothing.
type limiter struct {
	mu      sync.Mutex
	buckets map[string]*bucket
}

// bucket holds how many more may be refused.
type bucket struct {
	left float64
	at   time.Time
}

// filled is what a bucket holds now.
func (b *bucket) filled(now time.Time) float64 {
	if gone := now.Sub(b.at); gone > 0 {
		return min(b.left+gone.Seconds()/refusedEvery.Seconds(), refusedBurst)
	}
	return b.left
}

// blocked is how long an address has to wait; 0 for not at all.
func (l *limiter) blocked(from string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[network(from)]
	if !ok {
		return 0
	}
	if left := b.filled(now); left < 1 {
		return time.Duration((1 - left) * float64(refusedEvery))
	}
	return 0
}

func (l *limiter) spend(from string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := network(from)
	b, ok := l.buckets[key]
	if !ok {
		l.makeRoom(now)
		b = &bucket{left: refusedBurst, at: now}
		l.buckets[key] = b
	}
	b.left, b.at = b.filled(now)-1, now
}

// makeRoom drops who has been quiet, and where nobody has, anybody: the map is bounded before it is fair.
func (l *limiter) makeRoom(now time.Time) {
	if len(l.buckets) < maxBuckets {
		return
	}
	for key, b := range l.buckets {
		if b.filled(now) >= refusedBurst {
			delete(l.buckets, key)
		}
	}
	for key := range l.buckets {
		if len(l.buckets) < maxBuckets {
			return
		}
		delete(l.buckets, key)
	}
}

// network is what one party has of addresses: one of IPv4, 2⁶⁴ of IPv6.
func network(from string) string {
	a, err := netip.ParseAddr(from)
	if err != nil || a.Unmap().Is4() {
		return from
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return from
	}
	return p.String()
}
