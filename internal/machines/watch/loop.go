package watch

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/render"
)

// ErrBusy means that another apply has the lock of the environment.
var ErrBusy = errors.New("another apply has the lock")

// Site connects a Loop to a fleet.
type Site interface {
	// Source returns the inputs of a plan, as stored now.
	Source(ctx context.Context) (apply.Source, error)
	// Begin takes the lock of the fleet for an environment; ErrBusy if another apply has it.
	Begin(ctx context.Context, want *environments.Environment) (*apply.Session, error)
}

// Loop watches one environment.
type Loop struct {
	Watcher  Watcher
	Site     Site
	Interval time.Duration
	Now      func() time.Time
	Log      *slog.Logger

	notes []machines.Reason // notes of the last log entry: a note is logged once while it lasts
	errAt time.Time         // when an error was last logged; zero after a look without one
	busy  time.Time         // since when another apply has the lock; zero if none has
}

// longBusy is how long another apply may hold the lock until a watch logs that it waits.
const longBusy = 10 * time.Minute

// Run looks repeatedly until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	ticker := time.NewTicker(l.Interval)
	defer ticker.Stop()
	for {
		l.logErr(ctx, l.look(ctx))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look looks once. It takes the lock only if there is work: the applies of operators come first.
func (l *Loop) look(ctx context.Context) error {
	source, err := l.Site.Source(ctx)
	if err != nil {
		return err
	}
	f, err := l.Watcher.Look(ctx, source)
	if err != nil {
		return err
	}
	l.logNotes(f.Notes)
	if !f.Ready() {
		return nil
	}
	s, err := l.Site.Begin(ctx, f.Draft.Spec)
	if errors.Is(err, ErrBusy) {
		return l.waits(err)
	}
	if err != nil {
		return err
	}
	l.busy = time.Time{}
	// The watch releases the lock when the machine is ordered. A later look finds a machine that does not join.
	s.Log, s.Progress, s.Wait = l.Log, l.event, apply.WaitNone
	_, err = l.Watcher.Act(s.Context, s.Applier, f)
	return errors.Join(err, s.Close())
}

// waits returns err if another apply has held the lock for so long that dead machines stay dead.
func (l *Loop) waits(err error) error {
	now := l.Now()
	if l.busy.IsZero() {
		l.busy = now
	}
	if now.Sub(l.busy) < longBusy {
		return nil
	}
	return err
}

// logErr logs an error at intervals while looks fail.
func (l *Loop) logErr(ctx context.Context, err error) {
	switch now := l.Now(); {
	case err == nil:
		l.errAt = time.Time{}
	case ctx.Err() == nil && now.Sub(l.errAt) >= longBusy:
		l.errAt = now
		l.Log.Warn("cannot watch machines", "err", err)
	}
}

// logNotes logs why nothing, or not more, is done. A changed time does not make a note new.
func (l *Loop) logNotes(notes []machines.Reason) {
	timeless := make([]machines.Reason, len(notes))
	for i, n := range notes {
		n.At, n.Until = time.Time{}, time.Time{}
		timeless[i] = n
	}
	if len(notes) > 0 && !reflect.DeepEqual(timeless, l.notes) {
		l.Log.Info("machines wait", "why", render.Reasons(notes))
	}
	l.notes = timeless
}

func (l *Loop) event(e apply.Event) {
	switch e.State {
	case apply.Begins, apply.Ends:
	case apply.Done:
		l.Log.Info("machine is made again", "node", e.Node)
	case apply.Fails:
		l.Log.Warn("machine failed", "node", e.Node, "step", e.Task, "err", e.Err)
	default:
		l.Log.Info("machine is being made again", "node", e.Node, "step", e.Task, "reason", render.Reasons(e.Reasons))
	}
}
