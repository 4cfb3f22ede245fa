package member

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"
)

// slogCore writes etcd's own log in the form of serve's log: one format in one file.
type slogCore struct {
	zapcore.LevelEnabler
	handler slog.Handler
	fields  []zapcore.Field
	written *repeats
}

// repeats are the entries that were written within the last quietTime. The next same one is left out: each call of a removed
// node writes one, for as long as its machine runs.
type repeats struct {
	mu sync.Mutex
	at map[string]time.Time
}

const (
	quietTime  = time.Hour
	maxRepeats = 1000 // entries that are remembered; beyond, all are forgotten
)

// again reports whether the same entry was written within quietTime, and remembers it.
func (r *repeats) again(entry string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, seen := r.at[entry]; seen && now.Sub(at) < quietTime {
		return true
	}
	if len(r.at) >= maxRepeats {
		clear(r.at)
	}
	r.at[entry] = now
	return false
}

// With returns a core that adds fields to each entry.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.LevelEnabler, c.handler, slices.Concat(c.fields, fields), c.written}
}

// userMissing is the message of a refused call whose certificate is valid and names no user.
const userMissing = "cannot find a user for permission check"

// retried are errors of etcd's own that it repeats until they end, a few seconds after its first start: nobody has to act.
var retried = []string{"failed to update storage version"}

// Check adds this core to an entry that is written.
func (c *slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !slices.Contains(retried, e.Message) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write writes an entry with its fields, by name.
func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	encoded := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		f.AddTo(encoded)
	}
	record := slog.NewRecord(e.Time, slog.LevelError, "etcd reports an error", 0)
	if e.Message == userMissing {
		record.Level, record.Message = slog.LevelWarn, "etcd refuses a client that was removed: its certificate has no user"
	}
	record.AddAttrs(slog.String("etcd", e.Message))
	entry := e.Message
	for _, name := range slices.Sorted(maps.Keys(encoded.Fields)) {
		record.AddAttrs(slog.Any(name, encoded.Fields[name]))
		entry += fmt.Sprintf(" %s=%v", name, encoded.Fields[name])
	}
	if c.written.again(entry, e.Time) {
		return nil
	}
	return c.handler.Handle(context.Background(), record)
}

// Sync does nothing: nothing is buffered.
func (c *slogCore) Sync() error { return nil }
