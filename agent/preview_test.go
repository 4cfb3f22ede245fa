package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// order writes a preview order into etcd.
func (w *world) order(t testing.TB, id string, target Target) {
	t.Helper()
	w.etcd.operator(t, func(d *Desired) {
		d.Preview = &PreviewOrder{ID: id, Target: Target{Release: target.Release, Tree: target.Tree}, Limit: time.Minute}
	})
}

// answer returns the node's answer in etcd; a zero one if there is none.
func (w *world) answer(t testing.TB) (p Preview) {
	t.Helper()
	b := w.etcd.load().Preview
	if b == nil {
		return p
	}
	p, err := DecodePreview(b)
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
	if j := w.puppet.jobs[1]; !j.Noop || !j.Preview || j.Deadline != time.Minute || j.Target != (Target{verB.Release, verB.Tree, verA.Data, verA.DataDigest}) {
		t.Errorf("the preview ran as %+v", j)
	}
	if a := w.answer(t); a.Order != "1" || a.Cause != nil || a.Problem != (Problem{}) || a.Counts.OutOfSync != 1 {
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
	w.etcd.operator(t, func(d *Desired) { d.Preview = nil })
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
		want    Reason
		problem ProblemCode
		silent  bool
	}{
		"stopped":         {func(t *testing.T, w *world) { w.etcd.operator(t, func(d *Desired) { d.Holds = []Hold{{Mode: Stop}} }) }, ReasonStopped, "", false},
		"disabled":        {func(t *testing.T, w *world) { _ = w.disk.Disable("disk swap") }, ReasonDisabled, "", false},
		"puppet disabled": {func(_ *testing.T, w *world) { w.puppet.blocked = &Blocked{Code: PuppetDisabled} }, ReasonPuppetBlocked, "", false},
		"refused":         {func(t *testing.T, w *world) { w.order(t, "1", refusedB) }, ReasonRefused, "", false},
		"not staged":      {func(_ *testing.T, w *world) { w.content.onStage = func(Target) error { return errors.New("no space") } }, "", StageFailed, false},
		"not started": {func(_ *testing.T, w *world) {
			w.puppet.result = func(Job) (Result, error) { return Result{}, errors.New("no ruby") }
		}, "", PuppetNotStarted, false},
		"another machine": {func(t *testing.T, w *world) {
			w.etcd.operator(t, func(d *Desired) { d.Preview.Machine = strings.Repeat("6", 32) })
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
	w.etcd.operator(t, func(d *Desired) { d.Holds, d.Gate.State = []Hold{{Mode: Freeze}}, GatePaused })
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
	w.etcd.onPreview = func() error { return fmt.Errorf("no route: %w", ErrUnreachable) }
	runs := 0
	for range 5 {
		w.tick(t)
		runs += len(w.puppet.jobs)
	}
	w.etcd.onPreview = nil
	w.tick(t)
	if a := w.answer(t); runs != maxPreviewTries || len(w.puppet.jobs) != 0 || a.Problem.Code != PreviewInterrupted {
		t.Errorf("%d runs, and the answer %+v", runs, a)
	}
	w.tick(t)
	if w.etcd.count("preview") != 0 {
		t.Error("it answers again")
	}

	// A stopped agent repeats the preview.
	w.order(t, "2", verB)
	ctx, stop := context.WithCancel(t.Context())
	w.puppet.during = func(Job) { stop() }
	if r := w.agent.Tick(ctx, Options{}); r.Err != nil || w.answer(t).Order == "2" {
		t.Fatalf("stopped: %v, %+v", r.Err, w.answer(t))
	}
	w.puppet.during = nil
	if w.tick(t); w.answer(t).Order != "2" || w.answer(t).Problem != (Problem{}) {
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
	w.puppet.during = func(Job) { w.etcd.operator(t, func(d *Desired) { d.Preview = nil }) }
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

// One node's answer must not fill etcd, and a hostile one must not fill the memory of an operator.
func TestPreviewIsBounded(t *testing.T) {
	t.Parallel()
	random := func(i, n int) string { return strings.Repeat(digest(fmt.Append(nil, i)), n/64+1)[:n] }
	p := Preview{Order: "1", Node: "web1", Left: -5}
	for i := range 3000 {
		p.Changes = append(p.Changes, ResourceEvent{
			Resource: "File[/" + random(i, 100) + "]", Status: "noop", Diff: random(-i, 1<<14), Messages: []string{random(i, 1000)},
			Properties: []PropertyChange{{"content", random(i, 2000), "\x1b[2J\xff"}},
		})
	}
	b, err := encodePreview(p)
	if err != nil || len(b) > maxPreviewBytes {
		t.Fatalf("%d bytes: %v", len(b), err)
	}
	back, err := DecodePreview(b)
	if err != nil || len(back.Changes) < 50 || back.Left+len(back.Changes) != 3000 || !back.Changes[0].Cut || len(back.Changes[0].Diff) > maxDiff {
		t.Fatalf("%d changes, %d left: %v", len(back.Changes), back.Left, err)
	}
	hostile := Preview{Changes: make([]ResourceEvent, 200_000)}
	packed, err := pack(storedPreview{previewFormat, hostile})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodePreview(packed); err == nil {
		t.Error("an answer that unpacks to more than 1 MiB is accepted")
	}
	hostile.Changes = make([]ResourceEvent, 20_000)
	packed, _ = pack(storedPreview{previewFormat, hostile})
	if got, err := DecodePreview(packed); err != nil || len(got.Changes) != maxChanges {
		t.Errorf("%d changes: %v", len(got.Changes), err)
	}
	packed, _ = pack(storedPreview{previewFormat + 1, hostile})
	if _, err := DecodePreview(packed); err == nil || !strings.Contains(err.Error(), "upgrade pulley") {
		t.Errorf("a newer format: %v", err)
	}
}

func FuzzDecodePreview(f *testing.F) {
	b, err := encodePreview(Preview{Order: "1", Changes: []ResourceEvent{{Resource: "File[/a]", Diff: "--- a"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodePreview(b)
		if err == nil && (len(p.Changes) > maxChanges || p.Left < 0) {
			t.Errorf("%d changes, %d left", len(p.Changes), p.Left)
		}
	})
}
