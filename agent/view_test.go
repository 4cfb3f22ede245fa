package agent

import (
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/model/refusal"
)

// The state in `pulley status` must direct the operator to the right machine.
func TestLook(t *testing.T) {
	tried := func(target model.Target, started, finished int) *model.Attempt {
		return &model.Attempt{Target: target, Started: started, Finished: finished, Open: started > finished, Last: start, Problem: model.Problem{Code: model.HookFailed, Text: "no space left"}}
	}
	cases := []struct {
		say  string
		when func(*model.Status, *model.Desired)
		want model.NodeState
		why  string // a substring
	}{
		{"on its target and heard of a minute ago", func(*model.Status, *model.Desired) {}, model.Converged, "on its target"},
		{"something newer is wanted", func(_ *model.Status, d *model.Desired) { d.Default = verB }, model.Pending, "is on 1.0.0 with data 7 and has not taken 2.0.0"},
		{"an assignment of this epoch is what is wanted", func(_ *model.Status, d *model.Desired) { d.Assigned = &model.Assignment{Target: verC, Epoch: 4} }, model.Pending, "3.0.0"},
		{"nothing was promoted yet", func(s *model.Status, d *model.Desired) {
			s.LastGood, s.Enforcing, d.Default = model.Target{}, model.Target{}, model.Target{}
		}, model.Pending, "no release is promoted"},
		{"it stands between, and has no attempt on record", func(s *model.Status, d *model.Desired) { s.Enforcing, d.Default = verB, verB }, model.Pending, "has not taken"},
		{"Puppet is at work", func(s *model.Status, d *model.Desired) {
			s.Phase, s.Reason, d.Default = model.Running, model.ReasonNew, verB
		}, model.InRun, "the target is new"},
		{"Puppet has been at work for half an hour", func(s *model.Status, _ *model.Desired) { s.Phase, s.SeenAt = model.Running, start.Add(-30*time.Minute) }, model.InRun, ""},
		{"Puppet has been at work for longer than any deadline", func(s *model.Status, _ *model.Desired) { s.Phase, s.SeenAt = model.Running, start.Add(-2*time.Hour) }, model.Silent, "last reported at 2026-03-04T03:06:07Z"},
		{"an attempt at its target failed", func(s *model.Status, d *model.Desired) { d.Default, s.Attempt = verB, tried(verB, 1, 1) }, model.FailedState, "no space left"},
		{"an attempt at what it enforces failed, and something else is wanted", func(s *model.Status, d *model.Desired) {
			s.Enforcing, d.Default, s.Attempt = verB, verC, tried(verB, 2, 2)
		}, model.FailedState, "attempt 2 at 2.0.0"},
		{"its last run failed, and a new assignment began its attempts afresh", func(s *model.Status, _ *model.Desired) {
			s.Outcome, s.Attempt, s.Reason = model.Failed, tried(verA, 0, 0), model.ReasonRetry
		}, model.FailedState, "the last attempt failed and its retry is due"},
		{"its last run failed and changed nothing, and its target is again what it has", func(s *model.Status, _ *model.Desired) { s.Outcome = model.Failed }, model.Converged, ""},
		{"an attempt failed at a former target", func(s *model.Status, _ *model.Desired) { s.Attempt = tried(verB, 9, 9) }, model.Converged, ""},
		{"its target is refused, and what it has is enforced", func(s *model.Status, d *model.Desired) {
			d.Default, s.Refusal = verB, &model.Refusal{Target: verB, Error: *refusedFor("it is not signed"), At: start}
		}, model.FailedState, "target is refused: the record cannot be read: it is not signed"},
		{"its target is refused after attempts at what it has", func(s *model.Status, d *model.Desired) {
			s.Enforcing, d.Default, s.Attempt = verB, verC, tried(verB, 9, 9)
			s.Refusal = &model.Refusal{Target: verC, Error: *refusedFor("it is not signed"), At: start}
		}, model.FailedState, "it is not signed"},
		{"a former target was refused", func(s *model.Status, _ *model.Desired) {
			s.Refusal = &model.Refusal{Target: verB, Error: *refusedFor("it is not signed"), At: start}
		}, model.Converged, ""},
		{"its first run was cut off", func(s *model.Status, d *model.Desired) { d.Default, s.Attempt = verB, tried(verB, 1, 0) }, model.Pending, ""},
		{"the statement of its target ended", func(s *model.Status, _ *model.Desired) {
			s.Reason, s.Refusal = model.ReasonStale, staleAt(verA, refusal.StatementExpired)
		}, model.FailedState, "no valid statement covers the target"},
		{"the statement ended by its own clock, which is ahead", func(s *model.Status, _ *model.Desired) {
			s.Reason, s.Refusal, s.SeenAt = model.ReasonStale, staleAt(verA, refusal.StatementExpired), start.Add(48*time.Hour)
		}, model.FailedState, "a clock is wrong; the node keeps enforcing its target: the statement of the targets of dev ended at 2026-06-15T12:00:00Z: the targets in etcd may be old; its clock is 48h"},
		{"it failed as often as it may", func(s *model.Status, d *model.Desired) { d.Default, s.Attempt = verB, tried(verB, 5, 5) }, model.Stuck, "attempt 5"},
		{"it was cut off as often as it may", func(s *model.Status, d *model.Desired) { d.Default, s.Attempt = verB, tried(verB, 5, 0) }, model.Stuck, "was interrupted"},
		{"its own limit counts, not the default", func(s *model.Status, d *model.Desired) {
			s.Settings.MaxAttempts, d.Default, s.Attempt = 2, verB, tried(verB, 2, 2)
		}, model.Stuck, ""},
		{"a status without a limit is not stuck before it tried", func(s *model.Status, _ *model.Desired) { s.Settings.MaxAttempts = 0 }, model.Converged, ""},
		{"it is held", func(_ *model.Status, d *model.Desired) { d.Holds = []model.Hold{freeze, stop} }, model.Held, "stop on roles/web by bob"},
		{"a hold is what counts for a node that failed", func(s *model.Status, d *model.Desired) {
			d.Default, s.Attempt, d.Holds = verB, tried(verB, 5, 5), []model.Hold{freeze}
		}, model.Held, "freeze"},
		{"it is asked to retire, and has not looked yet", func(_ *model.Status, d *model.Desired) {
			d.Holds, d.Host.Request = []model.Hold{stop}, askedFor(model.RequestRetire)
		}, model.Held, "retirement is requested: by ann"},
		{"its hooks run", func(s *model.Status, d *model.Desired) {
			s.Phase, s.Action, d.Host.Request = model.Running, model.Retire, askedFor(model.RequestRetire)
		}, model.Held, "retirement is requested"},
		{"its hooks failed", func(s *model.Status, d *model.Desired) {
			d.Host.Request = askedFor(model.RequestRetire)
			s.Answer, s.Reason = &model.Answer{ID: d.Host.Request.ID, Problem: model.Problem{Code: model.HookFailed, Text: "retire.d/10-drain: exit status 1"}}, model.ReasonRetired
		}, model.Held, "the node is retired and runs nothing: retire.d/10-drain"},
		{"it has retired", func(s *model.Status, d *model.Desired) {
			d.Host.Request = askedFor(model.RequestRetire)
			s.Answer, s.Reason = &model.Answer{ID: d.Host.Request.ID}, model.ReasonRetired
		}, model.Held, "the node is retired"},
		{"it has retired, and was removed from the host list", func(s *model.Status, d *model.Desired) {
			d.Host, s.Reason = nil, model.ReasonRetired
		}, model.Unregistered, "the node is retired and runs nothing"},
		{"it was disabled when it was asked to retire, and is enabled again", func(s *model.Status, d *model.Desired) {
			d.Host.Request = askedFor(model.RequestRetire)
			s.Answer = &model.Answer{ID: d.Host.Request.ID, Problem: model.Problem{Code: model.HookFailed, Text: "runs are disabled on the machine: kernel debugging"}}
		}, model.Converged, ""},
		{"it was disabled when it was asked to retire, and is held", func(s *model.Status, d *model.Desired) {
			d.Host.Request, d.Holds = askedFor(model.RequestRetire), []model.Hold{stop}
			s.Answer = &model.Answer{ID: d.Host.Request.ID, Problem: model.Problem{Code: model.HookFailed, Text: "runs are disabled on the machine: kernel debugging"}}
		}, model.Held, "stop on roles/web"},
		{"it answered what it was asked before", func(s *model.Status, d *model.Desired) {
			d.Host.Request, s.Answer = askedFor(model.RequestRetire), &model.Answer{ID: "ffff"}
		}, model.Held, "retirement is requested"},
		{"asked to retire it is silent all the same", func(s *model.Status, d *model.Desired) {
			d.Host.Request, s.SeenAt = askedFor(model.RequestRetire), start.Add(-time.Hour)
		}, model.Silent, ""},
		{"another machine of its name is asked to retire", func(s *model.Status, d *model.Desired) {
			s.Machine, d.Host.MachineID, d.Host.Request = "aaaa", "bbbb", askedFor(model.RequestRetire)
		}, model.FailedState, "this is machine aaaa"},
		{"it is asked for a run", func(_ *model.Status, d *model.Desired) { d.Host.Request = askedFor(model.RequestRun) }, model.Converged, ""},
		{"it was disabled on the machine", func(s *model.Status, _ *model.Desired) { s.Disabled = "kernel debugging" }, model.Held, "kernel debugging"},
		{"another machine has its name", func(s *model.Status, d *model.Desired) { s.Machine, d.Host.MachineID = "aaaa", "bbbb" }, model.FailedState, "this is machine aaaa"},
		{"its new machine has not reported", func(s *model.Status, d *model.Desired) {
			s.Machine, s.Outcome, s.SeenAt, d.Host.MachineID, d.Host.At = "aaaa", model.Failed, start.Add(-time.Hour), "bbbb", start.Add(-time.Minute)
		}, model.Pending, "has not reported"},
		{"its new machine is silent", func(s *model.Status, d *model.Desired) {
			s.Machine, s.SeenAt, d.Host.MachineID, d.Host.At = "aaaa", start.Add(-2*time.Hour), "bbbb", start.Add(-time.Hour)
		}, model.Silent, "2026-03-04T04:06:07Z"},
		{"its own Puppet forbids runs", func(s *model.Status, _ *model.Desired) {
			s.Cause = model.Cause{Reason: model.ReasonPuppetBlocked, Params: model.Params{Blocked: disabledPuppet}}
		}, model.Held, "agent_disabled.lock"},
		{"etcd refuses its machine", func(_ *model.Status, d *model.Desired) { d.LockedOut = &model.Lockout{First: start.Add(-time.Minute)} }, model.Silent, "since 2026-03-04T05:05:07Z, as after a restore"},
		{"it missed some heartbeats", func(s *model.Status, _ *model.Desired) { s.SeenAt = start.Add(-19 * time.Minute) }, model.Converged, ""},
		{"it missed too many", func(s *model.Status, _ *model.Desired) { s.SeenAt = start.Add(-21 * time.Minute) }, model.Silent, "2026-03-04T04:45:07Z"},
		{"a slower heartbeat is given longer", func(s *model.Status, _ *model.Desired) {
			s.Settings.Heartbeat, s.SeenAt = time.Hour, start.Add(-2*time.Hour)
		}, model.Converged, ""},
		{"silence counts before what it said last", func(s *model.Status, d *model.Desired) {
			s.SeenAt, d.Holds, s.Attempt = start.Add(-time.Hour), []model.Hold{stop}, tried(verA, 9, 9)
		}, model.Silent, ""},
		{"its clock is a year ahead", func(s *model.Status, _ *model.Desired) { s.SeenAt = start.Add(365 * 24 * time.Hour) }, model.Converged, "enforced recently; its clock is 8760h0m ahead"},
		{"its clock is ahead, and it is on no list", func(s *model.Status, d *model.Desired) { d.Host, s.SeenAt = nil, start.Add(6*time.Minute) }, model.Unregistered, "its clock is 6m ahead"},
		{"it speaks and is on no list", func(s *model.Status, d *model.Desired) { d.Host, s.SeenAt = nil, start.Add(-time.Hour) }, model.Unregistered, "not on the host list"},
	}
	seen := map[model.NodeState]bool{}
	for _, c := range cases {
		t.Run(c.say, func(t *testing.T) {
			_, d := onA()
			s := model.Status{
				Node: "web1", Phase: model.Idle, Cause: model.Cause{Reason: model.ReasonUpToDate}, Target: verA, LastGood: verA, Enforcing: verA,
				SeenAt: start.Add(-time.Minute), Settings: model.DefaultSettings(),
			}
			c.when(&s, &d)
			v := model.Look(&s, d, start)
			seen[v.State] = true
			if v.State != c.want || !strings.Contains(v.Sentence(), c.why) || v.Sentence() == "" {
				t.Errorf("it is %s: %s; want %s: …%s…", v.State, v.Sentence(), c.want, c.why)
			}
			if v.Wanted != d.Wanted() {
				t.Errorf("it wants %s", v.Wanted)
			}
		})
	}
	seen[model.Missing] = true // TestLookWithoutStatus
	for _, s := range model.NodeStates() {
		if !seen[s] {
			t.Errorf("no case is about %s", s)
		}
	}
}

// A node without any report is either new or lost.
func TestLookWithoutStatus(t *testing.T) {
	for _, c := range []struct {
		host *model.Host
		want model.NodeState
	}{
		{&model.Host{At: start.Add(-time.Minute)}, model.Pending},
		{&model.Host{At: start.Add(-time.Hour)}, model.Silent},
		{nil, model.Missing},
	} {
		v := model.Look(nil, model.Desired{Host: c.host, Default: verA}, start)
		if v.State != c.want || v.Sentence() == "" || v.Wanted != verA {
			t.Errorf("%+v: it is %s: %s", c.host, v.State, v.Sentence())
		}
	}
}
