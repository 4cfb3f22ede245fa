package model

import (
	"encoding/json"
	"slices"
	"time"

	"pulley/internal/clip"
)

// Limits of one node's values in etcd.
const (
	MaxStatusBytes  = 10 << 8  // of a status, as JSON: a converged node needs a fifth, a node between targets all of it
	MaxRunsBytes    = 64 << 10 // of a node's run records together
	MaxRunsKept     = 20       // their number
	MaxDetailInHead = 240      // of a text in a status
)

// Main returns why the node does not take its target, else the cause of its action.
func (d Decision) Main() Cause {
	if d.Blocked.Reason != "" {
		return d.Blocked
	}
	return d.Cause
}

// Without returns the parameters of c that no other field of the status contains.
func (s Status) Without(c Cause) Params {
	p := c.Params
	p.Hold, p.Refusal, p.Next = nil, nil, time.Time{}
	if s.Attempt != nil {
		p.Attempt = nil
	}
	if s.Answer != nil && c.Reason != ReasonServerAway {
		p.Problem = nil
	}
	if c.Reason == ReasonDisabled {
		p.Text = ""
	}
	return p
}

// Why returns the status's reason with all parameters.
func (s *Status) Why() Cause {
	c := s.Cause
	switch c.Reason {
	case ReasonDisabled:
		c.Params.Text = s.Disabled
	case ReasonStopped, ReasonFrozen:
		c.Params.Hold = s.Hold
	case ReasonRefused, ReasonStale, ReasonClock: // a node with a wrong clock and without etcd reports nothing
		c.Params.Refusal = s.Refusal
	case ReasonBackoff, ReasonStuck, ReasonRetry:
		c.Params.Attempt = s.Attempt
	case ReasonRetired:
		if s.Answer != nil {
			c.Params.Problem = s.Answer.Failure()
		}
	}
	return c
}

// Fit shortens the texts of a status until it fits. Names and targets stay complete.
func Fit(s Status) Status {
	for _, limit := range []int{120, 60, 20, 3} { // in JSON, one byte can take six
		if b, err := json.Marshal(s); err == nil && len(b) <= MaxStatusBytes {
			return s
		}
		s.Cause, s.Disabled, s.Hook = *s.Cause.Clipped(limit), s.Disabled.Clipped(limit), s.Hook.Clipped(limit)
		s.Attempt = edited(s.Attempt, func(a *Attempt) { a.Problem = a.Problem.Clipped(limit) })
		s.Refusal = edited(s.Refusal, func(r *Refusal) { *r = r.Clipped(limit) })
		s.Agent = edited(s.Agent, func(u *Upgrade) { u.Wanted, u.Problem = clip.Text(u.Wanted, 64), u.Problem.Clipped(limit) })
		s.Served = edited(s.Served, func(v *Served) {
			v.Criterion, v.Value, v.Code = clip.Text(v.Criterion, limit), clip.Text(v.Value, limit), clip.Text(v.Code, limit)
			v.Server, v.Environment = clip.Text(v.Server, max(limit, 20)), clip.Text(v.Environment, max(limit, 20))
		})
		s.Hold = edited(s.Hold, func(h *Hold) {
			h.Replaced = nil
			*h = h.clipped(limit)
		})
		s.Answer = edited(s.Answer, func(a *Answer) {
			a.Problem = a.Problem.Clipped(limit)
			a.Cause = edited(a.Cause, func(c *Cause) { c.Params = Params{} })
		})
	}
	return s
}

// Remember adds runs to those in etcd, and returns the runs that exceed the node's limits.
func (r *Reported) Remember(runs []EncodedRun) (drop []string) {
	for _, run := range runs {
		// After a power cut the spool may contain a record that etcd has already.
		r.Runs = slices.DeleteFunc(r.Runs, func(ref RunRef) bool { return ref.ID == run.ID })
		r.Runs = append(r.Runs, RunRef{ID: run.ID, Bytes: len(run.Bytes)})
	}
	total := 0
	for _, ref := range r.Runs {
		total += ref.Bytes
	}
	for len(r.Runs) > 1 && (total > MaxRunsBytes || len(r.Runs) > MaxRunsKept) {
		drop = append(drop, r.Runs[0].ID)
		total -= r.Runs[0].Bytes
		r.Runs = r.Runs[1:]
	}
	return drop
}
