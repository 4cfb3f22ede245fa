package agent

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pulley/internal/release/trust/refusal"
)

// The state in `pulley status` must direct the operator to the right machine.
func TestLook(t *testing.T) {
	tried := func(target Target, started, finished int) *Attempt {
		return &Attempt{Target: target, Started: started, Finished: finished, Open: started > finished, Last: start, Problem: Problem{Code: HookFailed, Text: "no space left"}}
	}
	cases := []struct {
		say  string
		when func(*Status, *Desired)
		want NodeState
		why  string // a substring
	}{
		{"on its target and heard of a minute ago", func(*Status, *Desired) {}, Converged, "on its target"},
		{"something newer is wanted", func(_ *Status, d *Desired) { d.Default = verB }, Pending, "is on 1.0.0 with data 7 and has not taken 2.0.0"},
		{"an assignment of this epoch is what is wanted", func(_ *Status, d *Desired) { d.Assigned = &Assignment{Target: verC, Epoch: 4} }, Pending, "3.0.0"},
		{"nothing was promoted yet", func(s *Status, d *Desired) { s.LastGood, s.Enforcing, d.Default = Target{}, Target{}, Target{} }, Pending, "no release is promoted"},
		{"it stands between, and has no attempt on record", func(s *Status, d *Desired) { s.Enforcing, d.Default = verB, verB }, Pending, "has not taken"},
		{"Puppet is at work", func(s *Status, d *Desired) { s.Phase, s.Reason, d.Default = Running, ReasonNew, verB }, InRun, "the target is new"},
		{"Puppet has been at work for half an hour", func(s *Status, _ *Desired) { s.Phase, s.SeenAt = Running, start.Add(-30*time.Minute) }, InRun, ""},
		{"Puppet has been at work for longer than any deadline", func(s *Status, _ *Desired) { s.Phase, s.SeenAt = Running, start.Add(-2*time.Hour) }, Silent, "last reported at 2026-03-04T03:06:07Z"},
		{"an attempt at its target failed", func(s *Status, d *Desired) { d.Default, s.Attempt = verB, tried(verB, 1, 1) }, FailedState, "no space left"},
		{"an attempt at what it enforces failed, and something else is wanted", func(s *Status, d *Desired) { s.Enforcing, d.Default, s.Attempt = verB, verC, tried(verB, 2, 2) }, FailedState, "attempt 2 at 2.0.0"},
		{"its last run failed, and a new assignment began its attempts afresh", func(s *Status, _ *Desired) {
			s.Outcome, s.Attempt, s.Reason = Failed, tried(verA, 0, 0), ReasonRetry
		}, FailedState, "the last attempt failed and its retry is due"},
		{"its last run failed and changed nothing, and its target is again what it has", func(s *Status, _ *Desired) { s.Outcome = Failed }, Converged, ""},
		{"an attempt failed at a former target", func(s *Status, _ *Desired) { s.Attempt = tried(verB, 9, 9) }, Converged, ""},
		{"its target is refused, and what it has is enforced", func(s *Status, d *Desired) {
			d.Default, s.Refusal = verB, &Refusal{Target: verB, Error: *refusedFor("it is not signed"), At: start}
		}, FailedState, "target is refused: the record cannot be read: it is not signed"},
		{"its target is refused after attempts at what it has", func(s *Status, d *Desired) {
			s.Enforcing, d.Default, s.Attempt = verB, verC, tried(verB, 9, 9)
			s.Refusal = &Refusal{Target: verC, Error: *refusedFor("it is not signed"), At: start}
		}, FailedState, "it is not signed"},
		{"a former target was refused", func(s *Status, _ *Desired) {
			s.Refusal = &Refusal{Target: verB, Error: *refusedFor("it is not signed"), At: start}
		}, Converged, ""},
		{"its first run was cut off", func(s *Status, d *Desired) { d.Default, s.Attempt = verB, tried(verB, 1, 0) }, Pending, ""},
		{"the statement of its target ended", func(s *Status, _ *Desired) {
			s.Reason, s.Refusal = ReasonStale, staleAt(verA, refusal.StatementExpired)
		}, FailedState, "no valid statement covers the target"},
		{"the statement ended by its own clock, which is ahead", func(s *Status, _ *Desired) {
			s.Reason, s.Refusal, s.SeenAt = ReasonStale, staleAt(verA, refusal.StatementExpired), start.Add(48*time.Hour)
		}, FailedState, "a clock is wrong; the node keeps enforcing its target: the statement of the targets of dev ended at 2026-06-15T12:00:00Z: the targets in etcd may be old; its clock is 48h"},
		{"it failed as often as it may", func(s *Status, d *Desired) { d.Default, s.Attempt = verB, tried(verB, 5, 5) }, Stuck, "attempt 5"},
		{"it was cut off as often as it may", func(s *Status, d *Desired) { d.Default, s.Attempt = verB, tried(verB, 5, 0) }, Stuck, "was interrupted"},
		{"its own limit counts, not the default", func(s *Status, d *Desired) { s.Settings.MaxAttempts, d.Default, s.Attempt = 2, verB, tried(verB, 2, 2) }, Stuck, ""},
		{"a status without a limit is not stuck before it tried", func(s *Status, _ *Desired) { s.Settings.MaxAttempts = 0 }, Converged, ""},
		{"it is held", func(_ *Status, d *Desired) { d.Holds = []Hold{freeze, stop} }, Held, "stop on roles/web by bob"},
		{"a hold is what counts for a node that failed", func(s *Status, d *Desired) {
			d.Default, s.Attempt, d.Holds = verB, tried(verB, 5, 5), []Hold{freeze}
		}, Held, "freeze"},
		{"it is asked to retire, and has not looked yet", func(_ *Status, d *Desired) {
			d.Holds, d.Host.Request = []Hold{stop}, askedFor(RequestRetire)
		}, Held, "retirement is requested: by ann"},
		{"its hooks run", func(s *Status, d *Desired) {
			s.Phase, s.Action, d.Host.Request = Running, Retire, askedFor(RequestRetire)
		}, Held, "retirement is requested"},
		{"its hooks failed", func(s *Status, d *Desired) {
			d.Host.Request = askedFor(RequestRetire)
			s.Answer, s.Reason = &Answer{ID: d.Host.Request.ID, Problem: Problem{Code: HookFailed, Text: "retire.d/10-drain: exit status 1"}}, ReasonRetired
		}, Held, "the node is retired and runs nothing: retire.d/10-drain"},
		{"it has retired", func(s *Status, d *Desired) {
			d.Host.Request = askedFor(RequestRetire)
			s.Answer, s.Reason = &Answer{ID: d.Host.Request.ID}, ReasonRetired
		}, Held, "the node is retired"},
		{"it has retired, and was removed from the host list", func(s *Status, d *Desired) {
			d.Host, s.Reason = nil, ReasonRetired
		}, Unregistered, "the node is retired and runs nothing"},
		{"it was disabled when it was asked to retire, and is enabled again", func(s *Status, d *Desired) {
			d.Host.Request = askedFor(RequestRetire)
			s.Answer = &Answer{ID: d.Host.Request.ID, Problem: Problem{Code: HookFailed, Text: "runs are disabled on the machine: kernel debugging"}}
		}, Converged, ""},
		{"it was disabled when it was asked to retire, and is held", func(s *Status, d *Desired) {
			d.Host.Request, d.Holds = askedFor(RequestRetire), []Hold{stop}
			s.Answer = &Answer{ID: d.Host.Request.ID, Problem: Problem{Code: HookFailed, Text: "runs are disabled on the machine: kernel debugging"}}
		}, Held, "stop on roles/web"},
		{"it answered what it was asked before", func(s *Status, d *Desired) {
			d.Host.Request, s.Answer = askedFor(RequestRetire), &Answer{ID: "ffff"}
		}, Held, "retirement is requested"},
		{"asked to retire it is silent all the same", func(s *Status, d *Desired) {
			d.Host.Request, s.SeenAt = askedFor(RequestRetire), start.Add(-time.Hour)
		}, Silent, ""},
		{"another machine of its name is asked to retire", func(s *Status, d *Desired) {
			s.Machine, d.Host.MachineID, d.Host.Request = "aaaa", "bbbb", askedFor(RequestRetire)
		}, FailedState, "this is machine aaaa"},
		{"it is asked for a run", func(_ *Status, d *Desired) { d.Host.Request = askedFor(RequestRun) }, Converged, ""},
		{"it was disabled on the machine", func(s *Status, _ *Desired) { s.Disabled = "kernel debugging" }, Held, "kernel debugging"},
		{"another machine has its name", func(s *Status, d *Desired) { s.Machine, d.Host.MachineID = "aaaa", "bbbb" }, FailedState, "this is machine aaaa"},
		{"its own Puppet forbids runs", func(s *Status, _ *Desired) { s.Cause = Cause{ReasonPuppetBlocked, Params{Blocked: disabledPuppet}} }, Held, "agent_disabled.lock"},
		{"etcd refuses its machine", func(_ *Status, d *Desired) { d.LockedOut = &Lockout{First: start.Add(-time.Minute)} }, Silent, "since 2026-03-04T05:05:07Z, as after a restore"},
		{"it missed some heartbeats", func(s *Status, _ *Desired) { s.SeenAt = start.Add(-19 * time.Minute) }, Converged, ""},
		{"it missed too many", func(s *Status, _ *Desired) { s.SeenAt = start.Add(-21 * time.Minute) }, Silent, "2026-03-04T04:45:07Z"},
		{"a slower heartbeat is given longer", func(s *Status, _ *Desired) {
			s.Settings.Heartbeat, s.SeenAt = time.Hour, start.Add(-2*time.Hour)
		}, Converged, ""},
		{"silence counts before what it said last", func(s *Status, d *Desired) {
			s.SeenAt, d.Holds, s.Attempt = start.Add(-time.Hour), []Hold{stop}, tried(verA, 9, 9)
		}, Silent, ""},
		{"its clock is a year ahead", func(s *Status, _ *Desired) { s.SeenAt = start.Add(365 * 24 * time.Hour) }, Converged, "enforced recently; its clock is 8760h0m ahead"},
		{"its clock is ahead, and it is on no list", func(s *Status, d *Desired) { d.Host, s.SeenAt = nil, start.Add(6*time.Minute) }, Unregistered, "its clock is 6m ahead"},
		{"it speaks and is on no list", func(s *Status, d *Desired) { d.Host, s.SeenAt = nil, start.Add(-time.Hour) }, Unregistered, "not on the host list"},
	}
	seen := map[NodeState]bool{}
	for _, c := range cases {
		t.Run(c.say, func(t *testing.T) {
			_, d := onA()
			s := Status{
				Node: "web1", Phase: Idle, Cause: Cause{Reason: ReasonUpToDate}, Target: verA, LastGood: verA, Enforcing: verA,
				SeenAt: start.Add(-time.Minute), Settings: DefaultSettings(),
			}
			c.when(&s, &d)
			v := Look(&s, d, start)
			seen[v.State] = true
			if v.State != c.want || !strings.Contains(v.Sentence(), c.why) || v.Sentence() == "" {
				t.Errorf("it is %s: %s; want %s: …%s…", v.State, v.Sentence(), c.want, c.why)
			}
			if v.Wanted != d.Wanted() {
				t.Errorf("it wants %s", v.Wanted)
			}
		})
	}
	seen[Missing] = true // TestLookWithoutStatus
	for _, s := range NodeStates() {
		if !seen[s] {
			t.Errorf("no case is about %s", s)
		}
	}
}

// A node without any report is either new or lost.
func TestLookWithoutStatus(t *testing.T) {
	for _, c := range []struct {
		host *Host
		want NodeState
	}{
		{&Host{At: start.Add(-time.Minute)}, Pending},
		{&Host{At: start.Add(-time.Hour)}, Silent},
		{nil, Missing},
	} {
		v := Look(nil, Desired{Host: c.host, Default: verA}, start)
		if v.State != c.want || v.Sentence() == "" || v.Wanted != verA {
			t.Errorf("%+v: it is %s: %s", c.host, v.State, v.Sentence())
		}
	}
}

// `pulley explain` repeats the node's own decision on the operator's machine: the two must be equal.
func TestStatusExplainsNode(t *testing.T) {
	for _, c := range decisions {
		o, d := onA()
		c.when(&o, &d)
		if d.Unreachable != "" || d.Unreadable != "" {
			continue // the operator has no answer from etcd either
		}
		t.Run(c.say, func(t *testing.T) {
			o.Force, o.Noop, o.Partial, o.Look = false, false, false, Target{} // options of one tick, not of the node
			own := Decide(o, d, start)
			tick := &tick{
				Agent:    &Agent{Identity: o.Identity, Settings: o.Settings, MachineID: o.Machine, Now: func() time.Time { return start }},
				observed: o, desired: d, decision: own, state: o.State,
			}
			b, err := json.Marshal(tick.status())
			if err != nil {
				t.Fatal(err)
			}
			var said Status
			if err := json.Unmarshal(b, &said); err != nil {
				t.Fatal(err)
			}
			explained := Decide(said.Observed(o.Identity), d, start)
			if explained.Action != own.Action || explained.Reason != own.Reason || explained.Blocked.Reason != own.Blocked.Reason || !reflect.DeepEqual(explained.Ladder, own.Ladder) {
				t.Errorf("the node says %s because %s %+v,\nexplain says %s because %s %+v", own.Action, own.Reason, own.Ladder, explained.Action, explained.Reason, explained.Ladder)
			}
		})
	}
}
