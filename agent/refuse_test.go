package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

// refusedB is an unsigned target.
var refusedB = version("refused-2.0.0")

// An attacker in etcd who sets a release of his own must not get it onto any node. Every node must keep its target and
// report the cause.
func TestRefusedTargetIsNotTaken(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, refusedB)
	r := w.idle(t)
	if r.Err != nil || r.Run != nil || r.Decision.Reason != model.ReasonRefused {
		t.Fatalf("%+v", r)
	}
	w.stands(t, verA, verA)
	s := w.etcd.status(t)
	if s.Reason != model.ReasonRefused || s.Why().Sentence() != "the target is refused: the record cannot be read: it is not signed" || s.Refusal == nil || s.Refusal.Target != refusedB || s.Target != refusedB || s.Attempt != nil {
		t.Errorf("it says of itself %+v", s)
	}
	if v := model.Look(&s, w.etcd.load().Desired, w.now); v.State != model.FailedState || !strings.Contains(v.Sentence(), "it is not signed") {
		t.Errorf("an operator sees that it is %s: %s", v.State, v.Sentence())
	}
	if n := len(w.etcd.load().Runs); n != 1 {
		t.Errorf("a refusal has left a run record: there are %d", n)
	}

	w.now = start.Add(31 * time.Minute)
	r = w.tick(t)
	if r.Err != nil || r.Run == nil || r.Run.Target != verA || r.Run.Reason != model.ReasonDue || r.Run.Outcome != model.Unchanged || r.Decision.Blocked.Reason != model.ReasonRefused {
		t.Fatalf("what is in place was due: %+v", r)
	}
	w.stands(t, verA, verA)
	if s := w.etcd.status(t); s.Reason != model.ReasonRefused || !s.RanAt.Equal(w.now) || s.Refusal == nil {
		t.Errorf("it says of itself %+v", s)
	}
}

// A node must find a later signature by itself: there is no event for ten thousand nodes.
func TestTargetSignedLaterIsTaken(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	signed := w.content.refuses
	w.content.refuses = func(model.Target) string { return "it is not signed" }
	for range 30 { // two and a half hours of cron
		w.tick(t)
		w.now = w.now.Add(5 * time.Minute)
	}
	s := w.state(t)
	if len(s.Attempts) != 0 || s.Refusal == nil || w.now.Sub(s.Refusal.At) > 5*time.Minute {
		t.Fatalf("it has stopped looking, or counts refusals as attempts: %+v", s)
	}
	w.content.refuses = signed
	if run := w.good(t); run.Target != verB || run.Reason != model.ReasonNew {
		t.Errorf("%+v", run)
	}
	w.stands(t, verB, verB)
	if s := w.state(t); s.Refusal != nil || w.etcd.status(t).Refusal != nil {
		t.Errorf("the refusal outlived the target's installation: %+v", s.Refusal)
	}
}

// Between two checks of a signature, a node reads from etcd once, like any other node.
func TestRefusedTargetCostsOneReadBetweenChecks(t *testing.T) {
	w := fleetOn(t, verA)
	w.agent.Settings.Heartbeat = time.Hour
	looked := 0
	w.content.refuses = func(model.Target) string { looked++; return "it is not signed" }
	w.promote(t, verB)
	w.idle(t)
	looked = 0
	for range 3 {
		w.now = w.now.Add(time.Minute)
		before := w.files(t)["/node/"+stateFile]
		w.idle(t)
		same(t, "calls", w.etcd.calls, []string{"desire"})
		if w.files(t)["/node/"+stateFile] != before {
			t.Error("it wrote its state although nothing changed")
		}
	}
	if looked != 0 {
		t.Errorf("it looked %d times in three minutes", looked)
	}
}

func TestForceChecksRefusedTarget(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, refusedB)
	w.idle(t)
	w.now = w.now.Add(time.Second)
	if r := w.tick(t, Options{Force: true}); r.Err != nil || r.Run == nil || r.Run.Target != verA || r.Run.Reason != model.ReasonForced || r.Decision.Blocked.Reason != model.ReasonRefused {
		t.Fatalf("refused again, it must enforce the current target: %+v", r)
	}
	if s := w.state(t); s.Refusal == nil || !s.Refusal.At.Equal(w.now) || len(s.Attempts) != 0 {
		t.Errorf("it did not look: %+v", s)
	}
	w.content.refuses = nil
	w.now = w.now.Add(time.Second)
	if run := w.good(t, Options{Force: true}); run.Target != refusedB {
		t.Errorf("signed meanwhile, it ran %s", run.Target)
	}
	w.stands(t, refusedB, refusedB)
}

// A noop run evaluates a release as root: an unauthentic release must not get that far.
func TestNoopOfRefusedTargetRunsNoPuppet(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, refusedB)
	for range 2 { // the second time, the refusal is known
		before := w.state(t)
		r := w.idle(t, Options{Noop: true})
		if r.Err == nil || !strings.Contains(r.Err.Error(), "it is not signed") || r.Run != nil {
			t.Errorf("%+v", r)
		}
		same(t, "the state", w.state(t), before)
		w.idle(t)
		w.now = w.now.Add(time.Second)
	}
	w.content.refuses = nil
	if r := w.tick(t, Options{Noop: true}); r.Err != nil || r.Run == nil || r.Run.Target != refusedB {
		t.Errorf("signed meanwhile: %+v", r)
	}
	if s := w.state(t); s.Refusal == nil || s.LastGood != verA {
		t.Errorf("a noop changed the state: %+v", s)
	}
}

// A loss of etcd during a check of a signature is not a refusal.
func TestUnreachableEtcdIsNoRefusal(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, refusedB)
	w.idle(t)
	known := w.state(t)
	w.etcd.disconnect()
	w.now = start.Add(31 * time.Minute)
	if run := w.good(t); run.Target != verA {
		t.Errorf("without etcd it ran %s", run.Target)
	}
	w.stands(t, verA, verA)
	same(t, "what it knows of the refusal", w.state(t).Refusal, known.Refusal)

	w.etcd.reconnect()
	w.content.onStage, w.content.refuses = func(model.Target) error { return fmt.Errorf("record: %w", model.ErrUnreachable) }, nil
	before := w.state(t)
	if r := w.idle(t); r.Run != nil || !r.Unreachable || r.Decision.Reason != model.ReasonUnreachable || r.Err != nil {
		t.Errorf("%+v", r)
	}
	same(t, "the state", w.state(t), before)
	w.content.onStage = nil
	if run := w.good(t); run.Target != refusedB {
		t.Errorf("afterwards it took %s", run.Target)
	}
}

// After a promotion of another target, the status must not mention the refusal of the old one.
func TestRefusalIsDeletedWithItsTarget(t *testing.T) {
	for name, next := range map[string]func(*world){
		"promoted something else":      func(w *world) { w.promote(t, verC) },
		"promoted what is in place":    func(w *world) { w.promote(t, verA) },
		"signed; it does not compile":  func(w *world) { w.promote(t, syntax) },
		"signed; it can't be unpacked": func(w *world) { w.content.refuses, w.content.onStage = nil, full },
	} {
		w := fleetOn(t, verA)
		w.promote(t, refusedB)
		w.idle(t)
		next(w)
		w.now = w.now.Add(5 * time.Minute)
		if r := w.tick(t); r.Err != nil {
			t.Fatalf("%s: %v", name, r.Err)
		}
		if s, status := w.state(t), w.etcd.status(t); s.Refusal != nil || status.Refusal != nil || status.Reason == model.ReasonRefused {
			t.Errorf("%s: it still speaks of the refusal: %+v, %+v", name, s.Refusal, status)
		}
	}
}

func full(model.Target) error { return fmt.Errorf("no space left") }

// With a refused first target, the machine must stay unchanged after any number of ticks.
func TestRefusedFirstTargetChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.promote(t, refusedB)
	for _, opts := range []Options{{}, {Force: true}, {}} {
		if r := w.idle(t, opts); r.Err != nil || r.Run != nil || r.Decision.Reason != model.ReasonRefused {
			t.Errorf("%+v", r)
		}
		w.now = w.now.Add(10 * time.Minute)
	}
	w.stands(t, model.Target{}, model.Target{})
}

// A node between two targets has no complete target to return to. If the way back is refused, it stays there and
// retries.
func TestNodeBetweenTargetsStaysWhenReturnIsRefused(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, halfway)
	w.tick(t)
	w.promote(t, verA)
	w.content.refuses = func(target model.Target) string {
		if target == verA {
			return "it is older than halfway-2.0.0"
		}
		return ""
	}
	w.now = w.now.Add(5 * time.Minute)
	if r := w.tick(t); r.Run == nil || r.Run.Target != halfway || r.Decision.Blocked.Reason != model.ReasonRefused {
		t.Errorf("%+v", r)
	}
	w.stands(t, verA, halfway)
	s := w.etcd.status(t)
	if v := model.Look(&s, w.etcd.load().Desired, w.now); s.Attempt == nil || s.Attempt.Target != halfway || v.State != model.FailedState || !strings.Contains(v.Sentence(), "older than") {
		t.Errorf("it says of itself %+v", s)
	}
	w.content.refuses = nil
	w.now = w.now.Add(5 * time.Minute)
	w.good(t)
	w.stands(t, verA, verA)
}
