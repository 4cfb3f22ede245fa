package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

// order writes a preview order into etcd.
func (w *world) order(t testing.TB, id string, target model.Target) {
	t.Helper()
	w.etcd.operator(t, func(d *model.Desired) {
		d.Preview = &model.PreviewOrder{ID: id, Target: model.Target{Release: target.Release, Tree: target.Tree}, Limit: time.Minute}
	})
}

// answer returns the node's answer in etcd; a zero one if there is none.
func (w *world) answer(t testing.TB) (p model.Preview) {
	t.Helper()
	b := w.etcd.load().Preview
	if b == nil {
		return p
	}
	p, err := model.DecodePreview(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A preview that replaced a run, or that changed the node's state, would make operators afraid of previews.
func TestPreviewComesInAddition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote(t, verA)
	w.good(t)
	w.now = w.now.Add(time.Hour) // enforcement is due
	w.order(t, "1", verB)
	r := w.tick(t)
	if r.Err != nil || r.Run == nil || r.Run.Target != verA || len(w.puppet.jobs) != 2 {
		t.Fatalf("run %+v, %d jobs: %v", r.Run, len(w.puppet.jobs), r.Err)
	}
	if j := w.puppet.jobs[1]; !j.Noop || !j.Preview || j.Deadline != time.Minute || j.Target != (model.Target{Release: verB.Release, Tree: verB.Tree, Data: verA.Data, DataDigest: verA.DataDigest}) {
		t.Errorf("the preview ran as %+v", j)
	}
	if a := w.answer(t); a.Order != "1" || a.Cause != nil || a.Problem != (model.Problem{}) || a.Counts.OutOfSync != 1 {
		t.Errorf("the answer is %+v", a)
	}
	w.stands(t, verA, verA)

	// Afterwards: one run of one order, an unchanged status, and no answer without an order.
	status, state := w.etcd.status(t), w.state(t)
	w.order(t, "2", verB)
	if r := w.tick(t); r.Run != nil || len(w.puppet.jobs) != 1 || w.answer(t).Order != "2" {
		t.Errorf("second order: run %+v, %d jobs, answer %+v", r.Run, len(w.puppet.jobs), w.answer(t))
	}
	w.idle(t)
	if now := w.etcd.status(t); !reflect.DeepEqual(now, status) {
		t.Errorf("status %+v, before the preview %+v", now, status)
	}
	w.etcd.operator(t, func(d *model.Desired) { d.Preview = nil })
	w.idle(t)
	if a := w.etcd.load().Preview; a != nil {
		t.Error("the answer stays without its order")
	}
	now := w.state(t)
	state.Preview = nil
	same(t, "state", now, state)
	w.idle(t)
	same(t, "calls of an idle tick", w.etcd.calls, []string{"desire"})
}

// A node that may not run Puppet must say why, and a refused release must never run.
func TestPreviewIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, w *world)
		want    model.Reason
		problem model.ProblemCode
		silent  bool
	}{
		"stopped": {func(t *testing.T, w *world) {
			w.etcd.operator(t, func(d *model.Desired) { d.Holds = []model.Hold{{Mode: model.Stop}} })
		}, model.ReasonStopped, "", false},
		"disabled":        {func(t *testing.T, w *world) { _ = w.disk.Disable("disk swap") }, model.ReasonDisabled, "", false},
		"puppet disabled": {func(_ *testing.T, w *world) { w.puppet.blocked = &model.Blocked{Code: model.PuppetDisabled} }, model.ReasonPuppetBlocked, "", false},
		"refused":         {func(t *testing.T, w *world) { w.order(t, "1", refusedB) }, model.ReasonRefused, "", false},
		"not staged": {func(_ *testing.T, w *world) {
			w.content.onStage = func(model.Target) error { return errors.New("no space") }
		}, "", model.StageFailed, false},
		"not started": {func(_ *testing.T, w *world) {
			w.puppet.result = func(model.Job) (model.Result, error) { return model.Result{}, errors.New("no ruby") }
		}, "", model.PuppetNotStarted, false},
		"another machine": {func(t *testing.T, w *world) {
			w.etcd.operator(t, func(d *model.Desired) { d.Preview.Machine = strings.Repeat("6", 32) })
		}, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.promote(t, verA)
			w.good(t)
			w.order(t, "1", verB)
			c.prepare(t, w)
			if r := w.tick(t); r.Err != nil {
				t.Fatal(r.Err)
			}
			a := w.answer(t)
			if c.silent != (a.Order == "") || (a.Cause == nil) != (c.want == "") || a.Cause != nil && a.Cause.Reason != c.want || a.Problem.Code != c.problem {
				t.Errorf("the answer is %+v", a)
			}
			if c.problem == "" && len(w.puppet.jobs) > 0 {
				t.Error("Puppet ran")
			}
		})
	}
	// A frozen node and a closed gate change nothing for a preview.
	w := newWorld(t)
	w.promote(t, verA)
	w.good(t)
	w.order(t, "1", verB)
	w.etcd.operator(t, func(d *model.Desired) { d.Holds, d.Gate.State = []model.Hold{{Mode: model.Freeze}}, model.GatePaused })
	if w.tick(t); len(w.puppet.jobs) != 1 || w.answer(t).Cause != nil {
		t.Errorf("a frozen node answers %+v", w.answer(t))
	}
}

// An order that ends the agent, or whose answer never arrives, must not run for ever.
func TestPreviewGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote(t, verA)
	w.good(t)
	w.order(t, "1", verB)
	w.etcd.onPreview = func() error { return fmt.Errorf("no route: %w", model.ErrUnreachable) }
	runs := 0
	for range 5 {
		w.tick(t)
		runs += len(w.puppet.jobs)
	}
	w.etcd.onPreview = nil
	w.tick(t)
	if a := w.answer(t); runs != maxPreviewTries || len(w.puppet.jobs) != 0 || a.Problem.Code != model.PreviewInterrupted {
		t.Errorf("%d runs, and the answer %+v", runs, a)
	}
	w.tick(t)
	if w.etcd.count("preview") != 0 {
		t.Error("it answers again")
	}

	// A stopped agent repeats the preview.
	w.order(t, "2", verB)
	ctx, stop := context.WithCancel(t.Context())
	w.puppet.during = func(model.Job) { stop() }
	if r := w.agent.Tick(ctx, Options{}); r.Err != nil || w.answer(t).Order == "2" {
		t.Fatalf("stopped: %v, %+v", r.Err, w.answer(t))
	}
	w.puppet.during = nil
	if w.tick(t); w.answer(t).Order != "2" || w.answer(t).Problem != (model.Problem{}) {
		t.Errorf("after the stop: %+v", w.answer(t))
	}
}

// A withdrawn order must leave no answer: nobody would delete it.
func TestPreviewOfAWithdrawnOrderLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.promote(t, verA)
	w.good(t)
	w.order(t, "1", verB)
	w.puppet.during = func(model.Job) { w.etcd.operator(t, func(d *model.Desired) { d.Preview = nil }) }
	w.tick(t)
	w.puppet.during = nil
	if b := w.etcd.load().Preview; b != nil {
		t.Errorf("an answer of %d bytes", len(b))
	}
	w.idle(t)
	if w.state(t).Preview != nil {
		t.Error("the node remembers the order")
	}
}
