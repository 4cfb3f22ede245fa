package member

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap/zapcore"
)

// slogCore writes etcd's own log in the form of serve's log: one format in one file.
type slogCore struct {
	zapcore.LevelEnabler
	handler slog.Handler
	fields  []zapcore.Field
}

// With returns a core that adds fields to each entry.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.LevelEnabler, c.handler, slices.Concat(c.fields, fields)}
}

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
	record.AddAttrs(slog.String("etcd", e.Message))
	for _, name := range slices.Sorted(maps.Keys(encoded.Fields)) {
		record.AddAttrs(slog.Any(name, encoded.Fields[name]))
	}
	return c.handler.Handle(context.Background(), record)
}

// Sync does nothing: nothing is buffered.
func (c *slogCore) Sync() error { return nil }
