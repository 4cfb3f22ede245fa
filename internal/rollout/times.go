package rollout

import "time"

// began notes when the group and the batch in progress began. Nodes that an operator ordered again belong to earlier ones.
func (a *advance) began() {
	busy := false
	for _, slot := range a.s.Slots {
		busy = busy || !slot.Again
	}
	if _, ok := a.s.Current(a.p); !ok || !busy {
		return
	}
	for len(a.s.Times) <= a.s.Group {
		a.s.Times = append(a.s.Times, Span{})
	}
	if span := &a.s.Times[a.s.Group]; span.Batch.IsZero() {
		if span.Batch, a.changed = a.now, true; span.From.IsZero() {
			span.From = a.now
		}
	}
}

// batchEnded notes how long the batch in progress took, and with it its group.
func (a *advance) batchEnded(group bool) {
	if len(a.s.Times) <= a.s.Group {
		return // no node of the group began
	}
	span := &a.s.Times[a.s.Group]
	if !span.Batch.IsZero() {
		if took := int64(a.now.Sub(span.Batch) / time.Second); took > span.Seconds || span.Slowest == 0 {
			span.Slowest, span.Seconds = a.s.Batch+1, max(took, 0)
		}
		span.Batch, a.changed = time.Time{}, true
	}
	if group {
		span.To, a.changed = a.now, true
	}
}
