package apply

import (
	"context"
	"errors"
	"sync"
	"time"

	"pulley/internal/machines"
)

// Polling intervals while any job waits. Providers rate-limit.
const (
	worldEvery  = 2 * time.Second
	listEvery   = 5 * time.Second
	readLimit   = time.Minute
	maxFailures = 5 // failed reads in a row until a job that waits for a new one fails
)

// snapshot is one read of the fleet: first etcd, then the provider.
type snapshot struct {
	World machines.World
	No    number
}

// number numbers reads in the order of their beginnings. A job that must see its own changes waits for a later one.
type number struct{ world, list int64 }

func (n number) covers(o number) bool { return n.world >= o.world && n.list >= o.list }

// poller reads the fleet, once for all jobs that wait.
type poller struct {
	world func(context.Context) (machines.World, error)
	list  func(context.Context) ([]machines.Machine, error)
	now   func() time.Time
	kick  chan struct{}

	mu       sync.Mutex
	last     snapshot
	begun    number
	wanted   number
	changed  chan struct{} // closed after each read
	failures int
	err      error // of the last read
	readAt   time.Time
	listedAt time.Time
}

func newPoller(first machines.World, world func(context.Context) (machines.World, error), list func(context.Context) ([]machines.Machine, error), now func() time.Time) *poller {
	return &poller{last: snapshot{World: first}, world: world, list: list, now: now, kick: make(chan struct{}, 1), changed: make(chan struct{})}
}

// next returns the number of the first snapshot that begins after now.
func (p *poller) next() number {
	p.mu.Lock()
	defer p.mu.Unlock()
	return number{p.begun.world + 1, p.begun.list + 1}
}

// get waits for a snapshot that covers no. It fails when ctx ends, or when reads keep failing.
func (p *poller) get(ctx context.Context, no number) (snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	failures := p.failures
	for !p.last.No.covers(no) {
		if p.failures-failures >= maxFailures || errors.Is(p.err, machines.ErrLost) {
			return snapshot{}, p.err
		}
		p.wanted.world, p.wanted.list = max(p.wanted.world, no.world), max(p.wanted.list, no.list)
		changed := p.changed
		p.mu.Unlock()
		select {
		case p.kick <- struct{}{}:
		default: // run is awake
		}
		select {
		case <-changed:
		case <-ctx.Done():
			p.mu.Lock()
			return snapshot{}, context.Cause(ctx)
		}
		p.mu.Lock()
	}
	return p.last, nil
}

// run reads while any job waits, until ctx ends.
func (p *poller) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
		}
		for p.isWanted() {
			if !sleep(ctx, p.pause()) {
				return
			}
			p.read(ctx)
		}
	}
}

func (p *poller) isWanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.last.No.covers(p.wanted)
}

func (p *poller) pause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readAt.IsZero() {
		return 0
	}
	return worldEvery - p.now().Sub(p.readAt)
}

// read reads etcd. It also reads the provider if a job needs it or its list is old.
func (p *poller) read(ctx context.Context) {
	p.mu.Lock()
	p.begun.world++
	no, was := p.begun, p.last
	lists := p.wanted.list > was.No.list || p.now().Sub(p.listedAt) >= listEvery
	p.mu.Unlock()

	reading, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	w, err := p.world(reading)
	w.Machines = was.World.Machines
	at := number{no.world, was.No.list}
	if err == nil && lists {
		// The list gets its number before it is read, after etcd was read.
		p.mu.Lock()
		p.begun.list++
		at.list = p.begun.list
		p.listedAt = p.now()
		p.mu.Unlock()
		w.Machines, err = p.list(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readAt, p.err = p.now(), err
	if err != nil {
		p.failures++
	} else {
		w.Now = p.now()
		p.failures, p.last = 0, snapshot{World: w, No: at}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// sleep waits for d and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
