package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A source that failed so often in a row is left alone for so long: what is dead costs a timeout or two, not one a pack.
const (
	maxFailures = 2
	leftAlone   = 5 * time.Minute
)

// breaker counts the failures of one source.
type breaker struct {
	mu       sync.Mutex
	failures int
	last     time.Time
}

func (b *breaker) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= maxFailures && time.Since(b.last) < leftAlone
}

func (b *breaker) failed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	b.last = time.Now()
}

func (b *breaker) succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
}

// fallback asks a second source for what the first does not give.
type fallback struct {
	first, second Source
	breaker       breaker

	mu    sync.Mutex
	given map[string]bool // deltas that were asked for, by name
}

// Fallback asks first, whose objects are checked against their names, and second for whatever first did not give. After
// two failures in a row first is asked last for five minutes; that it lacks something (ErrAbsent) is no failure. When
// neither gives it, the error has both reasons.
//
// A delta's name does not tell what its bytes have to be, so a wrong one passes here and is found when it is applied. Whoever
// asks for a delta again may not have liked what first gave, and gets it from second, where that has it.
func Fallback(first, second Source) Source {
	return &fallback{first: Checked(first), second: second}
}

func (f *fallback) Object(ctx context.Context, hash string) ([]byte, error) {
	return ask(ctx, f, false, func(s Source) ([]byte, error) { return s.Object(ctx, hash) })
}

func (f *fallback) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	again := f.gave(line, from, to)
	return ask(ctx, f, again, func(s Source) ([][]byte, error) { return s.Deltas(ctx, line, from, to) })
}

// mostGiven bounds what is remembered of deltas that were given.
const mostGiven = 4 * maxDeltas

// gave says whether one of these deltas was asked for before, and remembers that they are now.
func (f *fallback) gave(line string, from, to int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given == nil || len(f.given) > mostGiven {
		f.given = map[string]bool{}
	}
	again := false
	for seq := from; seq <= to && seq-from < maxDeltas; seq++ {
		if name, err := DeltaName(line, seq); err == nil {
			again = again || f.given[name]
			f.given[name] = true
		}
	}
	return again
}

// ask asks one after the other, first last where it is to be left alone, or where its answer was no good.
func ask[T any](ctx context.Context, f *fallback, again bool, read func(Source) (T, error)) (value T, err error) {
	order := []bool{true, false} // whether it is first's turn
	if again || f.breaker.open() {
		slices.Reverse(order)
	}
	var all []error
	for _, first := range order {
		from := f.second
		if first {
			from = f.first
		}
		value, err = read(from)
		switch {
		case err == nil && first:
			f.breaker.succeeded()
			return value, nil
		case err == nil:
			return value, nil
		case ctx.Err() != nil: // given up by whoever asked, not failed
			return value, err
		case first && !errors.Is(err, ErrAbsent):
			f.breaker.failed()
		}
		all = append(all, err)
	}
	return value, errors.Join(all...)
}

// checked refuses objects that are not what their name says.
type checked struct{ Source }

// Checked is src with every object checked against its name.
func Checked(src Source) Source { return checked{src} }

func (c checked) Object(ctx context.Context, hash string) ([]byte, error) {
	b, err := c.Source.Object(ctx, hash)
	if err == nil && hashOf(b) != hash {
		return nil, fmt.Errorf("cannot accept object %s: %w", hash, errLying)
	}
	return b, err
}
