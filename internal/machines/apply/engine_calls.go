package apply

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pulley/internal/machines"
	"pulley/internal/stablehash"
)

// How often what failed is tried again, and after how long.
const (
	maxCalls    = 5
	firstGap    = time.Second
	longestGap  = 30 * time.Second
	maxWaits    = 20              // times that the provider may ask to wait with one call
	longestWait = 5 * time.Minute // that is believed
	fleetLimit  = time.Minute     // of one call of the fleet
)

// gap is how long to wait after a number of tries: growing, bounded, and other for each node, so that what failed together
// is not tried again together.
func gap(key string, tries int) time.Duration {
	d := longestGap
	if tries < 6 {
		d = min(d, firstGap<<(tries-1))
	}
	return d/2 + time.Duration(stablehash.Fraction(key, strconv.Itoa(tries))*float64(d/2))
}

// final reports whether to try again is of no use.
func final(err error) bool {
	var taken *machines.TakenError
	for _, end := range []error{machines.ErrQuota, machines.ErrRefused, machines.ErrLost, machines.ErrChanged, machines.ErrNotListed, machines.ErrTokenTaken} {
		if errors.Is(err, end) {
			return true
		}
	}
	return errors.As(err, &taken)
}

// ask calls the provider, within a deadline, and again where the outcome is not known, with growing gaps. Where known is
// given it is asked before each further try, whether the call has had its effect all the same. A provider that asks to wait is
// waited for by all; a machine that has to wait, by this job alone.
func (j *job) ask(verb string, call func(context.Context) error, known func() (bool, error)) (done bool, err error) {
	tries, waits := 0, 0
	for {
		if err := j.unthrottled(verb); err != nil {
			return false, err
		}
		err := j.within(j.a.callTimeout(), call)
		var wait *machines.WaitError
		var later *machines.LaterError
		switch {
		case err == nil:
			return true, nil
		case j.over() != nil:
			return false, j.over()
		case final(err):
			return false, err
		case errors.As(err, &later) && waits < maxWaits:
			waits++
			j.waits(verb, err.Error())
			if !sleep(j.ctx, bounded(later.After)) {
				return false, j.over()
			}
			continue
		case errors.As(err, &wait) && waits < maxWaits:
			waits++
			j.throttle(wait.After)
			continue
		}
		if tries++; tries == maxCalls {
			return false, fmt.Errorf("tried %d times: %w", tries, err)
		}
		j.log.Warn("provider is asked again", "call", verb, "try", tries, "err", err)
		j.waits(verb, fmt.Sprintf("the provider's answer was: %s; it is asked again", err))
		if !sleep(j.ctx, gap(j.step.Node+verb, tries)) {
			return false, j.over()
		}
		if known == nil {
			continue
		}
		if ok, err := known(); ok || err != nil {
			return ok, err
		}
	}
}

// within runs one call under its deadline. It may go on for a little when nothing new may be begun.
func (e *engine) within(limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(e.calls, limit)
	defer cancel()
	return e.lost(call(ctx))
}

// throttle has all calls of the provider wait.
func (e *engine) throttle(d time.Duration) {
	e.slowly.Lock()
	defer e.slowly.Unlock()
	if until := e.a.Now().Add(bounded(d)); until.After(e.until) {
		e.until = until
	}
}

// bounded is how much of a wait that a provider asks for is believed.
func bounded(d time.Duration) time.Duration { return min(max(d, firstGap), longestWait) }

// unthrottled waits until the provider may be called.
func (j *job) unthrottled(step string) error {
	for {
		j.slowly.Lock()
		d := j.until.Sub(j.a.Now())
		j.slowly.Unlock()
		if d <= 0 {
			return j.over()
		}
		j.waits(step, fmt.Sprintf("the provider asks to wait for %s", d.Round(time.Second)))
		if !sleep(j.ctx, d) {
			return j.over()
		}
	}
}

// persist calls the fleet, again where that fails, with growing gaps.
func (e *engine) persist(key string, call func(context.Context) error) error {
	for tries := 1; ; tries++ {
		err := e.within(fleetLimit, call)
		if err == nil || final(err) {
			return err
		}
		if tries == maxCalls || !sleep(e.ctx, gap(key, tries)) {
			return err
		}
	}
}

// put writes the node's record, and knows afterwards what the books have.
func (j *job) put(r machines.Record) error {
	err := j.persist(j.step.Node+"put", func(ctx context.Context) error { return j.a.Fleet.Put(ctx, r, j.record) })
	if err != nil {
		return fmt.Errorf("cannot write down machine %s: %w", r.Name, err)
	}
	j.record = &r
	return nil
}

// dropRecord takes the node off the books.
func (j *job) dropRecord() error {
	err := j.persist(j.step.Node+"drop", func(ctx context.Context) error { return j.a.Fleet.Drop(ctx, *j.record) })
	if err != nil {
		return fmt.Errorf("cannot strike machine %s off: %w", j.record.Name, err)
	}
	j.record = nil
	return nil
}

// note remembers what is done, before it is, or before the books would not have it done again.
func (j *job) note(did machines.Did, why string) error {
	act := machines.Act{At: j.a.Now().UTC(), Node: j.step.Node, Did: did, Why: why, By: j.a.By}
	err := j.persist(j.step.Node+"note", func(ctx context.Context) error { return j.a.Fleet.Note(ctx, act) })
	if err != nil {
		return fmt.Errorf("cannot remember that %s is %s: %w", j.step.Node, did, err)
	}
	return nil
}

// look waits for a sight of what is from now on.
func (j *job) look() (sight, error) { return j.eyes.see(j.ctx, j.eyes.next()) }

// await looks again and again until done says so, or until the deadline. text says what is waited for.
func (j *job) await(step string, deadline time.Time, done func(sight) (ok bool, waits string, err error)) error {
	left := deadline.Sub(j.a.Now())
	ctx, cancel := context.WithTimeout(j.ctx, left)
	defer cancel()
	from := j.since
	what := "nothing was seen yet"
	for {
		s, err := j.eyes.see(ctx, from)
		switch {
		case j.over() != nil:
			return j.over()
		case ctx.Err() != nil:
			return &lateError{what}
		case errors.Is(err, machines.ErrLost):
			return err
		case err != nil:
			j.waits(step, err.Error())
			continue
		}
		ok, waits, err := done(s)
		if ok || err != nil {
			return err
		}
		what = waits
		j.waits(step, waits)
		from = sightNo{world: s.No.world + 1, list: from.list}
	}
}

// lateError is a deadline that passed; what was last waited for says it.
type lateError struct{ what string }

func (e *lateError) Error() string { return e.what }

func (e *engine) readWorld(ctx context.Context) (machines.World, error) {
	w, err := e.a.Fleet.World(ctx)
	if err != nil {
		return w, e.lost(fmt.Errorf("cannot read the fleet of %s: %w", e.a.Ref, err))
	}
	return w, nil
}

func (e *engine) readMachines(ctx context.Context) ([]machines.Machine, error) {
	if e.a.Provider == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.a.callTimeout())
	defer cancel()
	all, err := e.a.Provider.List(ctx)
	if err != nil {
		var wait *machines.WaitError
		if errors.As(err, &wait) {
			e.throttle(wait.After)
		}
		return nil, fmt.Errorf("cannot list the machines of %s: %w", e.a.Ref, err)
	}
	return all, nil
}
