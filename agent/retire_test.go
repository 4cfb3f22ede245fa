package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

// A requested run must be answered, and it must not run twice.
func TestRequestedRunHappensOnce(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRun))
	if run := w.good(t); run.Reason != model.ReasonAsked || run.Target != verA {
		t.Errorf("it ran %s: %s", run.Target, run.Reason)
	}
	same(t, "the answer", w.etcd.status(t).Answer, &model.Answer{ID: askedFor(model.RequestRun).ID})
	w.idle(t)
	same(t, "what was asked of etcd when all was done", w.etcd.calls, []string{"desire"})
}

// A failed run must be answered too: the operator must not wait forever.
func TestFailedRequestedRunIsAnswered(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRun))
	w.puppet.result = func(model.Job) (model.Result, error) {
		return model.Result{Kind: model.Between, Outcome: model.Failed, Problem: model.Problem{Code: model.ResourcesFailed, Number: 100, Text: model.Prose(strings.Repeat("File[/etc/motd] failed; ", 100))}}, nil
	}
	w.tick(t)
	a := w.etcd.status(t).Answer
	if a == nil || a.ID != askedFor(model.RequestRun).ID || !strings.Contains(a.Sentence(), "File[/etc/motd] failed") || len(a.Problem.Text) > model.MaxAnswer {
		t.Errorf("it answers %+v", a)
	}
	w.idle(t)
}

// A node that cannot execute a request must answer with the cause immediately: a hold may last for weeks.
func TestImpossibleRequestIsAnswered(t *testing.T) {
	for _, c := range []struct {
		say  string
		do   model.RequestKind
		when func(*world)
		want string
	}{
		{"a stop hold", model.RequestRun, func(w *world) { w.etcd.operator(t, func(d *model.Desired) { d.Holds = []model.Hold{stop} }) }, "a hold stops Puppet: stop on roles/web by bob"},
		{"disabled on the machine", model.RequestRun, func(w *world) { must(t, w.disk.Disable("kernel debugging")) }, "runs are disabled on the machine: kernel debugging"},
		{"to retire, disabled on the machine", model.RequestRetire, func(w *world) { must(t, w.disk.Disable("kernel debugging")) }, "runs are disabled on the machine: kernel debugging"},
		{"Puppet is at work", model.RequestRun, func(w *world) { w.puppet.blocked = &model.Blocked{Code: model.PuppetBusy, Path: "lock", Pid: 7} }, "another Puppet is running"},
		{"nothing to run", model.RequestRun, func(w *world) {
			must(t, w.disk.Save(model.State{}))
			w.etcd.operator(t, func(d *model.Desired) { d.Default = model.Target{} })
		}, "no release is promoted"},
		{"a request of a later version", "dance", func(*world) {}, `this agent does not know the request "dance"`},
	} {
		t.Run(c.say, func(t *testing.T) {
			w := fleetOn(t, verA)
			c.when(w)
			w.request(t, askedFor(c.do))
			w.idle(t, Options{Noop: c.do != "dance"})
			if s := w.etcd.status(t); c.do != "dance" && s.Answer != nil {
				t.Errorf("who only looked answered %+v", s.Answer)
			}
			w.idle(t)
			if a := w.etcd.status(t).Answer; a == nil || !strings.Contains(a.Sentence(), c.want) {
				t.Errorf("it answers %+v", a)
			}
			if len(w.machine.retired) > 0 {
				t.Error("and it ran its hooks")
			}
			w.idle(t)
			same(t, "what was asked of etcd afterwards", w.etcd.calls, []string{"desire"})
		})
	}
}

// A node that was disabled when its retirement was requested, and never drained, must be enforced again after it is
// enabled.
func TestDisabledNodeDeclinesRetirement(t *testing.T) {
	w := fleetOn(t, verA)
	must(t, w.disk.Disable("kernel debugging"))
	w.request(t, askedFor(model.RequestRetire))
	w.idle(t)
	if a := w.etcd.status(t).Answer; a == nil || a.ID != askedFor(model.RequestRetire).ID || w.state(t).Retire != "" {
		t.Fatalf("it answers %+v and retires by %q", a, w.state(t).Retire)
	}
	must(t, w.disk.Enable())
	w.promote(t, verB)
	if run := w.good(t); run.Target != verB || len(w.machine.retired) != 0 {
		t.Errorf("it ran %s, after hooks %+v", run.Target, w.machine.retired)
	}
	// After a new request it drains like any other node.
	again := askedFor(model.RequestRetire)
	again.ID = "ffff"
	w.request(t, again)
	w.idle(t)
	same(t, "the answer", w.etcd.status(t).Answer, &model.Answer{ID: "ffff"})
	if len(w.machine.retired) != 1 {
		t.Errorf("its hooks ran %d times", len(w.machine.retired))
	}
}

// Operators can write the host list. A request to retire that only they wrote must not end the service of a fleet.
func TestForgedRetirementIsRefused(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRetire))
	w.etcd.forge(t)
	w.etcd.operator(t, func(d *model.Desired) { d.Default = verB })
	if run := w.good(t); run.Target != verB || len(w.machine.retired) > 0 || w.state(t).Retire != "" {
		t.Errorf("it ran %s, after hooks %+v, and retires by %q", run.Target, w.machine.retired, w.state(t).Retire)
	}
	same(t, "the calls", w.etcd.calls, []string{"desire", "confirmation", "admit", "desire", "report"})
	s := w.etcd.status(t)
	same(t, "the answer", s.Answer, &model.Answer{ID: askedFor(model.RequestRetire).ID, Problem: model.Problem{Code: model.NotConfirmed}})
	if v := model.Look(&s, w.etcd.load().Desired, w.now); v.State != model.Converged {
		t.Errorf("operators see %s: %s", v.State, v.Sentence())
	}
	w.idle(t)
	same(t, "the calls once it has answered", w.etcd.calls, []string{"desire"})
}

// The confirmation of one machine or of one request must not serve for another.
func TestConfirmationIsOfOneRequestAndMachine(t *testing.T) {
	r := model.Request{ID: "1", Do: model.RequestRetire}
	for _, c := range []struct {
		c       model.Confirmation
		machine string
		want    bool
	}{
		{model.Confirmation{ID: "1", MachineID: "m1"}, "m1", true}, {model.Confirmation{ID: "1", MachineID: "m1"}, "m2", false}, {model.Confirmation{ID: "2", MachineID: "m1"}, "m1", false},
		{model.Confirmation{ID: "1", MachineID: ""}, "m1", true}, {model.Confirmation{ID: "1", MachineID: "m1"}, "", true}, {model.Confirmation{}, "m1", false},
	} {
		if got := c.c.Confirms(r, c.machine); got != c.want {
			t.Errorf("%+v of %q: %t", c.c, c.machine, got)
		}
	}
}

// Without an answer about the confirmation, a node must neither retire nor answer that it refuses: the request may be
// an administrator's.
func TestRetirementWaitsForItsConfirmation(t *testing.T) {
	for say, fault := range map[string]error{"etcd is away": model.ErrUnreachable, "etcd refuses": errors.New("permission denied")} {
		t.Run(say, func(t *testing.T) {
			w := fleetOn(t, verA)
			w.request(t, askedFor(model.RequestRetire))
			w.etcd.onConfirmation = func() error { return fault }
			w.idle(t)
			if a := w.state(t).Answer; a != nil || len(w.machine.retired) > 0 || w.state(t).Retire != "" {
				t.Fatalf("it answers %+v, after hooks %+v", a, w.machine.retired)
			}
			w.etcd.reconnect()
			w.idle(t)
			same(t, "the answer", w.etcd.status(t).Answer, &model.Answer{ID: askedFor(model.RequestRetire).ID})
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// If a drained node runs Puppet again, its service comes back while its machine is deleted.
func TestRetiredNodeRunsNothing(t *testing.T) {
	w := fleetOn(t, verA)
	w.etcd.operator(t, func(d *model.Desired) {
		d.Default, d.Holds, d.Host.Request = verB, []model.Hold{stop}, askedFor(model.RequestRetire)
	})
	w.machine.during = func() error {
		s := w.etcd.status(t)
		if s.Phase != model.Running || s.Action != model.Retire || s.Answer != nil {
			t.Errorf("while the hooks run etcd says %+v", s)
		}
		if w.state(t).Retire == "" {
			t.Error("an agent that is killed now would run Puppet again")
		}
		if w.content.held != 1 {
			t.Error("the release could be collected from under its hooks")
		}
		return nil
	}
	r := w.idle(t)
	if r.Err != nil || r.Note == "" || r.Decision.Action != model.Retire {
		t.Errorf("%+v", r)
	}
	if len(w.machine.retired) != 1 || w.machine.retired[0].Target != verA || w.machine.retired[0].Tree != w.content.tree(verA.Tree) || w.machine.retired[0].Node != "web1" {
		t.Fatalf("its hooks ran as %+v", w.machine.retired)
	}
	s := w.etcd.status(t)
	same(t, "the answer", s.Answer, &model.Answer{ID: askedFor(model.RequestRetire).ID})
	if s.Phase != model.Idle || s.Action != model.Nothing || s.Reason != model.ReasonRetired {
		t.Errorf("it says of itself %+v", s)
	}

	away := func() { w.etcd.disconnect() }
	for say, when := range map[string]func(){
		"nothing changed": func() {}, "etcd is away": away, "it is off the list": func() { w.etcd.reconnect(); w.etcd.operator(t, func(d *model.Desired) { d.Host = nil }) },
	} {
		when()
		w.now = w.now.Add(time.Hour)
		w.idle(t, Options{Force: true})
		if w.etcd.reconnect(); len(w.machine.retired) != 1 {
			t.Errorf("%s: its hooks ran again", say)
		}
	}
}

// After a cancelled retirement, the node must work again and restore the changes of the hooks.
func TestCancelledRetirementIsDeleted(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRetire))
	w.idle(t)
	w.request(t, nil)
	if run := w.good(t); run.Target != verA || w.puppet.applied() != verA.Release {
		t.Errorf("it ran %s, and the machine is %q", run.Target, w.puppet.applied())
	}
	w.etcd.disconnect()
	w.now = w.now.Add(time.Hour)
	w.tick(t)
	if len(w.puppet.jobs) != 1 {
		t.Error("without etcd it remembers that it was to retire")
	}
}

// The operator decides about failed hooks: the node reports the failure once and does not retry.
func TestFailedHooksAreAnsweredOnce(t *testing.T) {
	clings := version("clings-1.0.0")
	w := fleetOn(t, clings)
	w.request(t, askedFor(model.RequestRetire))
	if r := w.idle(t); r.Err == nil || !strings.Contains(r.Err.Error(), "there is still work") {
		t.Errorf("the tick ends with %v", r.Err)
	}
	if a := w.etcd.status(t).Answer; a == nil || a.Sentence() != "retire.d/10-drain: exit status 1: there is still work" {
		t.Errorf("it answers %+v", a)
	}
	w.now = w.now.Add(time.Hour)
	w.idle(t)
	if again := askedFor(model.RequestRetire); len(w.machine.retired) == 1 {
		again.ID = "ffff"
		w.request(t, again)
		w.idle(t)
	}
	if len(w.machine.retired) != 2 || w.etcd.status(t).Answer.ID != "ffff" {
		t.Errorf("its hooks ran %d times: once, and once more when asked anew", len(w.machine.retired))
	}
}

// A node without a release has no hooks. It must answer before the deadline.
func TestNodeWithoutReleaseRetires(t *testing.T) {
	w := newWorld(t)
	w.request(t, askedFor(model.RequestRetire))
	w.idle(t)
	if a := w.etcd.status(t).Answer; a == nil || a.Failed() || len(w.machine.retired) != 0 {
		t.Errorf("it answers %+v after hooks %+v", a, w.machine.retired)
	}
}

// A request that is cancelled between the read and the run must not be executed.
func TestWithdrawnRequestIsNotExecuted(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRetire))
	w.etcd.onAdmit = func() error {
		w.etcd.onAdmit = nil
		w.request(t, nil)
		return nil
	}
	w.idle(t)
	w.now = w.now.Add(time.Hour)
	w.good(t)
	if len(w.machine.retired) != 0 || w.state(t).Answer != nil {
		t.Error("its hooks ran without a request")
	}
}

// Without etcd, a retirement must not start. An answer that etcd cannot take must be kept.
func TestRetirementWithoutEtcd(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRetire))
	w.etcd.onAdmit = func() error { w.etcd.disconnect(); return w.etcd.onReport() }
	w.idle(t)
	if len(w.machine.retired) != 0 || w.state(t).Retire != "" {
		t.Error("it retired without leave")
	}
	w.etcd.reconnect()
	w.machine.during = func() error { w.etcd.disconnect(); return nil }
	w.idle(t)
	w.etcd.reconnect()
	w.idle(t)
	if a := w.etcd.status(t).Answer; len(w.machine.retired) != 1 || a == nil || a.Failed() {
		t.Errorf("its hooks ran %d times and it answers %+v", len(w.machine.retired), a)
	}
}

// A machine that shuts down during its hooks must continue them after the boot.
func TestStoppedHooksAreNotAnswered(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRetire))
	ctx, cancel := context.WithCancel(t.Context())
	w.machine.during = func() error { cancel(); return nil }
	if r := w.agent.Tick(ctx, Options{}); r.Err == nil {
		t.Error("the tick says that all is well")
	}
	if a := w.state(t).Answer; a != nil {
		t.Fatalf("it answers %+v", a)
	}
	w.machine.during = nil
	w.etcd.disconnect()
	w.now = w.now.Add(time.Hour)
	w.idle(t) // waits for etcd
	w.etcd.reconnect()
	w.idle(t)
	if a := w.etcd.status(t).Answer; a == nil || a.Failed() || len(w.machine.retired) != 2 {
		t.Errorf("it answers %+v after %d times", a, len(w.machine.retired))
	}
}

// A missing release, on disk and on all sources, must be answered without a wait.
func TestMissingTreeIsAnswered(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRetire))
	w.content.onStage = func(model.Target) error { return &DamagedError{name: "tree", err: context.DeadlineExceeded} }
	w.tick(t)
	if a := w.etcd.status(t).Answer; a == nil || !strings.Contains(a.Sentence(), "cannot use 1.0.0") {
		t.Errorf("it answers %+v", a)
	}
}

// An agent on probation must not retire a node: hooks may take longer than its limit.
func TestProbationDoesNotRetire(t *testing.T) {
	w := fleetOn(t, verA)
	w.request(t, askedFor(model.RequestRetire))
	w.idle(t, Options{Keep: true})
	if len(w.machine.retired) != 0 || w.state(t).Answer != nil {
		t.Error("its hooks ran")
	}
	w.idle(t)
	if len(w.machine.retired) != 1 {
		t.Error("its hooks never ran")
	}
}
