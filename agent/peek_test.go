package agent

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"pulley/internal/model"
)

// If an agent and its content change together, the cause of a broken machine is unknown.
func TestOnlyCalmTickMayUpgradeAgent(t *testing.T) {
	open, daemon := model.Desired{Gate: model.Gate{State: model.GateOpen}}, model.Cause{Reason: model.ReasonDaemon}
	beside := model.Decision{Cause: daemon, Blocked: daemon}
	for _, c := range []struct {
		name string
		d    model.Decision
		on   model.Desired
		calm bool
	}{
		{"up to date", model.Decision{Cause: model.Cause{Reason: model.ReasonUpToDate}}, open, true},
		{"a missing gate", model.Decision{Cause: model.Cause{Reason: model.ReasonUpToDate}}, model.Desired{}, true},
		{"due", model.Decision{Action: model.Enforce, Cause: model.Cause{Reason: model.ReasonDue}}, open, true},
		{"without enforcement", model.Decision{Cause: model.Cause{Reason: model.ReasonNotEnforced}}, open, true},
		{"beside Puppet's own daemon", beside, model.Desired{Gate: open.Gate, Host: &model.Host{}}, true},
		{"beside Puppet's own daemon, frozen", beside, model.Desired{Gate: open.Gate, Host: &model.Host{}, Holds: []model.Hold{{Mode: model.Freeze}}}, false},
		{"beside Puppet's own daemon, while etcd is unreachable", beside, model.Desired{Gate: open.Gate, Host: &model.Host{}, Unreachable: "no answer"}, false},
		{"a preview is ordered", model.Decision{Cause: model.Cause{Reason: model.ReasonUpToDate}}, model.Desired{Gate: open.Gate, Preview: &model.PreviewOrder{ID: "1"}}, false}, // probation answers none
		{"a new target", model.Decision{Action: model.Take, Cause: model.Cause{Reason: model.ReasonNew}}, open, false},
		{"between two targets", model.Decision{Action: model.Take, Cause: model.Cause{Reason: model.ReasonReturn}}, open, false},
		{"a retry", model.Decision{Action: model.Enforce, Cause: model.Cause{Reason: model.ReasonRetry}}, open, false},
		{"a run that was cut off", model.Decision{Action: model.Enforce, Cause: model.Cause{Reason: model.ReasonInterrupted}}, open, false},
		{"an attempt that failed", model.Decision{Cause: model.Cause{Reason: model.ReasonBackoff}, Blocked: model.Cause{Reason: model.ReasonBackoff}}, open, false},
		{"a refused target", model.Decision{Cause: model.Cause{Reason: model.ReasonRefused}, Blocked: model.Cause{Reason: model.ReasonRefused}}, open, false},
		{"a node that is stuck", model.Decision{Cause: model.Cause{Reason: model.ReasonStuck}, Blocked: model.Cause{Reason: model.ReasonStuck}}, open, false},
		{"not on the list", model.Decision{Cause: model.Cause{Reason: model.ReasonUnregistered}, Blocked: model.Cause{Reason: model.ReasonUnregistered}}, open, false},
		{"etcd is unreachable", model.Decision{Action: model.Enforce, Cause: model.Cause{Reason: model.ReasonDue}, Blocked: model.Cause{Reason: model.ReasonUnreachable}}, open, false},
		{"a hold on what is in place", model.Decision{Cause: model.Cause{Reason: model.ReasonUpToDate}, Hold: &model.Hold{Mode: model.Freeze}}, open, false},
		{"paused", model.Decision{Cause: model.Cause{Reason: model.ReasonUpToDate}}, model.Desired{Gate: model.Gate{State: model.GatePaused}}, false},
		{"aborted", model.Decision{Cause: model.Cause{Reason: model.ReasonUpToDate}}, model.Desired{Gate: model.Gate{State: model.GateAborted}}, false},
		{"disabled", model.Decision{Cause: model.Cause{Reason: model.ReasonDisabled}, Blocked: model.Cause{Reason: model.ReasonDisabled}}, open, false},
		{"asked for", model.Decision{Action: model.Enforce, Cause: model.Cause{Reason: model.ReasonForced}}, open, false},
	} {
		if calm := c.d.Calm(c.on); calm != c.calm {
			t.Errorf("%s: calm %t", c.name, calm)
		}
	}
}

// With a candidate on probation, a read that changes the state would have its effect twice. If Peek and Tick differ,
// the new agent runs a tick that belongs to the old one.
func TestPeekDecidesLikeTick(t *testing.T) {
	w := newWorld(t)
	look := func(action model.Action, reason model.Reason) {
		t.Helper()
		before := everything(t, w.dir)
		d, _, err := w.agent.Peek(t.Context())
		if err != nil || d.Action != action || d.Reason != reason {
			t.Errorf("it sees %s, %s, %v; want %s, %s", d.Action, d.Reason, err, action, reason)
		}
		if after := everything(t, w.dir); !reflect.DeepEqual(before, after) {
			t.Errorf("it changed something: %v, before %v", after, before)
		}
	}
	w.promote(t, version("1.0.0"))
	look(model.Take, model.ReasonNew)
	w.good(t)
	look(model.Nothing, model.ReasonUpToDate)
	w.now = w.now.Add(time.Hour)
	look(model.Enforce, model.ReasonDue)
	var steps []string
	w.agent.Step = func(name string) { steps = append(steps, name) }
	w.good(t)
	if !reflect.DeepEqual(steps, Steps(model.Enforce)) {
		t.Errorf("it reported the steps %v", steps)
	}
}

// A new target must not be the first work of a new agent on probation: the cause of a broken machine would be unknown.
func TestProbationTakesNoNewTarget(t *testing.T) {
	w := newWorld(t)
	w.promote(t, version("1.0.0"))
	w.good(t)
	w.promote(t, version("2.0.0"))
	if r := w.tick(t, Options{Keep: true}); r.Run != nil || r.Err != nil || r.Note == "" {
		t.Errorf("%+v", r)
	}
	w.stands(t, version("1.0.0"), version("1.0.0"))
	w.good(t)
	w.stands(t, version("2.0.0"), version("2.0.0"))
	w.now = w.now.Add(time.Hour)
	w.good(t, Options{Keep: true}) // it enforces the target in place
}

// A failed agent on probation must leave nothing that only it can read: the earlier agent would call its own file damaged.
func TestProbationKeepsNoStatement(t *testing.T) {
	w, kept := newWorld(t), 0
	w.agent.Current = func(model.Desired) (*model.Refusal, func() error) { return nil, func() error { kept++; return nil } }
	w.promote(t, version("1.0.0"))
	for _, c := range []struct {
		opts Options
		want int
	}{{Options{Noop: true}, 0}, {Options{Keep: true}, 0}, {Options{}, 1}, {Options{Keep: true}, 1}} {
		if r := w.tick(t, c.opts); r.Err != nil || kept != c.want {
			t.Errorf("%+v: kept %d times, want %d: %v", c.opts, kept, c.want, r.Err)
		}
	}
}

// everything returns each file below a folder with its bytes.
func everything(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
