package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"pulley/internal/clip"
	"slices"
	"time"
)

// Bounds of what one node keeps in etcd.
const (
	maxStatusBytes  = 7 << 8   // of a status, as JSON: a node that is well needs half of it, one between targets all
	maxRunsBytes    = 64 << 10 // of a node's run records together
	maxRunsKept     = 20       // and their number
	spooledPerTick  = 5        // so that a fleet that comes back does not send everything at once
	maxDetailInHead = 240
)

// report tells etcd how the tick went: the status when it changed or a heartbeat is due, and the runs that etcd has not
// heard of. What etcd can't take now is kept on disk.
func (t *tick) report(ctx context.Context) error {
	if t.decision.Action == "" {
		return nil // its state could not be read: what etcd knows of the node is better than nothing
	}
	if err := t.explainItself(); err != nil {
		return err
	}
	t.finishRun()
	fresh, err := t.freshRun()
	if err != nil {
		return err
	}
	if t.desired.Unreachable != "" {
		return t.spool(fresh)
	}
	told, err := t.Memory.LoadReported()
	if err != nil {
		return err
	}
	status := t.status()
	fingerprint, err := fingerprintOf(status)
	if err != nil {
		return err
	}
	due := t.Now().Sub(told.At)
	if fresh == nil && !t.untold && fingerprint == told.Fingerprint && due >= 0 && due < t.Settings.Heartbeat {
		return nil
	}
	runs, err := t.Memory.Spooled(spooledPerTick)
	if err != nil {
		return err
	}
	if fresh != nil {
		runs = slices.DeleteFunc(runs, func(r EncodedRun) bool { return r.ID == fresh.ID }) // kept when it was not over yet
		runs = append(runs, *fresh)
	}
	sent := make([]string, len(runs))
	for i, r := range runs {
		sent[i] = r.ID
	}
	told.Fingerprint, told.At = fingerprint, t.Now()
	drop := told.remember(runs)
	// An agent that is told to end still says how its run ended: else it would look as if Puppet were at work.
	if err := t.Control.Report(context.WithoutCancel(ctx), t.Identity, status, runs, drop); err != nil {
		t.offline = t.offline || errors.Is(err, ErrUnreachable)
		t.Log.Warn("cannot report; will be sent later", "err", err)
		return t.spool(fresh)
	}
	if err := t.Memory.Unspool(sent); err != nil {
		return err
	}
	return t.Memory.SaveReported(told)
}

func (t *tick) spool(r *EncodedRun) error {
	if r == nil {
		return nil
	}
	return t.Memory.Spool(*r)
}

func (t *tick) finishRun() {
	if t.run == nil {
		return
	}
	t.run.Duration = t.Now().Sub(t.began)
	t.run.Steps = t.took
}

// freshRun is the record of this tick's run. Runs that neither changed nor failed anything are only counted.
func (t *tick) freshRun() (*EncodedRun, error) {
	if t.run == nil || !t.puppet {
		return nil, nil
	}
	r := *t.run
	if r.Outcome == Unchanged && !r.Noop {
		r.Log, r.Resources = nil, nil
	}
	e, err := EncodeRun(r)
	if err != nil {
		return nil, err
	}
	return &e, nil
}

// status is what the node says of itself now.
func (t *tick) status() Status {
	d := t.decision
	why, detail := d.Reason, d.Detail
	if d.Blocked != "" {
		why = d.Blocked
	}
	s := Status{
		Node: t.Identity.Node, Role: t.Identity.Role, Phase: Idle, Action: d.Action, Reason: why,
		Detail: clip.Text(detail, maxDetailInHead), Target: d.Wanted, LastGood: t.state.LastGood, Enforcing: t.state.Enforcing,
		Outcome: t.state.Outcome, LastRun: t.state.LastRun, RanAt: t.state.RanAt, SeenAt: t.Now().UTC().Truncate(time.Second),
		Hold: d.Hold, Settings: t.Settings, Version: t.Version, Machine: t.MachineID, Boot: t.Boot, Disabled: clip.Text(t.observed.Disabled, 120),
		Answer: t.state.Answer,
	}
	if t.Upgrade != nil {
		s.Agent = t.Upgrade(t.desired.Agent)
	}
	if r := t.state.Refusal; r != nil && r.Target == d.Wanted {
		s.Refusal = r
	}
	if a := t.state.Attempt(d.Wanted); a != nil {
		s.Attempt = a
	} else if a := t.state.Attempt(t.state.Enforcing); a != nil {
		s.Attempt = a
	}
	// Once the state changed, what was true before it would be stale: say what is true now.
	if t.settled {
		s.Action, s.Reason, s.Detail = t.afterwards()
	}
	return fit(s)
}

// afterwards is what the next tick would do, and why, if nothing else changed: so that it need not say anything new.
func (t *tick) afterwards() (Action, Reason, string) {
	o := t.observed
	o.State, o.Force, o.Looked = t.state, false, false
	next := Decide(o, t.desired, t.Now())
	if next.Blocked != "" {
		return next.Action, next.Blocked, clip.Text(next.Detail, maxDetailInHead)
	}
	return next.Action, next.Reason, clip.Text(next.Detail, maxDetailInHead)
}

// fit cuts the words of a status until it fits into its bound; names and targets are never cut.
func fit(s Status) Status {
	for _, limit := range []int{120, 60, 20, 3} { // a byte can take six as JSON
		if b, err := json.Marshal(s); err == nil && len(b) <= maxStatusBytes {
			return s
		}
		s.Detail, s.Disabled = clip.Text(s.Detail, limit), clip.Text(s.Disabled, limit)
		if s.Attempt != nil {
			a := *s.Attempt
			a.Problem = clip.Text(a.Problem, limit)
			s.Attempt = &a
		}
		if s.Refusal != nil {
			r := *s.Refusal
			r.Why = clip.Text(r.Why, limit)
			s.Refusal = &r
		}
		if s.Agent != nil {
			u := *s.Agent
			u.Wanted, u.Problem = clip.Text(u.Wanted, 64), clip.Text(u.Problem, limit)
			s.Agent = &u
		}
		if s.Answer != nil {
			a := *s.Answer
			a.Problem = clip.Text(a.Problem, limit)
			s.Answer = &a
		}
		if s.Hold != nil {
			h := *s.Hold
			h.Who, h.Why, h.Replaced = clip.Text(h.Who, limit), Prose(clip.Text(string(h.Why), limit)), nil
			s.Hold = &h
		}
	}
	return s
}

// fingerprintOf is what of a status counts as a change: everything but the time.
func fingerprintOf(s Status) (string, error) {
	s.SeenAt = time.Time{}
	b, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("cannot encode the status: %w", err)
	}
	return digest(b), nil
}

// remember adds runs to those that etcd has, and returns the ones that no longer fit the node's bounds.
func (r *Reported) remember(runs []EncodedRun) (drop []string) {
	for _, run := range runs {
		// A power cut may bring a record back to the spool that etcd has already.
		r.Runs = slices.DeleteFunc(r.Runs, func(ref RunRef) bool { return ref.ID == run.ID })
		r.Runs = append(r.Runs, RunRef{ID: run.ID, Bytes: len(run.Bytes)})
	}
	total := 0
	for _, ref := range r.Runs {
		total += ref.Bytes
	}
	for len(r.Runs) > 1 && (total > maxRunsBytes || len(r.Runs) > maxRunsKept) {
		drop = append(drop, r.Runs[0].ID)
		total -= r.Runs[0].Bytes
		r.Runs = r.Runs[1:]
	}
	return drop
}
