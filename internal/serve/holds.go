package serve

import (
	"context"
	"errors"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// clocksApart is the difference between the clocks of an operator, who computes the end of a hold, and of serve.
const clocksApart = time.Minute

// holds announces holds that their time ended. It is not safe for concurrent use.
type holds struct {
	*Tasks
	seen map[model.Ref]map[etcd.Scope]model.Hold // at the last look
}

// look announces the holds that ended since the last look. An operator who ends or replaces a hold knows it.
func (h *holds) look(ctx context.Context) error {
	refs, err := specs.In(h.DB).Named(ctx)
	if err != nil {
		return err
	}
	var errs []error
	seen := map[model.Ref]map[etcd.Scope]model.Hold{}
	for _, ref := range refs {
		now, _, err := fleet.In(h.DB).Holds(ctx, ref)
		if err != nil {
			errs = append(errs, err)
			seen[ref] = h.seen[ref]
			continue
		}
		seen[ref] = now
		for scope, was := range h.seen[ref] {
			if _, held := now[scope]; !held && ended(was, h.Now()) {
				h.Log.Info("a hold ended", "env", ref, "scope", scope, "mode", was.Mode, "by", was.Who, "why", was.Why)
				h.Notifier.HoldEnded(ref, was)
			}
		}
	}
	h.seen = seen
	return errors.Join(errs...)
}

// ended reports whether a hold that is gone ended by its time.
func ended(h model.Hold, now time.Time) bool {
	return !h.Until.IsZero() && h.Until.Before(now.Add(clocksApart))
}
