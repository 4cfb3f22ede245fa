package apply

import (
	"context"
	"errors"
	"sync"
	"time"

	"pulley/internal/machines"
)

// How often is looked while anybody waits: at etcd, and at the provider, which takes it ill.
const (
	lookEvery = 2 * time.Second
	listEvery = 5 * time.Second
	readLimit = time.Minute
	maxBlind  = 5 // readings that may fail in a row for somebody who needs a new one
)

// sight is the fleet as it was seen: first etcd, then the provider.
type sight struct {
	World machines.World
	No    sightNo
}

// sightNo numbers readings in the order in which they began. Who needs to see what it has just done waits for a later one.
type sightNo struct{ world, list int64 }

func (n sightNo) covers(o sightNo) bool { return n.world >= o.world && n.list >= o.list }

// eyes look at the fleet, once for all who wait.
type eyes struct {
	world func(context.Context) (machines.World, error)
	list  func(context.Context) ([]machines.Machine, error)
	now   func() time.Time
	kick  chan struct{}

	mu       sync.Mutex
	seen     sight
	begun    sightNo
	wanted   sightNo
	changed  chan struct{} // closed when there is something new, a sight or a failure
	failures int
	err      error // of the last reading; nil when it worked
	looked   time.Time
	listed   time.Time
}

func newEyes(world func(context.Context) (machines.World, error), list func(context.Context) ([]machines.Machine, error), now func() time.Time) *eyes {
	return &eyes{world: world, list: list, now: now, kick: make(chan struct{}, 1), changed: make(chan struct{})}
}

// next numbers the first sight that begins after now.
func (y *eyes) next() sightNo {
	y.mu.Lock()
	defer y.mu.Unlock()
	return sightNo{y.begun.world + 1, y.begun.list + 1}
}

// see waits for a sight that covers no. It gives up when ctx ends, and when readings keep failing.
func (y *eyes) see(ctx context.Context, no sightNo) (sight, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	failures := y.failures
	for !y.seen.No.covers(no) {
		if y.failures-failures >= maxBlind || errors.Is(y.err, machines.ErrLost) {
			return sight{}, y.err
		}
		y.wanted.world, y.wanted.list = max(y.wanted.world, no.world), max(y.wanted.list, no.list)
		changed := y.changed
		y.mu.Unlock()
		select {
		case y.kick <- struct{}{}:
		default: // it is awake
		}
		select {
		case <-changed:
		case <-ctx.Done():
			y.mu.Lock()
			return sight{}, context.Cause(ctx)
		}
		y.mu.Lock()
	}
	return y.seen, nil
}

// run looks as long as anybody wants to see, until ctx ends.
func (y *eyes) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-y.kick:
		}
		for y.wanting() {
			if !sleep(ctx, y.pause()) {
				return
			}
			y.read(ctx)
		}
	}
}

func (y *eyes) wanting() bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	return !y.seen.No.covers(y.wanted)
}

func (y *eyes) pause() time.Duration {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.looked.IsZero() {
		return 0
	}
	return lookEvery - y.now().Sub(y.looked)
}

// read reads etcd, and the provider where somebody needs it or it was long ago.
func (y *eyes) read(ctx context.Context) {
	y.mu.Lock()
	y.begun.world++
	no, was := y.begun, y.seen
	lists := y.wanted.list > was.No.list || y.now().Sub(y.listed) >= listEvery
	y.mu.Unlock()

	reading, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	w, err := y.world(reading)
	w.Machines = was.World.Machines
	at := sightNo{no.world, was.No.list}
	if err == nil && lists {
		// Its number is taken when it begins, after etcd was read.
		y.mu.Lock()
		y.begun.list++
		at.list = y.begun.list
		y.listed = y.now()
		y.mu.Unlock()
		w.Machines, err = y.list(ctx)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.looked, y.err = y.now(), err
	if err != nil {
		y.failures++
	} else {
		w.Now = y.now()
		y.failures, y.seen = 0, sight{World: w, No: at}
	}
	close(y.changed)
	y.changed = make(chan struct{})
}

// sleep waits for d and reports whether ctx still stands.
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
