package rollout

import (
	"testing"
	"time"

	"pulley/internal/model"
)

// TestAdvanceUnready: a node that cannot begin is waited for, left out, or a failure, as the policy says.
func TestAdvanceUnready(t *testing.T) {
	t.Parallel()
	all := func(t Unready) map[UnreadyCause]Unready { return map[UnreadyCause]Unready{UnreadyOthers: t} }
	for _, c := range []struct {
		policy Policy
		want   string
	}{
		{Policy{Unready: all(UnreadyWait)}, "advancing; ordered web1 web2; 0 done; waits for nodes"},
		{Policy{Unready: all(UnreadySkip)}, "advancing; ordered web2; 0 done; web1 skipped: silent; waits for nodes"},
		{Policy{Unready: all(UnreadySkip), Skip: "0"}, "advancing; 0 done; web1 not_ready; stopped: failures; waits for gate"},
		{Policy{Unready: map[UnreadyCause]Unready{UnreadySilent: UnreadySkip, UnreadyOthers: UnreadyFail}}, "advancing; ordered web2; 0 done; web1 skipped: silent; waits for nodes"},
		{Policy{Unready: map[UnreadyCause]Unready{UnreadyStuck: UnreadySkip}}, "advancing; ordered web1 web2; 0 done; waits for nodes"},
		{Policy{Unready: all(UnreadyFail), Failures: "1"}, "advancing; ordered web2; 0 done; web1 not_ready; waits for nodes"},
	} {
		c.policy.Canaries, c.policy.Batch = "0", "2"
		b := begin(t, "web*4", c.policy)
		b.edit("web1", func(n *Node) { n.View.State = model.Silent }).is(c.want)
	}
}

// TestUnreadyCauses: without it, a policy for held nodes could meet those that retire, or skip healthy ones.
func TestUnreadyCauses(t *testing.T) {
	t.Parallel()
	hold := func(kind model.HoldKind) model.Cause {
		return model.Cause{Reason: model.ReasonStopped, Params: model.Params{Hold: &model.Hold{Kind: kind}}}
	}
	because := func(r model.Reason) model.Cause { return model.Cause{Reason: r} }
	for _, c := range []struct {
		view model.View
		want UnreadyCause
	}{
		{model.View{State: model.Silent}, UnreadySilent},
		{model.View{State: model.Stuck}, UnreadyStuck},
		{model.View{State: model.Held, Cause: hold(model.OperatorHold)}, UnreadyHeld},
		{model.View{State: model.Held, Cause: hold(model.DuplicateHold)}, UnreadyDuplicate},
		{model.View{State: model.Held, Cause: hold(model.RetirementHold)}, UnreadyRetiring},
		{model.View{State: model.Held, Cause: because(model.ReasonRetire)}, UnreadyRetiring},
		{model.View{State: model.Held, Cause: because(model.ReasonRetired)}, UnreadyRetiring},
		{model.View{State: model.Held, Cause: because(model.ReasonDisabled)}, UnreadyDisabled},
		{model.View{State: model.Held, Cause: because(model.ReasonPuppetBlocked)}, UnreadyDisabled},
		{model.View{State: model.Held, Cause: model.Cause{Reason: model.ReasonPuppetBlocked, Params: model.Params{Blocked: &model.Blocked{Code: model.PuppetBusy}}}}, ""},
		{model.View{State: model.FailedState, Cause: because(model.ReasonOtherMachine)}, UnreadyDuplicate},
		{model.View{State: model.FailedState, Cause: because(model.ReasonBackoff)}, UnreadyFailed},
		{model.View{State: model.Held, Cause: because(model.ReasonDaemon)}, UnreadyHeld},
		{model.View{State: model.Converged}, ""}, {model.View{State: model.Pending}, ""}, {model.View{State: model.InRun}, ""},
	} {
		if got := CannotBegin(c.view); got != c.want {
			t.Errorf("%s, %s: %q, not %q", c.view.State, c.view.Reason, got, c.want)
		}
		if available := c.want == "" || c.view.Reason == model.ReasonDaemon; Unavailable(c.view) == available {
			t.Errorf("%s, %s: unavailable %v", c.view.State, c.view.Reason, !available) // its places would stay blocked, or be overloaded
		}
	}
}

// TestNewNodesAreUnavailable: without it, the second node of a pair begins while the first one, which was registered a moment ago, serves nothing.
func TestNewNodesAreUnavailable(t *testing.T) {
	t.Parallel()
	host := &model.Host{Node: "web1", MachineID: "m", At: t0}
	status := func(st model.Status) *model.Status {
		st.Node, st.Machine, st.SeenAt, st.Settings = "web1", "m", t0, model.DefaultSettings()
		return &st
	}
	freeze := model.Desired{Host: host, Default: oldT, Holds: []model.Hold{{Mode: model.Freeze}}}
	for _, c := range []struct {
		name string
		st   *model.Status
		d    model.Desired
		want bool
	}{
		{"it has not reported", nil, model.Desired{Host: host, Default: oldT}, true},
		{"it waits for its first run", status(model.Status{}), model.Desired{Host: host, Default: oldT}, true},
		{"its first run is in progress", status(model.Status{Phase: model.Running, Enforcing: oldT}), model.Desired{Host: host, Default: oldT}, true},
		{"it is frozen before its first run", status(model.Status{}), freeze, true},
		{"Puppet's own daemon enforces", status(model.Status{Cause: model.Cause{Reason: model.ReasonDaemon}}), model.Desired{Host: host, Default: oldT}, false},
		{"nothing is desired", status(model.Status{}), model.Desired{Host: host}, false},
		{"it is not registered", nil, model.Desired{Default: oldT}, false},
		{"it takes its second target", status(model.Status{Phase: model.Running, Enforcing: oldT, LastGood: newT}), model.Desired{Host: host, Default: oldT}, false},
	} {
		v := model.Look(c.st, c.d, t0.Add(time.Minute))
		if got := Unavailable(v); got != c.want {
			t.Errorf("%s (%s, %s): unavailable %v", c.name, v.State, v.Reason, got)
		}
		if cause := CannotBegin(v); cause != "" && v.State != model.Held {
			t.Errorf("%s: it cannot begin: %s", c.name, cause) // a policy that skips failed nodes would leave out new ones
		}
	}
}

// TestFailedNodesCountUntilTheyConverge: without it, the second node of a pair begins while the first one is down, because that one repeats
// its run, restarts or is frozen at this moment.
func TestFailedNodesCountUntilTheyConverge(t *testing.T) {
	t.Parallel()
	attempt := func(of model.Target, started, finished int) *model.Attempt {
		return &model.Attempt{Target: of, Started: started, Finished: finished, Open: started > finished}
	}
	freeze, stop := &model.Hold{Mode: model.Freeze}, &model.Hold{Mode: model.Stop}
	for _, c := range []struct {
		name string
		st   model.Status // of a node that wants oldT; newT is another target
		hold *model.Hold
		want bool
	}{
		{"its run failed", model.Status{Enforcing: oldT, LastGood: oldT, Outcome: model.Failed, Attempt: attempt(oldT, 1, 1)}, nil, true},
		{"it repeats the run", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: oldT, Outcome: model.Failed, Attempt: attempt(oldT, 2, 1)}, nil, true},
		{"it repeats the run after its attempts were forgiven", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: oldT, Outcome: model.Failed, Attempt: attempt(oldT, 1, 0)}, nil, true},
		{"it repeats the run after too many failed", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: newT, Attempt: attempt(oldT, 9, 8)}, nil, true},
		{"it returns from a target that failed", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: oldT, Outcome: model.Failed, Attempt: attempt(oldT, 1, 0)}, nil, true},
		{"it waits to return from a target that failed", model.Status{Enforcing: newT, LastGood: newT, Outcome: model.Failed}, nil, true},
		{"it lost power in its run", model.Status{Enforcing: oldT, LastGood: newT, Outcome: model.Changed, Attempt: attempt(oldT, 1, 0)}, nil, true},
		{"it repeats the run after it lost power", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: newT, Outcome: model.Changed, Attempt: attempt(oldT, 2, 0)}, nil, true},
		{"it refuses its target", model.Status{Enforcing: newT, LastGood: newT, Refusal: &model.Refusal{Target: oldT}}, nil, true},
		{"it refuses its target, and enforces the former one", model.Status{Phase: model.Running, Enforcing: newT, LastGood: newT, Refusal: &model.Refusal{Target: oldT}}, nil, true},
		{"it failed and is frozen", model.Status{Enforcing: oldT, LastGood: oldT, Outcome: model.Failed, Attempt: attempt(oldT, 1, 1)}, freeze, true},
		{"it failed and is stopped", model.Status{Enforcing: oldT, LastGood: oldT, Outcome: model.Failed, Attempt: attempt(oldT, 1, 1)}, stop, true},
		{"it failed, and another Puppet runs", model.Status{Enforcing: oldT, LastGood: oldT, Outcome: model.Failed, Attempt: attempt(oldT, 1, 1),
			Cause: model.Cause{Reason: model.ReasonPuppetBlocked, Params: model.Params{Blocked: &model.Blocked{Code: model.PuppetBusy}}}}, nil, true},
		{"another machine of its name runs", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: oldT, Machine: "other"}, nil, true},
		{"it converged", model.Status{Enforcing: oldT, LastGood: oldT, Outcome: model.Changed}, nil, false},
		{"it converged, and is frozen", model.Status{Enforcing: oldT, LastGood: oldT, Outcome: model.Unchanged}, freeze, false},
		{"it enforces its target again", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: oldT, Outcome: model.Unchanged, Attempt: attempt(oldT, 1, 0)}, nil, false},
		{"it takes a target for the first time", model.Status{Phase: model.Running, Enforcing: oldT, LastGood: newT, Outcome: model.Changed, Attempt: attempt(oldT, 1, 0)}, nil, false},
		{"it has not begun to take its target", model.Status{Enforcing: newT, LastGood: newT, Outcome: model.Changed}, nil, false},
	} {
		d := model.Desired{Host: &model.Host{Node: "web1", MachineID: "m"}, Default: oldT}
		if c.hold != nil {
			d.Holds = []model.Hold{*c.hold}
		}
		c.st.Node, c.st.SeenAt, c.st.Settings = "web1", t0, model.DefaultSettings()
		if c.st.Machine == "" {
			c.st.Machine = "m"
		}
		for state, at := range map[string]time.Time{"reports": t0.Add(time.Minute), "is silent": t0.Add(24 * time.Hour)} {
			v := model.Look(&c.st, d, at)
			if got := Unavailable(v); got != (c.want || state == "is silent") {
				t.Errorf("%s, and it %s (%s, %s): unavailable %v", c.name, state, v.State, v.Reason, got)
			}
			if failed := CannotBegin(v) != ""; c.want && !failed {
				t.Errorf("%s, and it %s (%s, %s): a policy for failed nodes does not meet it", c.name, state, v.State, v.Reason)
			}
		}
	}
}
