package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

// turnOf gives the node an order of the job in progress.
func turnOf(d *model.Desired, kind model.AssignmentKind, id string) {
	inJob(d, kind, id)
	d.Gate.Epoch = 4
}

// An ordered noop run must be answered once, and must count as nothing: neither as an enforcement nor as an attempt.
func TestOrderedNoopNeverCommits(t *testing.T) {
	for name, order := range map[string]func(*model.Desired){
		"a turn":                 func(d *model.Desired) { turnOf(d, model.AssignNoop, "j4.1") },
		"a turn on a new target": func(d *model.Desired) { turnOf(d, model.AssignNoop, "j4.1"); d.Default = verB },
		"a request": func(d *model.Desired) {
			d.Host.Request = askedFor(model.RequestNoop)
		},
	} {
		for _, result := range []model.Result{
			{Kind: model.Untouched, Outcome: model.Unchanged, Noop: true},
			{Kind: model.Untouched, Outcome: model.Failed, Noop: true, Problem: model.Problem{Code: model.NoopFailed, Text: "no such unit"}},
		} {
			t.Run(name+" "+string(result.Outcome), func(t *testing.T) {
				w := fleetOn(t, verA)
				w.etcd.operator(t, order)
				before := w.state(t)
				before.RanAt = before.RanAt.UTC()
				w.puppet.result = func(j model.Job) (model.Result, error) {
					if s := w.etcd.status(t); !j.Noop || s.Phase != model.Running {
						t.Errorf("Puppet runs with noop %t while the status is %s", j.Noop, s.Phase)
					}
					if last, err := w.disk.LoadReported(); err != nil || last.Fingerprint != "" {
						t.Errorf("after a crash, the next tick would not report: %+v, %v", last, err)
					}
					return result, nil
				}
				r := w.tick(t)
				if r.Err != nil || r.Run == nil || !r.Run.Noop || w.etcd.count("admit") != 1 {
					t.Fatalf("%+v: %v", r.Run, r.Err)
				}
				after := w.state(t)
				answer := after.Ran
				if strings.HasPrefix(name, "a request") {
					answer = after.Answer
				}
				if answer == nil || answer.Failed() != (result.Outcome == model.Failed) {
					t.Errorf("it answers %+v", answer)
				}
				after.Ran, after.Answer, after.Assignment, after.Sequence, after.Epoch = before.Ran, before.Answer, before.Assignment, before.Sequence, before.Epoch
				after.RanAt = after.RanAt.UTC()
				same(t, "the state", after, before)
				w.stands(t, verA, verA)
				s := w.etcd.status(t)
				if s.Phase != model.Idle || s.LastRun == r.Run.ID || !s.RanAt.Equal(before.RanAt) || s.Outcome != before.Outcome || s.Attempt != nil {
					t.Errorf("it says of itself %+v", s)
				}
				if got, _, err := model.DecodeRun(w.etcd.load().Runs[r.Run.ID]); err != nil || !got.Noop {
					t.Errorf("its record: %+v: %v", got, err)
				}
				w.puppet.result = nil
				if w.etcd.operator(t, func(d *model.Desired) { d.Default = verA }); w.tick(t).Run != nil {
					t.Error("it runs a second time")
				}
				w.etcd.operator(t, func(d *model.Desired) { d.Job, d.Host.Request = nil, nil })
				w.now = w.now.Add(model.DefaultSettings().EnforceInterval)
				if run := w.good(t); run.Noop || run.Reason != model.ReasonDue {
					t.Errorf("enforcement is due, and it runs %+v", run)
				}
			})
		}
	}
}

// A release that cannot be fetched must fail the order at once: else a job would wait for its deadline.
func TestOrderedNoopThatCannotBeStagedIsAnswered(t *testing.T) {
	w := fleetOn(t, verA)
	w.etcd.operator(t, func(d *model.Desired) { turnOf(d, model.AssignNoop, "j4.1") })
	before := w.state(t)
	w.content.onStage = func(model.Target) error { return context.DeadlineExceeded }
	w.idle(t)
	if s := w.etcd.status(t); s.Ran == nil || s.Ran.ID != "j4.1" || s.Ran.Problem.Code != model.StageFailed || s.Outcome != before.Outcome || s.Attempt != nil {
		t.Errorf("it says of itself %+v", s)
	}
}

// Whoever works at the machine keeps what the order says: neither a look nor a part of a run answers a turn.
func TestRunsAtTheMachineAnswerNoTurn(t *testing.T) {
	for _, kind := range []model.AssignmentKind{model.AssignRun, model.AssignNoop} {
		for _, opts := range []Options{{Noop: true}, {Part: model.Part{Tags: []string{"ntp"}}}} {
			w := fleetOn(t, verA)
			w.etcd.operator(t, func(d *model.Desired) { turnOf(d, kind, "j4.1") })
			r := w.tick(t, opts)
			if s := w.state(t); r.Run == nil || s.Ran != nil || w.puppet.jobs[0].Noop != opts.Noop {
				t.Errorf("%s with %+v: %+v, it answers %+v", kind, opts, r.Run, s.Ran)
			}
		}
	}
}

// The message of the operator who disabled a node must survive the waits, the turn and the end of a job.
func TestDisabledNodeKeepsItsMessageInAJob(t *testing.T) {
	w := fleetOn(t, verA)
	if err := w.disk.Disable("kernel debugging"); err != nil {
		t.Fatal(err)
	}
	for name, order := range map[string]func(*model.Desired){
		"wait": func(d *model.Desired) { turnOf(d, model.AssignWait, "j4.wait") },
		"turn": func(d *model.Desired) { turnOf(d, model.AssignRun, "j4.1") },
		"end":  func(d *model.Desired) { d.Gate.Rollout, d.Job, d.Assigned = "", nil, nil },
	} {
		w.etcd.operator(t, order)
		w.now = w.now.Add(2 * time.Hour)
		w.idle(t)
		s := w.etcd.status(t)
		if text, err := w.disk.Disabled(); err != nil || text != "kernel debugging" || s.Disabled != text || s.Reason != model.ReasonDisabled || s.Ran != nil {
			t.Errorf("%s: the machine has %q, the status is %+v: %v", name, text, s, err)
		}
	}
}

// The turn of a job must be answered by that very run, also after its agent was stopped in the middle and repeated it.
func TestTurnIsAnsweredByItsRun(t *testing.T) {
	w := fleetOn(t, verA)
	w.etcd.operator(t, func(d *model.Desired) { turnOf(d, model.AssignRun, "j4.1") })
	run := w.good(t)
	if s := w.etcd.status(t); s.Ran == nil || s.Ran.ID != "j4.1" || s.LastRun != run.ID || s.Assignment != "j4.1" {
		t.Errorf("it says of itself %+v", s)
	}
	w.now = w.now.Add(2 * time.Hour)
	w.idle(t)
	w.etcd.operator(t, func(d *model.Desired) { turnOf(d, model.AssignRun, "j4.2") })
	w.puppet.result = func(model.Job) (model.Result, error) {
		return model.Result{Kind: model.Between, Outcome: model.Failed, Problem: model.Problem{Code: model.RestartsFailed, Number: 1}}, nil
	}
	w.tick(t)
	if s := w.etcd.status(t); s.Ran == nil || s.Ran.ID != "j4.2" || s.Ran.Problem.Code != model.RestartsFailed {
		t.Errorf("it says of itself %+v", s)
	}
}
