package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"pulley/internal/model"
	"pulley/internal/model/refusal"
)

// observe reads the node's state, and completes a run that an earlier tick left open.
func (t *tick) observe(context.Context) error {
	t.began = t.Now()
	state, err := t.Memory.Load()
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		t.Log.Error("the state is damaged and was renamed; the node forgets its holds, failed attempts and last good release", "err", err)
		state, err = t.Memory.Afresh()
	}
	if err != nil {
		return err
	}
	t.state = state
	if err := t.Machine.Restore(); err != nil { // before the lists of signers are read
		t.Log.Warn("an interrupted run damaged this machine", "err", err)
	}
	if err := t.finish(); err != nil {
		return err
	}
	return t.look()
}

// look fills in what the node knows about itself.
func (t *tick) look() error {
	disabled, err := t.Memory.Disabled()
	t.observed = model.Observed{
		Identity: t.Identity, State: t.state, Settings: t.Settings, Machine: t.MachineID, Disabled: disabled,
		PuppetBlocked: t.Puppet.Blocked(), Force: t.opts.Force, Noop: t.opts.Noop, Partial: t.opts.uncounted(), Look: t.opts.Look,
	}
	return err
}

// Peek returns the decision of a tick at this moment, and changes nothing: it completes no interrupted run first. The caller must hold the
// node's lock.
func (a *Agent) Peek(ctx context.Context) (model.Decision, model.Desired, error) {
	t := &tick{Agent: a}
	var err error
	if t.state, err = a.Memory.Load(); err != nil {
		return model.Decision{}, model.Desired{}, err
	}
	if err := errors.Join(t.look(), t.desire(ctx)); err != nil {
		return model.Decision{}, model.Desired{}, err
	}
	return t.judge(), t.desired, nil
}

// finish completes a run of an earlier tick from the result in its folder. If a crash left `current` on another tree,
// it points `current` to the last good one.
func (t *tick) finish() error {
	if run := t.state.OpenRun; run != "" {
		t.unreported = true
		result, began, ended, err := t.Memory.Ended(run)
		if err != nil {
			return err
		}
		switch {
		case !began:
			t.state.Forget()
			err = t.Memory.Save(t.state)
		case ended && result.Kind != model.Success:
			t.state.Fail(model.Run{ID: run, Target: t.state.Enforcing, Result: result}, t.began)
			err = t.Memory.Save(t.state)
		default: // no result, or a success that was not committed: the run is repeated
		}
		if err != nil {
			return err
		}
	}
	want := t.state.LastGood.Tree
	if want == "" {
		return nil
	}
	if current, err := t.Content.Current(); err == nil && current == want {
		return nil
	}
	if err := t.Content.Activate(want); err != nil {
		// The tree is missing or damaged. Enforcement fetches it again.
		t.Log.Warn("current is not the last good tree", "release", t.state.LastGood.Release, "err", err)
		t.state.RanAt = time.Time{}
	}
	return nil
}

// desire reads everything in etcd that concerns this node, at one revision.
func (t *tick) desire(ctx context.Context) error {
	d, err := t.Control.Desire(ctx, t.Identity)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err() // the error is not etcd's
	case errors.Is(err, model.ErrUnreachable):
		t.offline = true
		d = unreachable(err)
	case err != nil:
		d = model.Desired{Unreadable: model.Prose(err.Error())}
		if errors.Is(err, model.ErrRevoked) {
			d.Removed = d.Unreadable
		}
	case t.Current != nil:
		if t.observed.Stale, t.keep = t.Current(d); t.observed.Stale != nil {
			*t.observed.Stale = t.observed.Stale.Clipped(model.MaxDetailInHead)
		}
	}
	t.desired = d
	return nil
}

// unreachable is the desired state after an ErrUnreachable.
func unreachable(err error) model.Desired {
	d := model.Desired{Unreachable: model.Prose(err.Error()), Clock: errors.Is(err, model.ErrClock)}
	var advised interface{ Hint() string }
	if errors.As(err, &advised) {
		d.Remedy = model.Prose(advised.Hint())
	}
	return d
}

// judge is the only caller of Decide in a tick. It uses the tick's current facts.
func (t *tick) judge() model.Decision {
	t.observed.State = t.state
	d := model.Decide(t.observed, t.desired, t.Now())
	if !t.desired.Known() { // the target that etcd named earlier in this tick
		d.Wanted = t.decision.Wanted
	}
	return d
}

// next returns the next tick's decision if nothing changes. The status already contains it, which saves the next tick a
// report.
func (t *tick) next() model.Decision {
	t.observed.Force, t.observed.Looked, t.observed.Partial = false, false, false
	return t.judge()
}

// decide derives an action and its cause from state and desire. The node stores holds, which also count without etcd.
// It deletes attempts at targets that are no longer wanted.
func (t *tick) decide(ctx context.Context) error {
	forgot := t.recall()
	if a := t.desired.Assignment(); a != nil && a.ID != t.state.Assignment && !t.opts.Noop {
		t.state.Assignment, forgot = a.ID, true
		t.state.Restart(t.desired.Wanted())
	}
	t.decision = t.judge()
	if t.decision.Action == model.Retire && !t.opts.Keep {
		refused, err := t.refuseUnconfirmed(ctx)
		if err != nil {
			return err
		}
		forgot = forgot || refused
	}
	if a := t.decision.Action; t.opts.Keep && (a == model.Take || a == model.Retire) { // since the agent in place looked
		t.note = "an agent on probation takes no new target; the next tick takes it"
		return errEnd
	}
	if !t.desired.Known() {
		return nil
	}
	if t.keep != nil && !t.opts.Noop && !t.opts.Keep { // the agent before a failed probation may not know the field
		if err := t.keep(); err != nil {
			return err
		}
	}
	if w := t.decision.Wanted; !w.IsZero() {
		forgot = t.state.KeepAttempts(w) || forgot
		forgot = t.state.KeepRefusal(w) || forgot
	}
	reached := t.state.Epoch
	if t.desired.Assigned != nil && !t.opts.Noop { // also one that is void by now
		reached = max(reached, t.desired.Gate.Epoch)
	}
	if sameHolds(t.state.Holds, t.desired.Holds) && !forgot && reached == t.state.Epoch {
		return nil
	}
	t.state.Holds, t.state.Epoch = t.desired.Holds, reached
	return t.Memory.Save(t.state)
}

// stage puts the target on this machine's disk, where Puppet does not see it. A target with the same files and data for this
// node needs no run, unless the node's last run failed or was interrupted. After a refusal, the node enforces the target in place.
func (t *tick) stage(ctx context.Context) error {
	err := t.fetch(ctx)
	learned, saveErr := t.learn(ctx, err)
	if saveErr != nil {
		return saveErr
	}
	if learned {
		t.decision = t.judge()
		if t.decision.Action == model.Nothing {
			return errEnd
		}
		err = t.fetch(ctx)
	}
	d := t.decision
	switch {
	case errors.Is(err, model.ErrUnreachable):
		t.offline = true
		return fmt.Errorf("%s: %w", d.Target, err)
	case err != nil && (t.opts.Noop || t.opts.uncounted() || ctx.Err() != nil):
		return fmt.Errorf("%s: %w", d.Target, err)
	}
	if d.Action == model.Take && !t.noop() {
		t.state.Refusal = nil // the target is authentic
	}
	if err != nil {
		t.newRun()
		t.ended = true // the attempt counts; commit records it
		t.run.Result = model.Result{Kind: model.Untouched, Outcome: model.Failed, Problem: model.Problem{Code: model.StageFailed, Release: d.Target.String(), Text: model.Prose(err.Error())}}
		if t.noop() {
			t.run.Noop = true
			return cmp.Or(t.answerNoop(), errEnd)
		}
		return t.openRun()
	}
	s := &t.state
	sound := s.Enforcing == s.LastGood && s.Attempt(s.LastGood) == nil && s.Outcome != model.Failed
	inPlace := d.Action == model.Take && sound && d.Target.Tree == s.LastGood.Tree && t.staged.DataDigest == s.LastGoodData
	if inPlace && !t.opts.Force && !t.noop() {
		s.LastGood, s.Enforcing, s.Attempts, s.Enforce = d.Target, d.Target, nil, t.staged.Enforce
		t.settled = true
		t.note = "the new target changes nothing for this node"
		if err := t.Memory.Save(*s); err != nil {
			return err
		}
		return errEnd
	}
	return t.reach(ctx)
}

// reach checks that a Puppet server answers if the staged release needs one. Otherwise no run begins: the node keeps what it
// has, and enforces the target in place if that one needs no server.
func (t *tick) reach(ctx context.Context) error {
	d := t.decision
	problem := t.Puppet.Reach(ctx, model.Job{Identity: t.Identity, Target: d.Target, Tree: t.staged.Tree})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case problem == nil:
		t.state.Returned(d.Target)
		return nil
	case t.opts.Noop || t.opts.uncounted():
		return fmt.Errorf("%s: %s", d.Target, problem)
	}
	t.Log.Warn("no Puppet server answers; no run begins", "release", d.Target.Release, "problem", problem)
	t.state.Leave(d.Target, *problem, t.Now())
	t.observed.Looked = true
	if err := t.Memory.Save(t.state); err != nil {
		return err
	}
	if t.decision = t.judge(); t.decision.Action == model.Nothing {
		return errEnd
	}
	return t.stage(ctx)
}

// fetch stages the target of the decision, and releases what an earlier decision of the tick staged.
func (t *tick) fetch(ctx context.Context) (err error) {
	if t.staged.Release != nil {
		t.staged.Release()
		t.staged.Release = nil
	}
	how := Staging{Taking: t.decision.Action == model.Take, Noop: t.noop()}
	t.staged, err = t.Content.Stage(ctx, t.Identity, t.decision.Target, how)
	if err != nil {
		return err
	}
	return t.showHosts(ctx)
}

// learn records why staging a new target failed. It reports whether the decision must change because the target is
// refused or etcd does not answer. The node then enforces the target in place.
func (t *tick) learn(ctx context.Context, err error) (bool, error) {
	if t.decision.Action != model.Take || t.opts.Noop || ctx.Err() != nil {
		return false, nil
	}
	target := t.decision.Target
	log := t.Log.With("release", target.Release, "data", target.Data)
	var refused *refusal.Error
	switch {
	case errors.As(err, &refused):
		log.Warn("the target is refused", "code", refused.Code, "why", refused)
		t.state.Refuse(target, refused, t.Now())
		t.observed.Looked = true
		return true, t.Memory.Save(t.state)
	case errors.Is(err, model.ErrUnreachable):
		log.Warn("cannot fetch the target", "err", err)
		t.offline, t.desired = true, unreachable(err)
		return true, nil
	}
	return false, nil
}

// admit marks the node as running in etcd, unless a fact behind the decision changed. Without etcd, the node only
// enforces the target in place. Then admit opens the run on disk, where a later tick finds it after a crash.
func (t *tick) admit(ctx context.Context) error {
	if t.run != nil {
		return nil // staging failed
	}
	t.newRun()
	if t.opts.Noop {
		return nil
	}
	if !t.offline && t.desired.Unreadable == "" {
		if t.opts.uncounted() || t.decision.Noop {
			if err := t.expectReport(); err != nil {
				return err
			}
		}
		s := t.status()
		s.Phase, s.LastRun = model.Running, t.run.ID
		err := t.Control.Admit(ctx, t.Identity, t.desired, s)
		t.unreported = !errors.Is(err, model.ErrChanged)
		switch {
		case errors.Is(err, model.ErrChanged):
			t.note = "the desired state changed meanwhile; the next tick reads it again"
			t.run = nil
			return errEnd
		case err != nil && t.decision.Action == model.Enforce && !t.noop() && ctx.Err() == nil:
			// Only a changed desired state stops enforcement. A full etcd, or one that rejects the write, does not.
			t.offline = errors.Is(err, model.ErrUnreachable)
			t.Log.Warn("cannot announce the run; enforcing the target in place", "err", err)
		case err != nil:
			t.offline = errors.Is(err, model.ErrUnreachable)
			t.run = nil
			return err
		}
	}
	return t.openRun()
}

// expectReport makes the next tick report, even if this one is killed: no open run reminds it of the status that Admit
// writes.
func (t *tick) expectReport() error {
	last, err := t.Memory.LoadReported()
	if err != nil {
		return err
	}
	last.Fingerprint = ""
	return t.Memory.SaveReported(last)
}

// openRun records the run in the node's state. Of a partial run, and of a noop run, it saves only the number.
func (t *tick) openRun() error {
	if t.opts.uncounted() || t.noop() {
		return t.Memory.Save(t.state)
	}
	t.state.Begin(t.run.ID, t.run.Target, t.Now(), t.opts.Force, t.desired.Turn(&t.state), t.observed.Pending(t.desired, model.RequestRun))
	return t.Memory.Save(t.state)
}

// withdraw closes an opened run in which Puppet does not start.
func (t *tick) withdraw() error {
	run := t.run
	t.run = nil
	if run == nil || t.state.OpenRun != run.ID {
		return nil
	}
	t.state.Forget()
	return t.Memory.Save(t.state)
}

// apply runs Puppet. A loss of etcd never ends a catalog run.
func (t *tick) apply(ctx context.Context) error {
	if t.ended {
		return nil // staging failed
	}
	job := t.job()
	if err := t.Machine.Remember(); err != nil {
		return err
	}
	if err := t.Memory.Begin(t.run.ID); err != nil {
		return err
	}
	t.Log.Info("running Puppet", "run", t.run.ID, "release", job.Target.Release, "data", job.Target.Data, "reason", t.decision.Reason)
	result, err := t.Puppet.Apply(ctx, job)
	t.puppet, t.ended = err == nil, true
	if err != nil {
		result = model.Result{Kind: model.Untouched, Outcome: model.Failed, Problem: model.Problem{Code: model.PuppetNotStarted, Text: model.Prose(err.Error())}}
	}
	// Restore after a failed run too: the damage may prevent the next run from starting.
	if t.damage = t.Machine.Restore(); t.damage != nil && result.Kind != model.Success {
		result.Problem.Damage = model.Prose(t.damage.Error())
	}
	t.run.Result = result
	t.run.Drift = !t.noop() && t.decision.Action == model.Enforce && t.state.Enforcing == t.state.LastGood && result.Outcome == model.Changed &&
		!otherCode(t.state.Served, result.Served)
	if t.opts.Noop {
		return cmp.Or(t.damage, errEnd)
	}
	if err := errors.Join(t.Memory.End(t.run.ID, result), t.keepRecord()); err != nil {
		return err
	}
	if t.opts.uncounted() {
		t.settled = true
		return cmp.Or(t.damage, errEnd)
	}
	if t.noop() {
		return cmp.Or(t.answerNoop(), t.damage, errEnd)
	}
	return nil
}

// otherCode reports whether a Puppet server compiled other code than before. It is false if the server does not name its code.
func otherCode(before, now *model.Served) bool {
	return before != nil && now != nil && before.Code != now.Code
}

// answerNoop answers an ordered noop run, and records nothing else of it: neither an attempt nor an enforcement.
func (t *tick) answerNoop() error {
	s, problem := &t.state, t.run.Problem
	if turn := t.desired.Turn(s); turn != nil {
		s.Ran = &model.Answer{ID: turn.ID, Problem: problem.Clipped(model.MaxAnswer)}
	} else if r := t.observed.Pending(t.desired, model.RequestNoop); r != nil {
		s.Settle(r.ID, problem)
	}
	t.settled = true
	return t.Memory.Save(*s)
}

// keepRecord stores the run's record on disk until etcd has it. A crash before the report then loses nothing.
func (t *tick) keepRecord() error {
	fresh, err := t.freshRun()
	if err != nil {
		return err
	}
	return t.spool(fresh)
}

// verify checks that the node is still manageable: no unrestored damage, an answer from etcd after a new target, and
// the release's own checks. If the agent is stopped meanwhile, the run stays open and the next tick repeats it.
func (t *tick) verify(ctx context.Context) error {
	if t.run.Kind != model.Success {
		return nil
	}
	err := t.damage
	if err == nil {
		err = t.Machine.Verify(ctx, t.job())
	}
	lost := false
	if err == nil && t.run.Target != t.state.LastGood && !t.offline {
		err = t.answers(ctx)
		lost = err != nil
	}
	if err != nil && ctx.Err() != nil {
		t.run.Problem = model.Problem{Code: model.StoppedEarly}
		return ctx.Err()
	}
	if err != nil {
		t.run.Kind, t.run.Outcome, t.run.Problem = model.Between, model.Failed, model.Problem{Code: model.NotVerified, Text: model.Prose(err.Error())}
	}
	if lost && ctx.Err() == nil {
		t.run.Problem = model.Problem{Code: model.EtcdLost, Number: int(t.VerifyTimeout.Seconds()), Text: model.Prose(err.Error())}
	}
	return nil
}

// answers waits for an answer from etcd after a new target was applied. A target that cuts the node off must not become
// its last good one.
func (t *tick) answers(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, t.VerifyTimeout)
	defer cancel()
	for {
		_, err := t.Control.Desire(ctx, t.Identity)
		switch {
		case err == nil:
			return nil
		case parent.Err() != nil: // a call that was stopped is no answer
			return parent.Err()
		case !errors.Is(err, model.ErrUnreachable):
			return nil
		}
		select {
		case <-ctx.Done():
			t.offline = parent.Err() == nil
			return err
		case <-time.After(t.VerifyTimeout / 10):
		}
	}
}

// commit writes the result of the run into the node's state: first the state file, then the link `current`. Then it looks for rivals.
func (t *tick) commit(ctx context.Context) error {
	t.settled = true
	if err := t.saveRun(); err != nil {
		return err
	}
	return t.seekRivals(ctx)
}

// seekRivals looks for what else starts Puppet: the run may have installed it. It can take a minute, and begins after the result is saved.
func (t *tick) seekRivals(ctx context.Context) error {
	if t.Rivals == nil {
		return nil
	}
	found, err := "", error(nil)
	if t.staged.Enforce != model.EnforceDaemon {
		found, err = t.Rivals(context.WithoutCancel(ctx))
	}
	if err != nil {
		t.Log.Warn("cannot look for another Puppet on this machine", "err", err)
		return nil
	}
	if found == t.state.Rivals {
		return nil
	}
	t.state.Rivals = found
	return t.Memory.Save(t.state)
}

// saveRun saves the result of the run.
func (t *tick) saveRun() error {
	if t.run.Kind != model.Success {
		t.state.Fail(*t.run, t.Now())
		return t.Memory.Save(t.state)
	}
	if t.offline && t.run.Target != t.state.LastGood {
		// This target may have cut the node off.
		t.state.Endure(*t.run, t.Now())
		return t.Memory.Save(t.state)
	}
	t.state.Succeed(*t.run, t.staged.DataDigest, t.Now())
	t.state.Hosts.Apply(t.seen)
	t.state.Enforce = t.staged.Enforce
	if err := t.Memory.Save(t.state); err != nil {
		return err
	}
	if err := t.Content.Activate(t.run.Target.Tree); err != nil {
		return err
	}
	if err := t.Content.Collect([]model.Target{t.state.LastGood, t.state.PreviousGood, t.decision.Wanted}, []string{t.staged.DataDigest}); err != nil {
		t.Log.Warn("cannot collect old releases", "err", err)
	}
	if t.Hosts != nil {
		if err := t.Hosts.CollectHosts(t.state.Hosts.Applied, t.state.Hosts.Told, t.state.Hosts.Telling); err != nil {
			t.Log.Warn("cannot collect old host data", "err", err)
		}
	}
	return nil
}

func (t *tick) newRun() {
	t.state.Sequence++
	t.run = &model.Run{
		ID: fmt.Sprintf("%s-%04d", t.began.UTC().Format("20060102T150405Z"), t.state.Sequence), Node: t.Identity.Node,
		Target: t.decision.Target, Action: t.decision.Action, Reason: t.decision.Reason, Started: t.began, Part: t.opts.Part,
	}
	if a := t.desired.Assignment(); a != nil && t.decision.Target == t.decision.Wanted {
		t.run.Assignment = a.ID
	}
}

func (t *tick) job() model.Job {
	return model.Job{
		Identity: t.Identity, ID: t.run.ID, Target: t.run.Target, Tree: t.staged.Tree, Data: t.staged.Data, Hosts: t.seen.File,
		Noop: t.noop(), Part: t.opts.Part,
	}
}

func sameHolds(a, b []model.Hold) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}
