package agent

import (
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
)

var refusedConnection = model.Problem{Code: model.PuppetServerAway, Text: "eu1: connection refused"}

// offlineFor lets the Puppet server of a target be away.
func (w *world) offlineFor(t model.Target) {
	w.puppet.away = func(job model.Job) *model.Problem {
		if job.Target != t {
			return nil
		}
		p := refusedConnection
		return &p
	}
}

// While its Puppet server is away, a node must keep its last good state, count nothing, write no records, and say so.
func TestServerAwayCountsNoAttempt(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.offlineFor(verB)
	for range 12 { // an hour of cron
		if r := w.tick(t); r.Err != nil || r.Run != nil && r.Run.Target != verA {
			t.Fatalf("%+v", r)
		}
		w.now = w.now.Add(5 * time.Minute)
	}
	w.stands(t, verA, verA)
	s := w.etcd.status(t)
	if s.Reason != model.ReasonServerAway || s.Attempt != nil || !strings.HasPrefix(s.Why().Sentence(), "no Puppet server has answered since 2026-03-04T05:0") || !strings.HasSuffix(s.Why().Sentence(), "eu1: connection refused") {
		t.Errorf("it says %q with attempt %+v", s.Why().Sentence(), s.Attempt)
	}
	if v := model.Look(&s, w.etcd.load().Desired, w.now); v.State != model.FailedState || v.Reason != model.ReasonServerAway {
		t.Errorf("an operator sees %s: %s", v.State, v.Sentence())
	}
	if n := len(w.etcd.load().Runs); n != 2 { // the first one, and one of enforcement on what needs no server
		t.Errorf("%d run records", n)
	}
	w.puppet.away = nil
	if run := w.good(t); run.Target != verB || run.Reason != model.ReasonNew {
		t.Errorf("%+v", run)
	}
	w.stands(t, verB, verB)
	if s := w.state(t); len(s.Away) > 0 || w.etcd.status(t).Reason == model.ReasonServerAway {
		t.Errorf("the record outlived the outage: %+v", s.Away)
	}
}

// A node that is in place on the release of a server that is away must not take its enforcement for failed.
func TestServerAwayEndsNoEnforcement(t *testing.T) {
	w := fleetOn(t, verA)
	w.offlineFor(verA)
	w.now = w.now.Add(31 * time.Minute)
	r := w.idle(t)
	if r.Err != nil || r.Run != nil || r.Decision.Reason != model.ReasonServerAway {
		t.Fatalf("%+v", r)
	}
	if s := w.state(t); len(s.Attempts) != 0 || s.Outcome == model.Failed || s.OpenRun != "" {
		t.Errorf("%+v", s)
	}
	// A requested run is answered with the cause.
	w.etcd.operator(t, func(d *model.Desired) {
		d.Host.Request = &model.Request{ID: "1234567890abcdef", Do: model.RequestRun, By: "ann"}
	})
	w.now = w.now.Add(5 * time.Minute)
	w.idle(t)
	if s := w.etcd.status(t); s.Answer == nil || s.Answer.Cause.Reason != model.ReasonServerAway || s.Reason != model.ReasonServerAway || s.Params.Problem == nil {
		t.Errorf("%+v", s)
	}
	w.puppet.away = nil
	w.now = w.now.Add(5 * time.Minute)
	if run := w.good(t); run.Reason != model.ReasonDue {
		t.Errorf("%+v", run)
	}
}

// A server that goes away between the check and the run counts no attempt either.
func TestServerLostBeforeCatalogCountsNoAttempt(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.puppet.result = func(model.Job) (model.Result, error) {
		return model.Result{Kind: model.Untouched, Outcome: model.Failed, ExitCode: 1, Problem: refusedConnection}, nil
	}
	if r := w.tick(t); r.Err != nil || r.Run == nil {
		t.Fatalf("%+v", r)
	}
	w.stands(t, verA, verA)
	if s := w.state(t); len(s.Attempts) != 0 || s.AwayFrom(verB) == nil || s.OpenRun != "" {
		t.Errorf("%+v", s)
	}
	w.puppet.result = nil
	w.now = w.now.Add(5 * time.Minute)
	if run := w.good(t); run.Target != verB {
		t.Errorf("%+v", run)
	}
}

// Force must end where no server answers for the wanted target, and none for the one in place.
func TestServersOfBothTargetsAway(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	w.puppet.away = func(model.Job) *model.Problem {
		p := refusedConnection
		return &p
	}
	for range 3 {
		r := w.idle(t, Options{Force: true})
		if r.Err != nil || r.Run != nil || r.Decision.Reason != model.ReasonServerAway {
			t.Fatalf("%+v", r)
		}
		w.now = w.now.Add(40 * time.Minute)
	}
	if s := w.state(t); len(s.Away) != 2 || len(s.Attempts) != 0 || !s.AwayFrom(verB).Since.Equal(s.AwayFrom(verA).Since) {
		t.Errorf("%+v", s.Away)
	}
	w.puppet.away = nil
	if run := w.good(t); run.Target != verB {
		t.Errorf("%+v", run)
	}
	w.tick(t)
	if s := w.state(t); len(s.Away) != 0 {
		t.Errorf("%+v", s.Away)
	}
}
