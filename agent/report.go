package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/internal/model"
)

// spooledPerTick limits the load when a fleet reaches etcd again: records of a tick.
const spooledPerTick = 5

// rolloutHeartbeat is the longest time between two reports of a node that fulfilled its assignment: after its settle time, the rollout waits for
// a report. After settleReports, a heartbeat is soon enough: a rollout can take days, and all its nodes keep their assignments.
const (
	rolloutHeartbeat = time.Minute
	settleReports    = 30 * time.Minute
)

// settles reports whether a rollout or a job may wait for the next report of the node, which fulfilled its assignment.
func (t *tick) settles(last *model.Reported) bool {
	a := t.desired.Assignment()
	if a == nil || a.Kind == model.AssignTake && t.state.LastGood != t.decision.Wanted || a.Kind != model.AssignTake && (t.state.Ran == nil || t.state.Ran.ID != a.ID) {
		return false
	}
	if last.Turn != a.ID {
		last.Turn, last.Took = a.ID, t.Now()
	}
	return !model.Elapsed(last.Took, t.Now(), settleReports)
}

// report writes the status to etcd when it changed or a heartbeat is due, and the runs that etcd does not have. Records
// that etcd cannot take now stay on disk.
func (t *tick) report(ctx context.Context) error {
	if t.decision.Action == "" {
		return nil // the state is unreadable: keep the status in etcd
	}
	if err := t.explainItself(); err != nil {
		return err
	}
	t.finishRun()
	inquired := t.inquire(ctx)
	fresh, err := t.freshRun()
	if err != nil {
		return err
	}
	if t.desired.Unreachable != "" {
		return t.spool(fresh)
	}
	last, err := t.Memory.LoadReported()
	if err != nil {
		return err
	}
	if t.desired.Revision < last.Revision { // etcd was restored from a backup, which may lack what was reported
		last.Fingerprint, last.Facts, last.Export = "", "", ""
	}
	status := t.status()
	fingerprint, err := fingerprintOf(status)
	if err != nil {
		return err
	}
	every := t.Settings.Heartbeat
	if t.settles(&last) {
		every = min(every, rolloutHeartbeat)
	}
	if last.Alive > 0 {
		every = min(every, last.Alive/model.Signs) // a sign of life follows a report
	}
	if fresh == nil && !t.unreported && !inquired && fingerprint == last.Fingerprint && !model.Elapsed(last.At, t.Now(), every) {
		return nil
	}
	runs, err := t.Memory.Spooled(spooledPerTick)
	if err != nil {
		return err
	}
	if fresh != nil {
		runs = slices.DeleteFunc(runs, func(r model.EncodedRun) bool { return r.ID == fresh.ID }) // spooled earlier
		runs = append(runs, *fresh)
	}
	sent := make([]string, len(runs))
	for i, r := range runs {
		sent[i] = r.ID
	}
	last.Fingerprint, last.At, last.Revision = fingerprint, t.Now(), t.desired.Revision
	drop := last.Remember(runs)
	// A stopped agent still reports its run. Otherwise the status shows a running Puppet.
	if err := t.Control.Report(context.WithoutCancel(ctx), t.Identity, status, runs, drop); err != nil {
		t.offline = t.offline || errors.Is(err, model.ErrUnreachable)
		t.Log.Warn("cannot report; the next tick sends it", "err", err)
		return t.spool(fresh)
	}
	if err := t.Memory.Unspool(sent); err != nil {
		return err
	}
	t.publishFacts(ctx, &last)
	return t.Memory.SaveReported(last)
}

// inquire gathers the facts of a node that runs nothing, at most once a day. A failure is no failure of the tick.
func (t *tick) inquire(ctx context.Context) bool {
	if t.Inquire == nil || ctx.Err() != nil || t.run != nil || t.decision.Action != model.Nothing || t.opts.Noop || t.opts.Keep ||
		!t.desired.Known() || t.desired.Host == nil || t.observed.Disabled != "" || t.observed.PuppetBlocked != nil || t.state.Retire != "" {
		return false
	}
	inquired, err := t.Inquire(ctx, t.Identity)
	if err != nil {
		t.Log.Warn("cannot gather the facts of this machine; tomorrow's tick tries again", "err", err)
	}
	return inquired && err == nil
}

// publishFacts writes the node's facts to etcd if they differ from the published ones, and those that other nodes may see. It
// follows a report, so that a tick with nothing to report makes no further request. A failure is no failure of the tick: the
// next report repeats it. A node that registered again has no facts in etcd.
func (t *tick) publishFacts(ctx context.Context, last *model.Reported) {
	if t.Facts == nil || t.desired.Host == nil || t.opts.Noop {
		return
	}
	facts, err := t.Facts()
	if err != nil {
		t.Log.Warn("cannot read the facts of this machine", "err", err)
		return
	}
	ctx = context.WithoutCancel(ctx)
	if fresh := t.registered(facts); facts != nil && (fresh != last.Facts || t.opts.Force) {
		if err := t.Control.PublishFacts(ctx, t.Identity, facts); err != nil {
			t.offline = t.offline || errors.Is(err, model.ErrUnreachable)
			t.Log.Warn("cannot publish the facts of this machine; the next report repeats it", "err", err)
			return
		}
		last.Facts = fresh
	}
	if err := t.publishExport(ctx, last, facts); err != nil {
		t.offline = t.offline || errors.Is(err, model.ErrUnreachable)
		t.Log.Warn("cannot publish the facts that other nodes may see; the next report repeats it", "err", err)
	}
}

// publishExport writes what other nodes may see of this one if it changed, or if a sign of life is due.
func (t *tick) publishExport(ctx context.Context, last *model.Reported, facts []byte) error {
	if t.Hosts == nil || t.state.LastGood.Tree == "" {
		return nil
	}
	e, err := t.Hosts.Export(t.Identity, t.state.LastGood.Tree, facts)
	if err != nil || facts == nil && e.Alive == 0 {
		return err
	}
	fresh := ""
	if len(e.Facts) > 0 || e.Alive > 0 {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		fresh = t.registered(b)
	}
	now, changed := t.Now(), fresh != last.Export
	if !changed && (e.Alive == 0 || !model.Elapsed(last.Signed, now, e.Alive/model.Signs)) {
		return nil
	}
	if err := t.Control.PublishExport(ctx, t.Identity, e, changed); err != nil {
		return err
	}
	last.Export, last.Alive, last.Signed = fresh, e.Alive, time.Time{}
	if e.Alive > 0 {
		last.Signed = now
	}
	return nil
}

// registered returns a fingerprint of a value and of the node's registration.
func (t *tick) registered(value []byte) string {
	return model.Digest(append([]byte(t.desired.Host.At.UTC().Format(time.RFC3339Nano)+"\n"), value...))
}

func (t *tick) spool(r *model.EncodedRun) error {
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

// freshRun returns the record of this tick's run. Runs without a change and without a failure are only counted.
func (t *tick) freshRun() (*model.EncodedRun, error) {
	if t.run == nil || !t.ended {
		return nil, nil
	}
	r := *t.run
	if r.Outcome == model.Unchanged && !r.Noop {
		r.Log = nil
		if r.Counts.Pending == 0 {
			r.Resources = nil
		}
	}
	e, err := model.EncodeRun(r)
	if err != nil {
		return nil, err
	}
	return &e, nil
}

// status returns the node's report about itself.
func (t *tick) status() model.Status {
	d := t.decision
	if t.settled { // the decision is stale
		d = t.next()
	}
	s := model.Status{
		Node: t.Identity.Node, Role: t.Identity.Role, Phase: model.Idle, Action: d.Action, Cause: d.Main(),
		Target: t.decision.Wanted, LastGood: t.state.LastGood, Enforcing: t.state.Enforcing,
		Outcome: t.state.Outcome, Unclassified: t.state.Unclassified, NoopPending: t.state.NoopPending, Rivals: t.state.Rivals, LastRun: t.state.LastRun, RanAt: t.state.RanAt, SeenAt: t.Now().UTC().Truncate(time.Second),
		Hold: d.Hold, Settings: t.Settings, Version: t.Version, Machine: t.MachineID, Boot: t.Boot, Disabled: t.observed.Disabled.Clipped(120),
		Answer: t.state.Answer, Ran: t.state.Ran, Hook: t.state.Hosts.Failed, Served: t.state.Served, Enforce: t.state.Enforce,
	}
	if a := t.desired.Assignment(); a != nil {
		s.Assignment = a.ID
	}
	if t.Upgrade != nil {
		s.Agent = t.Upgrade(t.desired.WantedAgent())
	}
	if t.Unscheduled != nil {
		if why := t.Unscheduled(); why != nil {
			s.Unscheduled = model.Prose(why.Error()).Clipped(model.MaxDetailInHead)
		}
	}
	if t.Signatures != nil {
		s.Signatures = t.Signatures()
	}
	for _, r := range []*model.Refusal{t.state.Refusal, t.observed.Stale} {
		if r != nil && r.Target == s.Target {
			s.Refusal = r
		}
	}
	if a := t.state.Attempt(s.Target); a != nil {
		s.Attempt = a
	} else if a := t.state.Attempt(t.state.Enforcing); a != nil {
		s.Attempt = a
	}
	s.Params = s.Without(*s.Cause.Clipped(model.MaxDetailInHead))
	return model.Fit(s)
}

// fingerprintOf returns a fingerprint of a status without its time.
func fingerprintOf(s model.Status) (string, error) {
	s.SeenAt = time.Time{}
	b, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("cannot encode the status: %w", err)
	}
	return model.Digest(b), nil
}
