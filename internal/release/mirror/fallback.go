package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pulley/internal/release/content"
)

// After this many failures in a row a source is skipped for this long. A dead source costs one or two timeouts, not one
// per pack.
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

// fallback reads from a second source what the first does not return.
type fallback struct {
	first, second content.Source
	breaker       breaker

	mu    sync.Mutex
	given map[string]bool // deltas requested before, by name
}

// Fallback reads from first, and checks its objects against their names. It reads from second everything that first
// does not return. After two failures in a row, first is tried last for five minutes. A missing value (ErrAbsent) is
// not a failure. If both sources fail, the error contains both reasons.
//
// The name of a delta does not contain its hash, so Fallback cannot detect a wrong delta; the caller detects it later.
// A second request for the same delta therefore goes to second, because the delta from first may have been wrong.
func Fallback(first, second content.Source) content.Source {
	return &fallback{first: Checked(first), second: second}
}

func (f *fallback) Object(ctx context.Context, hash string) ([]byte, error) {
	return ask(ctx, f, false, func(s content.Source) ([]byte, error) { return s.Object(ctx, hash) })
}

func (f *fallback) Deltas(ctx context.Context, line string, from, to int64) ([][]byte, error) {
	again := f.gave(line, from, to)
	return ask(ctx, f, again, func(s content.Source) ([][]byte, error) { return s.Deltas(ctx, line, from, to) })
}

// mostGiven limits the number of remembered deltas.
const mostGiven = 4 * maxDeltas

// gave reports whether one of these deltas was requested before, and remembers them.
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

// ask tries both sources in order. It tries first last if its breaker is open or its earlier answer was wrong.
func ask[T any](ctx context.Context, f *fallback, again bool, read func(content.Source) (T, error)) (value T, err error) {
	order := []bool{true, false} // true: first; false: second
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
		case ctx.Err() != nil: // cancelled by the caller, not failed
			return value, err
		case first && !errors.Is(err, ErrAbsent):
			f.breaker.failed()
		}
		all = append(all, err)
	}
	return value, errors.Join(all...)
}

// checked refuses objects that do not match their name.
type checked struct{ content.Source }

// Checked returns src with a check of every object against its name.
func Checked(src content.Source) content.Source { return checked{src} }

func (c checked) Object(ctx context.Context, hash string) ([]byte, error) {
	b, err := c.Source.Object(ctx, hash)
	if err == nil && content.HashOf(b) != hash {
		return nil, fmt.Errorf("cannot accept object %s: %w", hash, errLying)
	}
	return b, err
}
