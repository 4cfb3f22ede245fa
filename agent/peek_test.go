package agent

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// If an agent and its content change together, the cause of a broken machine is unknown.
func TestOnlyCalmTickMayUpgradeAgent(t *testing.T) {
	open, daemon := Desired{Gate: Gate{State: GateOpen}}, Cause{Reason: ReasonDaemon}
	beside := Decision{Cause: daemon, Blocked: daemon}
	for _, c := range []struct {
		name string
		d    Decision
		on   Desired
		calm bool
	}{
		{"up to date", Decision{Cause: Cause{Reason: ReasonUpToDate}}, open, true},
		{"a missing gate", Decision{Cause: Cause{Reason: ReasonUpToDate}}, Desired{}, true},
		{"due", Decision{Action: Enforce, Cause: Cause{Reason: ReasonDue}}, open, true},
		{"without enforcement", Decision{Cause: Cause{Reason: ReasonNotEnforced}}, open, true},
		{"beside Puppet's own daemon", beside, Desired{Gate: open.Gate, Host: &Host{}}, true},
		{"beside Puppet's own daemon, frozen", beside, Desired{Gate: open.Gate, Host: &Host{}, Holds: []Hold{{Mode: Freeze}}}, false},
		{"beside Puppet's own daemon, while etcd is unreachable", beside, Desired{Gate: open.Gate, Host: &Host{}, Unreachable: "no answer"}, false},
		{"a preview is ordered", Decision{Cause: Cause{Reason: ReasonUpToDate}}, Desired{Gate: open.Gate, Preview: &PreviewOrder{ID: "1"}}, false}, // probation answers none
		{"a new target", Decision{Action: Take, Cause: Cause{Reason: ReasonNew}}, open, false},
		{"between two targets", Decision{Action: Take, Cause: Cause{Reason: ReasonReturn}}, open, false},
		{"a retry", Decision{Action: Enforce, Cause: Cause{Reason: ReasonRetry}}, open, false},
		{"a run that was cut off", Decision{Action: Enforce, Cause: Cause{Reason: ReasonInterrupted}}, open, false},
		{"an attempt that failed", Decision{Cause: Cause{Reason: ReasonBackoff}, Blocked: Cause{Reason: ReasonBackoff}}, open, false},
		{"a refused target", Decision{Cause: Cause{Reason: ReasonRefused}, Blocked: Cause{Reason: ReasonRefused}}, open, false},
		{"a node that is stuck", Decision{Cause: Cause{Reason: ReasonStuck}, Blocked: Cause{Reason: ReasonStuck}}, open, false},
		{"not on the list", Decision{Cause: Cause{Reason: ReasonUnregistered}, Blocked: Cause{Reason: ReasonUnregistered}}, open, false},
		{"etcd is unreachable", Decision{Action: Enforce, Cause: Cause{Reason: ReasonDue}, Blocked: Cause{Reason: ReasonUnreachable}}, open, false},
		{"a hold on what is in place", Decision{Cause: Cause{Reason: ReasonUpToDate}, Hold: &Hold{Mode: Freeze}}, open, false},
		{"paused", Decision{Cause: Cause{Reason: ReasonUpToDate}}, Desired{Gate: Gate{State: GatePaused}}, false},
		{"aborted", Decision{Cause: Cause{Reason: ReasonUpToDate}}, Desired{Gate: Gate{State: GateAborted}}, false},
		{"disabled", Decision{Cause: Cause{Reason: ReasonDisabled}, Blocked: Cause{Reason: ReasonDisabled}}, open, false},
		{"asked for", Decision{Action: Enforce, Cause: Cause{Reason: ReasonForced}}, open, false},
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
	look := func(action Action, reason Reason) {
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
	look(Take, ReasonNew)
	w.good(t)
	look(Nothing, ReasonUpToDate)
	w.now = w.now.Add(time.Hour)
	look(Enforce, ReasonDue)
	var steps []string
	w.agent.Step = func(name string) { steps = append(steps, name) }
	w.good(t)
	if !reflect.DeepEqual(steps, Steps(Enforce)) {
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
	w.agent.Current = func(Desired) (*Refusal, func() error) { return nil, func() error { kept++; return nil } }
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
