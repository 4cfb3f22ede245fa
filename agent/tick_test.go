package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/model"
)

var (
	syntax     = version("syntax-2.0.0")
	halfway    = version("halfway-2.0.0")
	unverified = version("unverified-2.0.0")
)

// fleetOn returns a world whose node is on target and has reported it.
func fleetOn(t testing.TB, target model.Target) *world {
	t.Helper()
	w := newWorld(t)
	w.promote(t, target)
	w.good(t)
	w.stands(t, target, target)
	w.now = w.now.Add(time.Minute)
	return w
}

func TestNewTargetIsAppliedAndReported(t *testing.T) {
	w := newWorld(t)
	w.promote(t, verA)
	w.puppet.during = func(job model.Job) {
		if s := w.etcd.status(t); s.Phase != model.Running || s.LastRun != job.ID || s.Target != verA {
			t.Errorf("while Puppet is at work etcd says %+v", s)
		}
		if current, _ := w.content.Current(); current != "" || !w.state(t).LastGood.IsZero() {
			t.Error("the target became the last good one before Puppet applied it")
		}
		if s := w.state(t); s.Enforcing != verA || s.OpenRun != job.ID {
			t.Errorf("a crash now would be mistaken for a clean node: %+v", s)
		}
		if job.Tree != w.content.tree(verA.Tree) || job.Data == "" || job.Node != "web1" || job.Noop {
			t.Errorf("Puppet is to run as %+v", job)
		}
	}
	run := w.good(t)
	w.stands(t, verA, verA)
	if w.machine.remembered != 1 || w.machine.verified != 1 {
		t.Error("the machine's schedule was not remembered and verified")
	}
	same(t, "what was asked of etcd", w.etcd.calls, []string{"desire", "admit", "desire", "report"})
	s := w.etcd.status(t)
	if s.Phase != model.Idle || s.Outcome != model.Changed || s.LastGood != verA || s.Reason != model.ReasonUpToDate || s.LastRun != run.ID || s.Attempt != nil {
		t.Errorf("it says of itself %+v", s)
	}
	got, _, err := model.DecodeRun(w.etcd.load().Runs[run.ID])
	if err != nil || got.Target != verA || got.Action != model.Take || got.Reason != model.ReasonNew || got.Kind != model.Success || got.Drift {
		t.Errorf("its run is recorded as %+v: %v", got, err)
	}
	if len(got.Steps) < 8 {
		t.Errorf("the record lacks how long the steps took: %v", got.Steps)
	}
}

// After the promotion of a target that does not compile, every machine must stay unchanged and enforced.
func TestUncompilableTargetKeepsOldOne(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, syntax)
	if r := w.tick(t); r.Run == nil || r.Run.Kind != model.Untouched || r.Err != nil {
		t.Fatalf("%+v: %v", r.Run, r.Err)
	}
	w.stands(t, verA, verA)
	s := w.etcd.status(t)
	if s.Reason != model.ReasonBackoff || s.Outcome != model.Failed || s.Attempt == nil || s.Attempt.Started != 1 || !strings.Contains(s.Attempt.Problem.String(), "Syntax error") {
		t.Errorf("it says of itself %+v", s)
	}
	w.now = w.now.Add(30 * time.Second)
	w.idle(t)
}

// Runs that enforce the old target must not reset the attempts at a bad one. Otherwise the nodes compile a broken
// release every minute and never report that they are stuck.
func TestBrokenTargetIsRetriedRarely(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, syntax)
	tried := map[model.Target][]time.Duration{}
	begin := w.now
	for range 6 * 60 {
		if r := w.tick(t); r.Run != nil {
			tried[r.Run.Target] = append(tried[r.Run.Target], w.now.Sub(begin))
		}
		w.now = w.now.Add(time.Minute)
	}
	bad, old := tried[syntax], tried[verA]
	if len(old) < 10 || len(old) > 13 {
		t.Errorf("in 6 hours the old target was enforced at %v", old)
	}
	for i, at := range bad[1:] {
		gap := at - bad[i]
		want := 30 * time.Minute
		if i < len(model.Gaps) {
			want = model.Gaps[i]
		}
		if gap < want*9/10 || gap > want*11/10+2*time.Minute {
			t.Fatalf("attempt %d came %s after the one before, want about %s: %v", i+2, gap, want, bad)
		}
	}
	if s := w.etcd.status(t); s.Attempt == nil || s.Attempt.Target != syntax || s.Attempt.Started != len(bad) || s.Reason != model.ReasonStuck {
		t.Errorf("after %d attempts it says of itself %s: %+v", len(bad), s.Reason, s.Attempt)
	}
	w.promote(t, verA)
	w.tick(t)
	w.promote(t, syntax)
	if r := w.tick(t); r.Run == nil || r.Run.Reason != model.ReasonNew {
		t.Error("promoted anew after a rollback, a target does not begin with a fresh count")
	}
}

// A run that failed in the middle changed the machine. Continuing is safer than a mixture of two releases.
func TestPartialRunStaysOnNewTarget(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, halfway)
	w.tick(t)
	w.stands(t, verA, halfway)
	if s := w.etcd.status(t); s.Reason != model.ReasonBackoff || s.Enforcing != halfway || s.LastGood != verA || s.Attempt.Kind != model.Between {
		t.Errorf("it says of itself %+v", s)
	}

	w.etcd.disconnect()
	w.now = w.now.Add(2 * time.Minute)
	r := w.tick(t)
	if !r.Unreachable || r.Run == nil || r.Run.Target != halfway || r.Decision.Blocked.Reason != model.ReasonUnreachable {
		t.Errorf("without etcd it did %+v", r)
	}
	w.stands(t, verA, halfway)
	if a := w.attempt(t, halfway); a == nil || a.Started != 2 || a.Finished != 2 {
		t.Errorf("its attempts are %+v", a)
	}

	w.etcd.reconnect()
	w.promote(t, verA)
	if run := w.good(t); run.Target != verA || run.Reason != model.ReasonReturn || run.Drift {
		t.Errorf("the way back was %+v", run)
	}
	w.stands(t, verA, verA)
	w.idle(t)
	if len(w.state(t).Attempts) != 0 || w.puppet.applied() != verA.Release {
		t.Errorf("after the way back: %+v", w.state(t))
	}
}

// A data change for one role must not start Puppet on every machine of the fleet.
func TestTargetWithSameLayersNeedsNoPuppet(t *testing.T) {
	w := newWorld(t)
	w.content.concerns = func(model.Target) string { return "the layers of web1" }
	w.promote(t, verA)
	w.good(t)
	w.now = w.now.Add(time.Minute)

	newer := verA
	newer.Data, newer.DataDigest = 8, model.Digest([]byte("for another role"))
	w.promote(t, newer)
	if r := w.idle(t); r.Err != nil || r.Run != nil {
		t.Fatalf("%+v", r)
	}
	w.stands(t, newer, newer)
	if s := w.etcd.status(t); s.LastGood != newer || s.Reason != model.ReasonUpToDate || !s.RanAt.Equal(start) {
		t.Errorf("it says of itself %+v", s)
	}

	w.content.concerns = nil
	newer.Data, newer.DataDigest = 9, model.Digest([]byte("for this role"))
	w.promote(t, newer)
	if run := w.good(t); run.Target != newer {
		t.Errorf("layers that do concern the node were not applied: %+v", run)
	}
}

// A target that changes nothing for a node must not erase that its last run failed, or was interrupted: the node would count as converged.
func TestFailureOutlivesTargetWithSameLayers(t *testing.T) {
	for name, during := range map[string]func(model.Job){"failed": nil, "killed": func(model.Job) { panic("killed") }} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.content.concerns = func(model.Target) string { return "the layers of web1" }
			w.promote(t, verA)
			w.good(t)
			w.puppet.during, w.puppet.result = during, failing
			func() {
				defer func() { _ = recover() }()
				w.tick(t, Options{Force: true})
			}()
			w.content.held, w.puppet.during = 0, nil
			newer := verA
			newer.Data, newer.DataDigest = 8, model.Digest([]byte("for another role"))
			w.promote(t, newer)
			if r := w.tick(t); r.Run == nil || r.Run.Target != newer || r.Run.Outcome != model.Failed {
				t.Fatalf("the target counts as applied: %+v", r)
			}
			w.looks(t, model.FailedState)
			w.now, w.puppet.result = w.now.Add(2*time.Minute), nil
			w.good(t)
			w.stands(t, newer, newer)
			w.looks(t, model.Converged)
		})
	}
}

// An assignment of the target in place, for example of another agent, begins attempts afresh, and must not hide that the last run failed or was
// killed. The same holds if the run that it makes due does not begin.
func TestAssignmentRepeatsFailedEnforcement(t *testing.T) {
	for name, during := range map[string]func(model.Job){"failed": nil, "killed": func(model.Job) { panic("killed") }} {
		t.Run(name, func(t *testing.T) {
			w := fleetOn(t, verA)
			w.puppet.during, w.puppet.result = during, failing
			func() {
				defer func() { _ = recover() }()
				w.tick(t, Options{Force: true})
			}()
			w.content.held, w.puppet.during = 0, nil
			w.etcd.operator(t, func(d *model.Desired) { d.Assigned = &model.Assignment{ID: "r1", Target: verA, Epoch: d.Gate.Epoch} })
			w.puppet.result = func(model.Job) (model.Result, error) {
				return model.Result{Kind: model.Untouched, Outcome: model.Failed, Problem: model.Problem{Code: model.PuppetServerAway}}, nil
			}
			w.tick(t)
			if s := w.etcd.status(t); model.Look(&s, w.etcd.load().Desired, w.now).State != model.FailedState {
				t.Errorf("it counts as sound: %+v", s)
			}
			if len(w.puppet.jobs) != 1 || w.attempt(t, verA) == nil {
				t.Fatalf("the enforcement was not repeated, or is forgotten: %+v", w.state(t))
			}
			w.now, w.puppet.result = w.now.Add(model.AwayGap+time.Second), nil
			w.good(t)
			w.looks(t, model.Converged)
		})
	}
}

func failing(model.Job) (model.Result, error) {
	return model.Result{Kind: model.Between, Outcome: model.Failed, Problem: model.Problem{Code: model.HookFailed, Text: "File[/etc/motd] failed"}}, nil
}

// looks fails the test unless operators see this state of the node.
func (w *world) looks(t *testing.T, want model.NodeState) {
	t.Helper()
	s := w.etcd.status(t)
	if v := model.Look(&s, w.etcd.load().Desired, w.now); v.State != want || v.Failing != (want == model.FailedState) {
		t.Errorf("it is %s: %s, failing %t, want %s", v.State, v.Sentence(), v.Failing, want)
	}
}

// A node between two targets is on neither: equal layers prove nothing.
func TestNodeBetweenTargetsAppliesSameLayers(t *testing.T) {
	w := newWorld(t)
	w.content.concerns = func(model.Target) string { return "the layers of web1" }
	w.promote(t, verA)
	w.good(t)
	w.promote(t, halfway)
	w.tick(t)
	back := verA
	back.Data, back.DataDigest = 8, model.Digest([]byte("for another role"))
	w.promote(t, back)
	if run := w.good(t); run.Target != back {
		t.Errorf("%+v", run)
	}
	w.stands(t, back, back)
}

// An abort during a download must reach the node before Puppet starts.
func TestChangedDesireStopsTickBeforeApply(t *testing.T) {
	for _, open := range []model.Target{verB, verA} { // take, enforce
		w := fleetOn(t, verA)
		w.promote(t, open)
		w.now = w.now.Add(time.Hour)
		w.etcd.onAdmit = func() error {
			w.etcd.operator(t, func(d *model.Desired) { d.Default = verC })
			return nil
		}
		before := w.files(t)
		r := w.idle(t)
		if r.Err != nil || r.Run != nil || r.Decision.Action == model.Nothing {
			t.Errorf("%+v", r)
		}
		after := w.files(t)
		for name := range after {
			quiet := strings.HasPrefix(name, "/trees/") || name == "/node/"+reportedFile
			if !quiet && before[name] != after[name] {
				t.Errorf("%s changed to %s", name, after[name])
			}
		}
		if s := w.etcd.status(t); s.Phase != model.Idle || s.Attempt != nil {
			t.Errorf("it says of itself %+v", s)
		}
		w.etcd.reconnect()
		if run := w.good(t); run.Target != verC {
			t.Errorf("the next tick took %s", run.Target)
		}
	}
}

// Without confirmation by etcd, a node must not start a new target. It must keep enforcing the target in place.
func TestEtcdLostBeforeAdmission(t *testing.T) {
	faults := map[string]func() error{
		"unreachable":   func() error { return fmt.Errorf("timeout: %w", model.ErrUnreachable) },
		"out of space":  func() error { return errors.New("etcd has no space left") },
		"not permitted": func() error { return errors.New("permission denied") },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			w := fleetOn(t, verA)
			w.now = w.now.Add(time.Hour)
			w.etcd.onAdmit, w.etcd.onReport = fault, fault
			run := w.good(t)
			if run.Target != verA || run.Action != model.Enforce {
				t.Errorf("enforcement stopped: %+v", run)
			}
			if runs, _ := w.disk.Spooled(9); len(runs) != 1 || runs[0].ID != run.ID {
				t.Errorf("spooled: %v", runs)
			}

			w.promote(t, verB)
			before := w.state(t)
			r := w.idle(t)
			if r.Err == nil || !strings.Contains(r.Err.Error(), "cannot admit") || r.Run != nil {
				t.Errorf("taking something new ended with %+v", r)
			}
			same(t, "the state", w.state(t), before)
			w.etcd.reconnect()
			if run := w.good(t); run.Target != verB {
				t.Errorf("afterwards it took %s", run.Target)
			}
		})
	}
}

// A write that times out has an unknown outcome: etcd may contain "running" for a node that gave up.
func TestStuckNodeIsNotRunningInEtcd(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	for range 3 {
		w.etcd.afterAdmit = func() error { return fmt.Errorf("timeout: %w", model.ErrUnreachable) }
		w.idle(t)
		w.etcd.afterAdmit = nil
		if s := w.etcd.status(t); s.Phase != model.Idle {
			t.Fatalf("etcd says %s", s.Phase)
		}
		w.now = w.now.Add(time.Second)
	}
}

// After an outage of etcd, operators need the runs that happened meanwhile.
func TestSpooledRunsAreSentOldestFirst(t *testing.T) {
	w := fleetOn(t, verA)
	w.etcd.disconnect()
	var ids []string
	for range maxSpooled + 10 {
		w.now = w.now.Add(31 * time.Minute)
		ids = append(ids, w.good(t).ID)
		if w.etcd.count("report") > 0 {
			t.Fatal("it reports to an etcd that it just found unreachable")
		}
	}
	kept, err := w.disk.Spooled(1000)
	if err != nil || len(kept) != maxSpooled || kept[0].ID != ids[10] || kept[maxSpooled-1].ID != ids[len(ids)-1] {
		t.Fatalf("%d records are spooled from %s on: %v", len(kept), kept[0].ID, err)
	}

	w.etcd.reconnect()
	var sent []string
	for range maxSpooled / spooledPerTick {
		had := w.etcd.load().Runs
		w.now = w.now.Add(model.DefaultSettings().Heartbeat)
		w.agent.Settings.EnforceInterval = 1000 * time.Hour
		w.idle(t)
		var fresh []string
		for _, id := range ids {
			if _, old := had[id]; !old && w.etcd.load().Runs[id] != nil {
				fresh = append(fresh, id)
			}
		}
		if len(fresh) != spooledPerTick {
			t.Fatalf("one tick sent %d old records", len(fresh))
		}
		sent = append(sent, fresh...)
	}
	same(t, "what was sent", sent, ids[10:])
	if left, _ := w.disk.Spooled(1000); len(left) != 0 {
		t.Errorf("%d records are still spooled", len(left))
	}
	if n := len(w.etcd.load().Runs); n > model.MaxRunsKept {
		t.Errorf("etcd keeps %d records of one node", n)
	}
}

func TestFailedReportLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.promote(t, verA)
	w.etcd.onReport = func() error { return fmt.Errorf("timeout: %w", model.ErrUnreachable) }
	r := w.tick(t)
	if r.Err != nil || !r.Unreachable || r.Run.Outcome != model.Changed {
		t.Fatalf("%+v", r)
	}
	w.etcd.reconnect()
	w.now = w.now.Add(time.Second)
	w.idle(t)
	if s := w.etcd.status(t); s.LastRun != r.Run.ID || s.Outcome != model.Changed || s.Phase != model.Idle {
		t.Errorf("etcd has the status %+v", s)
	}
	if w.etcd.load().Runs[r.Run.ID] == nil {
		t.Error("the run's record is lost")
	}
}

// With 10,000 nodes, each unnecessary call adds a thousand calls a second in etcd.
func TestIdleTickCostsOneReadAndHeartbeatOneWrite(t *testing.T) {
	w := newWorld(t)
	w.agent.Settings.EnforceInterval = 100 * time.Hour
	w.promote(t, verA)
	w.good(t)
	for minute := 1; minute <= 60; minute++ {
		w.now = w.now.Add(time.Minute)
		before := w.files(t)["/node/"+stateFile]
		w.idle(t)
		want := []string{"desire"}
		if minute%5 == 0 {
			want = []string{"desire", "report"}
		}
		same(t, fmt.Sprintf("calls in minute %d", minute), w.etcd.calls, want)
		if w.files(t)["/node/"+stateFile] != before {
			t.Fatal("it wrote its state although nothing changed")
		}
	}
	// A rollout waits for a report after the settle time: a node that took its target reports within a minute, but not for the whole rollout.
	// One that waits for a job does not.
	turn := 0
	assign := func(kind model.AssignmentKind) {
		turn++
		w.etcd.operator(t, func(d *model.Desired) {
			d.Job = &model.LiveJob{ID: "r"}
			d.Assigned = &model.Assignment{ID: fmt.Sprint("r.", turn), Kind: kind, Rollout: "r", Target: d.Default, Epoch: d.Gate.Epoch}
		})
		w.idle(t)
	}
	reports := func(minutes int) (count int) {
		for range minutes {
			w.now = w.now.Add(time.Minute)
			w.idle(t)
			if slices.Contains(w.etcd.calls, "report") {
				count++
			}
		}
		return count
	}
	assign(model.AssignTake)
	same(t, "reports of a node that took its target", reports(29), 29)
	same(t, "its reports an hour later", reports(60), 12)
	assign(model.AssignTake)
	same(t, "reports of the next turn", reports(10), 10)
	assign(model.AssignWait)
	same(t, "reports of a node that waits for a job", reports(60), 12)
}

// A hold that is lost with the network would let Puppet run on a machine that an operator is repairing.
func TestHoldCountsWithoutEtcd(t *testing.T) {
	w := fleetOn(t, verA)
	hold := func(holds ...model.Hold) { w.etcd.operator(t, func(d *model.Desired) { d.Holds = holds }) }
	hold(stop)
	w.idle(t)
	if s := w.etcd.status(t); s.Reason != model.ReasonStopped || s.Hold == nil || s.Hold.Why != stop.Why {
		t.Errorf("it says of itself %+v", s)
	}
	w.etcd.disconnect()
	w.now = w.now.Add(time.Hour)
	if r := w.idle(t, Options{Force: true}); r.Decision.Reason != model.ReasonStopped {
		t.Errorf("offline: %s", r.Decision.Reason)
	}
	w.etcd.reconnect()
	hold(freeze)
	w.promote(t, verB)
	if run := w.good(t); run.Target != verA {
		t.Errorf("frozen, it ran %s", run.Target)
	}
	w.etcd.disconnect()
	w.now = w.now.Add(time.Hour)
	w.good(t)
	w.stands(t, verA, verA)
	w.etcd.reconnect()
	hold()
	w.good(t)
	w.stands(t, verB, verB)
	if s := w.state(t); len(s.Holds) != 0 {
		t.Errorf("it still remembers %v", s.Holds)
	}
}

// A release that fails its own checks must not become the last good one.
func TestUnverifiedRunIsNotLastGood(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, unverified)
	r := w.tick(t)
	if r.Err != nil || r.Run.Kind != model.Between || r.Run.Outcome != model.Failed || !strings.Contains(r.Run.Problem.String(), "validate.d/10-web says no") {
		t.Fatalf("%+v: %v", r.Run, r.Err)
	}
	w.stands(t, verA, unverified)
	if s := w.etcd.status(t); s.Outcome != model.Failed || s.Attempt == nil || !strings.Contains(s.Attempt.Problem.String(), "validate.d") {
		t.Errorf("it says of itself %+v", s)
	}
}

// A release that blocks the connection to etcd must not become the last good one: the node could take no other.
func TestTargetThatCutsOffEtcdIsNotLastGood(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.puppet.during = func(model.Job) { w.etcd.disconnect() }
	r := w.tick(t)
	if !r.Unreachable || r.Run.Kind != model.Between || !strings.Contains(r.Run.Problem.String(), "etcd answered before the run") {
		t.Fatalf("%+v", r)
	}
	w.stands(t, verA, verB)
	if runs, _ := w.disk.Spooled(9); len(runs) != 1 {
		t.Errorf("%d records are spooled", len(runs))
	}
	w.puppet.during = nil
	w.etcd.reconnect()
	w.now = w.now.Add(2 * time.Minute)
	w.good(t)
	w.stands(t, verB, verB)
}

// A full disk must neither stop enforcement nor cause a retry every minute.
func TestFailedStageCountsAndChangesNothing(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.content.onStage = func(target model.Target) error {
		if target == verB {
			return fmt.Errorf("cannot unpack: %w", &os.PathError{Op: "write", Path: "site.pp", Err: syscall.ENOSPC})
		}
		return nil
	}
	r := w.idle(t)
	if r.Err != nil || r.Run == nil || r.Run.Kind != model.Untouched || !strings.Contains(r.Run.Problem.String(), "no space left on device") {
		t.Fatalf("%+v: %v", r.Run, r.Err)
	}
	w.stands(t, verA, verA)
	s := w.etcd.status(t)
	if s.Attempt == nil || s.Attempt.Started != 1 || s.Attempt.Target != verB || !strings.Contains(s.Attempt.Problem.String(), "no space left") || s.Reason != model.ReasonBackoff {
		t.Errorf("it says of itself %+v", s)
	}
	if w.etcd.load().Runs[r.Run.ID] == nil {
		t.Error("the failure has no record")
	}
	w.now = w.now.Add(10 * time.Second)
	if r := w.idle(t); r.Run != nil {
		t.Errorf("it tried again at once: %+v", r.Run)
	}
	for range 40 { // attempts at B, until A is due
		w.now = w.now.Add(time.Minute)
		w.tick(t)
	}
	if s := w.state(t); s.RanAt.Sub(start) < 30*time.Minute || s.Enforcing != verA {
		t.Errorf("A was not enforced on its schedule: %+v", s)
	}
}

// A daemon stopped during a download proves nothing about the release.
func TestStoppedStageIsNoAttempt(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	ctx, cancel := context.WithCancel(t.Context())
	w.content.onStage = func(model.Target) error { cancel(); return ctx.Err() }
	before := w.state(t)
	if r := w.agent.Tick(ctx, Options{}); r.Run != nil || !errors.Is(r.Err, context.Canceled) {
		t.Errorf("%+v", r)
	}
	same(t, "the state", w.state(t), before)
}

// If a machine shuts down while its agent reads etcd, the agent must not start Puppet, kill it and count a failure.
func TestTickStoppedBeforePuppetChangesNothing(t *testing.T) {
	for _, at := range []string{"desire", "admit"} {
		w := fleetOn(t, verA)
		w.now = w.now.Add(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		earlier := w.etcd.status(t)
		if at == "desire" {
			w.etcd.onDesire = func() error { cancel(); return fmt.Errorf("cannot read: %w", ctx.Err()) }
		} else {
			w.etcd.afterAdmit = func() error { cancel(); return nil }
		}
		w.etcd.calls, w.puppet.jobs = nil, nil
		before := w.state(t)
		r := w.agent.Tick(ctx, Options{})
		if len(w.puppet.jobs) != 0 || r.Run != nil || !errors.Is(r.Err, context.Canceled) || r.Unreachable {
			t.Errorf("stopped during %s: %+v", at, r)
		}
		after := w.state(t)
		after.Sequence = before.Sequence
		same(t, "the state, stopped during "+at, after, before)
		if now := w.etcd.status(t); at == "desire" && now != earlier || now.Phase != model.Idle || now.Attempt != nil || now.Reason == model.ReasonUnreadable {
			t.Errorf("stopped during %s, its status is %+v", at, now)
		}
		w.etcd.afterAdmit = nil
		w.etcd.reconnect()
		w.good(t)
	}
}

// A release can bring the old Puppet back beside Pulley, and its node would be converged. A failed run can as well. A daemon of Puppet that
// the environment demands is no rival.
func TestRivalsAreReported(t *testing.T) {
	w := fleetOn(t, verA)
	w.agent.Rivals = func(context.Context) (string, error) { return "/etc/cron.d/puppet", nil }
	w.promote(t, verB)
	w.good(t)
	if s := w.etcd.status(t); s.Rivals != "/etc/cron.d/puppet" || !strings.Contains(model.RivalsWords(s.Rivals), "/etc/cron.d/puppet") {
		t.Errorf("it reports %+v", s)
	}
	w.agent.Rivals = func(context.Context) (string, error) {
		if s := w.state(t); s.LastGood != verA {
			t.Errorf("it looks before it saved the result of the run: %+v", s)
		}
		return "", context.DeadlineExceeded
	}
	w.promote(t, verA)
	w.good(t)
	if s := w.etcd.status(t); s.Rivals != "/etc/cron.d/puppet" {
		t.Errorf("after a look that failed it reports %q", s.Rivals)
	}
	w.agent.Rivals = func(context.Context) (string, error) { return "", nil }
	w.promote(t, syntax)
	w.tick(t)
	if s := w.etcd.status(t); s.Rivals != "" || s.Outcome != model.Failed {
		t.Errorf("after their removal it reports %+v", s)
	}
}

// A node whose schedule does not run becomes silent: its last report must name the cause. A first boot reports it by a tick that takes nothing.
func TestUnscheduledIsReported(t *testing.T) {
	w := newWorld(t)
	why := errors.New("no cron runs\nstart cron")
	w.agent.Unscheduled = func() error { return why }
	w.promote(t, verA)
	if r := w.agent.Tick(t.Context(), Options{Keep: true}); r.Err != nil || r.Run != nil {
		t.Fatalf("%+v", r)
	}
	if s := w.etcd.status(t); s.Unscheduled != "no cron runs\nstart cron" || !s.LastGood.IsZero() {
		t.Errorf("it reports %+v", s)
	}
	why = nil
	w.good(t)
	if s := w.etcd.status(t); s.Unscheduled != "" {
		t.Errorf("with a schedule it reports %+v", s)
	}
}

// A failed run may damage as much as a successful one. The agent must restore the damage after any run. If it was
// killed, the next agent must.
func TestDamageOfAnyRunIsRestored(t *testing.T) {
	damage := errors.New("the list is gone (it was put back)")
	for name, kind := range map[string]model.Kind{"2.0.0": model.Between, "halfway": model.Between, "syntax": model.Untouched} {
		w := fleetOn(t, verA)
		w.promote(t, model.Target{Release: name, Tree: verB.Tree})
		w.machine.damage = damage
		verified := w.machine.verified
		r := w.tick(t)
		if r.Run == nil || r.Run.Kind != kind || r.Run.Outcome != model.Failed || !strings.Contains(r.Run.Problem.String(), damage.Error()) {
			t.Errorf("%s: %+v", name, r.Run)
		}
		if w.machine.pending || w.machine.verified != verified {
			t.Errorf("%s: pending %v, and its own checks ran %d times", name, w.machine.pending, w.machine.verified-verified)
		}
	}
	w := fleetOn(t, verA)
	w.machine.damage = damage
	if r := w.tick(t, Options{Noop: true}); !errors.Is(r.Err, damage) || w.machine.pending {
		t.Errorf("a noop that changed something: %+v", r)
	}
	w.machine.pending, w.machine.damage = true, damage // the agent was killed
	w.content.onStage = func(model.Target) error {
		if w.machine.pending {
			t.Error("who may sign was asked of what the run left behind")
		}
		return nil
	}
	w.promote(t, verB)
	w.good(t)
}

// A stop during verification proves nothing about the release: the next tick repeats the run.
func TestStopDuringVerificationLeavesRunOpen(t *testing.T) {
	for _, at := range []string{"its own checks", "etcd's answer"} {
		w := fleetOn(t, verA)
		ctx, cancel := context.WithCancel(t.Context())
		w.promote(t, verB)
		if at == "its own checks" {
			w.machine.during = func() error { cancel(); return errors.New("signal: killed") }
		} else {
			w.puppet.during = func(model.Job) {
				w.etcd.onDesire = func() error { cancel(); return context.Canceled } // as etcd's client does
			}
		}
		r := w.agent.Tick(ctx, Options{})
		s := w.state(t)
		if !errors.Is(r.Err, context.Canceled) || s.OpenRun == "" || s.Enforcing != verB || s.LastGood != verA || r.Unreachable {
			t.Errorf("during %s: %+v, %+v", at, r, s)
		}
		if a := s.Attempt(verB); a == nil || a.Finished != 0 || w.etcd.status(t).Phase != model.Idle {
			t.Errorf("during %s: its attempts are %+v", at, a)
		}
		w.machine.during, w.puppet.during = nil, nil
		w.etcd.reconnect()
		if run := w.good(t); run.Target != verB {
			t.Errorf("afterwards it ran %s", run.Target)
		}
		w.stands(t, verB, verB)
	}
}

func TestMissingTreeWithoutEtcdIsNoAttempt(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.content.onStage = func(model.Target) error { return fmt.Errorf("chunk 3: %w", model.ErrUnreachable) }
	before := w.state(t)
	if r := w.idle(t); r.Run != nil || !r.Unreachable || r.Decision.Wanted != verB || !strings.Contains(r.Decision.Sentence(), "chunk 3") {
		t.Errorf("%+v", r)
	}
	same(t, "the state", w.state(t), before)
}

// A release that a slow link cannot download in time must not prevent enforcement of the target in place.
func TestUnfetchableTargetKeepsEnforcing(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.content.onStage = func(target model.Target) error {
		if target == verB {
			return fmt.Errorf("chunk 3: %w", model.ErrUnreachable)
		}
		return nil
	}
	w.now = w.now.Add(time.Hour)
	if run := w.good(t); run.Target != verA || run.Action != model.Enforce {
		t.Errorf("it ran %+v", run)
	}
	w.stands(t, verA, verA)
	w.content.onStage = nil
	if run := w.good(t); run.Target != verB {
		t.Errorf("afterwards it took %s", run.Target)
	}
}

// A rollback after a day of failed releases must need no download: the previous good release stays on disk.
func TestPreviousGoodTargetIsKept(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.good(t)
	w.now = w.now.Add(time.Hour)
	w.good(t) // enforces
	if s := w.state(t); s.LastGood != verB || s.PreviousGood != verA {
		t.Errorf("%+v", s)
	}
	if !slices.Contains(w.content.kept, verA) || !slices.Contains(w.content.kept, verB) {
		t.Errorf("collection keeps %v", w.content.kept)
	}
}

// Puppet's own corrective_change is not set under apply. Without this check, manual edits of files stay unnoticed.
func TestDriftIsReported(t *testing.T) {
	w := fleetOn(t, verA)
	w.now = w.now.Add(time.Hour)
	if run := w.good(t); run.Drift || run.Outcome != model.Unchanged {
		t.Errorf("nothing drifted: %+v", run)
	}
	if err := w.puppet.apply("edited by hand"); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Hour)
	run := w.good(t)
	if !run.Drift || run.Outcome != model.Changed {
		t.Errorf("drift is not seen: %+v", run)
	}
	if got, _, err := model.DecodeRun(w.etcd.load().Runs[run.ID]); err != nil || !got.Drift {
		t.Errorf("the record does not say that it was drift: %v", err)
	}
}

// Nobody must look for a hand on the machine when the Puppet server has other code.
func TestOtherCodeOfPuppetServerIsNoDrift(t *testing.T) {
	w := fleetOn(t, verA)
	for _, c := range []struct {
		code  string
		drift bool
	}{{"ghi", true}, {"ghi", true}, {"jkl", false}, {"jkl", true}, {"", false}, {"", true}} { // the first one follows a run without server
		w.puppet.result = func(model.Job) (model.Result, error) {
			return model.Result{Kind: model.Success, Outcome: model.Changed, Served: &model.Served{Environment: "v2", Code: c.code}}, nil
		}
		w.now = w.now.Add(time.Hour)
		if run := w.good(t); run.Drift != c.drift || run.Outcome != model.Changed {
			t.Errorf("code %q: drift %t, %s", c.code, run.Drift, run.Outcome)
		}
	}
}

// A change by a run between two targets is progress, not drift.
func TestRetryIsNoDrift(t *testing.T) {
	w := newWorld(t)
	w.promote(t, halfway)
	w.tick(t)
	w.puppet.result = func(job model.Job) (model.Result, error) {
		return model.Result{Kind: model.Between, Outcome: model.Changed, Noop: job.Noop}, nil
	}
	if r := w.tick(t, Options{Noop: true}); r.Run.Drift {
		t.Error("a noop run of a target that never was in place is called drift")
	}
	w.now = w.now.Add(2 * time.Minute)
	if r := w.tick(t); r.Run == nil || r.Run.Drift {
		t.Errorf("%+v", r.Run)
	}
}

// A noop run must not change anything.
func TestNoopNeverCommits(t *testing.T) {
	for _, wanted := range []model.Target{verA, verB} {
		w := fleetOn(t, verA)
		w.promote(t, wanted)
		before := w.state(t)
		r := w.tick(t, Options{Noop: true})
		if r.Err != nil || r.Run == nil || !r.Run.Noop || r.Run.Target != wanted || !w.puppet.jobs[0].Noop {
			t.Fatalf("%+v: %v", r.Run, r.Err)
		}
		if w.etcd.count("admit") > 0 {
			t.Error("a noop asked for admission")
		}
		same(t, "the state", w.state(t), before)
		w.stands(t, verA, verA)
		if s := w.etcd.status(t); s.LastGood != verA || s.LastRun == r.Run.ID || s.Phase != model.Idle {
			t.Errorf("it says of itself %+v", s)
		}
		if got, _, err := model.DecodeRun(w.etcd.load().Runs[r.Run.ID]); err != nil || !got.Noop {
			t.Errorf("its record: %+v: %v", got, err)
		}
	}
}

// A part of a target that counted would never be completed.
func TestPartialRunNeverCommits(t *testing.T) {
	part := model.Part{Tags: []string{"ntp"}}
	for _, wanted := range []model.Target{verA, verB} {
		w := fleetOn(t, verA)
		w.promote(t, wanted)
		before := w.state(t)
		before.Sequence++
		w.puppet.during = func(model.Job) { // a crash here leaves a status that says that Puppet runs
			if last, err := w.disk.LoadReported(); err != nil || last.Fingerprint != "" {
				t.Errorf("the next tick would not report: %+v, %v", last, err)
			}
		}
		r := w.tick(t, Options{Part: part})
		if r.Err != nil || r.Run == nil || r.Run.Target != verA || !slices.Equal(w.puppet.jobs[0].Tags, part.Tags) {
			t.Fatalf("%+v: %v", r.Run, r.Err)
		}
		if w.etcd.count("admit") != 1 {
			t.Error("a run that changes the machine did not ask for admission")
		}
		same(t, "the state", w.state(t), before)
		if s := w.etcd.status(t); s.LastGood != verA || s.LastRun == r.Run.ID || s.Phase != model.Idle {
			t.Errorf("it says of itself %+v", s)
		}
		if got, _, err := model.DecodeRun(w.etcd.load().Runs[r.Run.ID]); err != nil || !got.Partial() {
			t.Errorf("its record: %+v: %v", got, err)
		}
	}
	t.Run("fails", func(t *testing.T) {
		w := fleetOn(t, verA)
		w.puppet.result = func(model.Job) (model.Result, error) {
			return model.Result{Kind: model.Between, Outcome: model.Failed, ExitCode: 4}, nil
		}
		before := w.state(t)
		before.Sequence++
		if r := w.tick(t, Options{Part: part}); r.Run == nil || r.Run.Outcome != model.Failed {
			t.Fatalf("%+v", r)
		}
		same(t, "the state", w.state(t), before)
	})
	t.Run("stopped", func(t *testing.T) {
		w := fleetOn(t, verA)
		w.etcd.operator(t, func(d *model.Desired) { d.Holds = []model.Hold{stop} })
		w.idle(t, Options{Part: part})
	})
}

// A look at a release that is not promoted must leave no trace of it on the node.
func TestLookNeverCommits(t *testing.T) {
	w := fleetOn(t, verA)
	before := w.state(t)
	r := w.tick(t, Options{Noop: true, Look: model.Target{Release: verB.Release, Tree: verB.Tree}})
	if r.Err != nil || r.Run == nil || r.Run.Target.Release != verB.Release || !w.puppet.jobs[0].Noop {
		t.Fatalf("%+v: %v", r.Run, r.Err)
	}
	same(t, "the state", w.state(t), before)
	w.stands(t, verA, verA)
	if s := w.etcd.status(t); s.Target != verA || s.LastGood != verA {
		t.Errorf("it says of itself %+v", s)
	}
}

func TestForceResetsAttempts(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, syntax)
	w.tick(t)
	for range 4 {
		w.now = w.now.Add(12 * time.Minute)
		w.tick(t)
	}
	if a := w.attempt(t, syntax); a == nil || a.Started != 5 {
		t.Fatalf("%+v", a)
	}
	w.now = w.now.Add(time.Second)
	if r := w.tick(t, Options{Force: true}); r.Run == nil || r.Run.Reason != model.ReasonForced {
		t.Fatalf("%+v", r)
	}
	if a := w.attempt(t, syntax); a == nil || a.Started != 1 || a.Finished != 1 {
		t.Errorf("after force: %+v", a)
	}
}

func TestDisabledNodeReportsReason(t *testing.T) {
	w := fleetOn(t, verA)
	if err := w.disk.Disable("kernel debugging"); err != nil {
		t.Fatal(err)
	}
	w.promote(t, verB)
	w.idle(t, Options{Force: true})
	if s := w.etcd.status(t); s.Disabled != "kernel debugging" || s.Reason != model.ReasonDisabled {
		t.Errorf("it says of itself %+v", s)
	}
	if err := w.disk.Enable(); err != nil {
		t.Fatal(err)
	}
	w.puppet.blocked = &model.Blocked{Code: model.PuppetDisabled, Text: "ask Ann"}
	w.idle(t)
	if s := w.etcd.status(t); s.Reason != model.ReasonPuppetBlocked || !strings.Contains(s.Why().Sentence(), "ask Ann") {
		t.Errorf("it says of itself %+v", s)
	}
	w.puppet.blocked = nil
	w.good(t)
	w.stands(t, verB, verB)
}

func TestUnstartablePuppetIsUntouchedFailure(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.puppet.result = func(model.Job) (model.Result, error) {
		return model.Result{}, errors.New("cannot find puppet: install it")
	}
	r := w.tick(t)
	if r.Run == nil || r.Run.Kind != model.Untouched || !strings.Contains(r.Run.Problem.String(), "install it") {
		t.Fatalf("%+v", r)
	}
	w.stands(t, verA, verA)
}

// Operators rely on `current` in a manual recovery.
func TestLostLinkOrTreeIsRestored(t *testing.T) {
	w := fleetOn(t, verA)
	link := filepath.Join(w.dir, "current")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	w.idle(t)
	w.stands(t, verA, verA)
	if err := errors.Join(os.Remove(link), os.Remove(w.content.tree(verA.Tree))); err != nil {
		t.Fatal(err)
	}
	w.good(t)
	w.stands(t, verA, verA)
}

// A node with an unreadable state must not report that it has no release.
func TestNodeWithUnreadableStateReportsNothing(t *testing.T) {
	w := fleetOn(t, verA)
	before := w.etcd.status(t)
	if err := os.WriteFile(filepath.Join(w.dir, "node", stateFile), []byte(`{"v": 99}`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Hour)
	r := w.idle(t)
	if r.Err == nil || !strings.Contains(r.Err.Error(), "upgrade the agent") {
		t.Errorf("%v", r.Err)
	}
	same(t, "the status in etcd", w.etcd.status(t), before)
}

func TestUnreadableValueIsReported(t *testing.T) {
	w := fleetOn(t, verA)
	w.now = w.now.Add(time.Hour)
	w.etcd.onDesire = func() error { return errors.New("the gate of dev is of format 9; upgrade the agent") }
	w.good(t)
	if w.etcd.count("admit") > 0 {
		t.Error("it asked for admission of what it can't read")
	}
	if s := w.etcd.status(t); s.Reason != model.ReasonUnreadable || !strings.Contains(s.Why().Sentence(), "format 9") {
		t.Errorf("it says of itself %+v", s)
	}
}

// After one run with the clock a year ahead, the node must continue to work.
func TestClockYearAheadDoesNotStopNode(t *testing.T) {
	w := newWorld(t)
	w.now = start.Add(365 * 24 * time.Hour)
	w.promote(t, verA)
	w.good(t)
	w.now = start
	w.good(t)
	w.now = start.Add(time.Minute)
	w.idle(t)
	if s := w.etcd.status(t); !s.SeenAt.Equal(start) {
		t.Errorf("the last report is of %s", s.SeenAt)
	}
	w.now = start.Add(5 * time.Minute)
	w.idle(t)
	if s := w.etcd.status(t); !s.SeenAt.Equal(w.now) {
		t.Errorf("the heartbeat stopped at %s", s.SeenAt)
	}
}

// With a future time in reported.json, the node would be silent until then.
func TestHeartbeatFromTheFutureIsRepeated(t *testing.T) {
	w := fleetOn(t, verA)
	last, err := w.disk.LoadReported()
	if err != nil {
		t.Fatal(err)
	}
	last.At = start.Add(365 * 24 * time.Hour)
	if err := w.disk.SaveReported(last); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{{"desire", "report"}, {"desire"}} {
		w.idle(t)
		same(t, "calls", w.etcd.calls, want)
	}
}

// If the agent is killed during a Puppet run, the extent of the changes is unknown: the run must be repeated.
func TestInterruptedRunIsRepeated(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.puppet.during = func(model.Job) { panic("killed") }
	func() {
		defer func() { _ = recover() }()
		w.tick(t)
	}()
	w.content.held, w.puppet.during = 0, nil
	s := w.state(t)
	if a := s.Attempt(verB); s.OpenRun == "" || a == nil || !a.Open {
		t.Fatalf("%+v", s)
	}
	w.now = w.now.Add(time.Second)
	if run := w.good(t); run.Reason != model.ReasonInterrupted || run.Target != verB {
		t.Errorf("%+v", run)
	}
	w.stands(t, verB, verB)
}
