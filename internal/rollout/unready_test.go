package rollout

import (
	"testing"
	"time"

	"pulley/agent"
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
		b.edit("web1", func(n *Node) { n.View.State = agent.Silent }).is(c.want)
	}
}

// TestUnreadyCauses: without it, a policy for held nodes could meet those that retire, or skip healthy ones.
func TestUnreadyCauses(t *testing.T) {
	t.Parallel()
	hold := func(kind agent.HoldKind) agent.Cause {
		return agent.Cause{Reason: agent.ReasonStopped, Params: agent.Params{Hold: &agent.Hold{Kind: kind}}}
	}
	because := func(r agent.Reason) agent.Cause { return agent.Cause{Reason: r} }
	for _, c := range []struct {
		view agent.View
		want UnreadyCause
	}{
		{agent.View{State: agent.Silent}, UnreadySilent},
		{agent.View{State: agent.Stuck}, UnreadyStuck},
		{agent.View{State: agent.Held, Cause: hold(agent.OperatorHold)}, UnreadyHeld},
		{agent.View{State: agent.Held, Cause: hold(agent.DuplicateHold)}, UnreadyDuplicate},
		{agent.View{State: agent.Held, Cause: hold(agent.RetirementHold)}, UnreadyRetiring},
		{agent.View{State: agent.Held, Cause: because(agent.ReasonRetire)}, UnreadyRetiring},
		{agent.View{State: agent.Held, Cause: because(agent.ReasonRetired)}, UnreadyRetiring},
		{agent.View{State: agent.Held, Cause: because(agent.ReasonDisabled)}, UnreadyDisabled},
		{agent.View{State: agent.Held, Cause: because(agent.ReasonPuppetBlocked)}, UnreadyDisabled},
		{agent.View{State: agent.Held, Cause: agent.Cause{Reason: agent.ReasonPuppetBlocked, Params: agent.Params{Blocked: &agent.Blocked{Code: agent.PuppetBusy}}}}, ""},
		{agent.View{State: agent.FailedState, Cause: because(agent.ReasonOtherMachine)}, UnreadyDuplicate},
		{agent.View{State: agent.FailedState, Cause: because(agent.ReasonBackoff)}, UnreadyFailed},
		{agent.View{State: agent.Held, Cause: because(agent.ReasonDaemon)}, UnreadyHeld},
		{agent.View{State: agent.Converged}, ""}, {agent.View{State: agent.Pending}, ""}, {agent.View{State: agent.InRun}, ""},
	} {
		if got := CannotBegin(c.view); got != c.want {
			t.Errorf("%s, %s: %q, not %q", c.view.State, c.view.Reason, got, c.want)
		}
		if available := c.want == "" || c.view.Reason == agent.ReasonDaemon; Unavailable(c.view) == available {
			t.Errorf("%s, %s: unavailable %v", c.view.State, c.view.Reason, !available) // its places would stay blocked, or be overloaded
		}
	}
}

// TestNewNodesAreUnavailable: without it, the second node of a pair begins while the first one, which was registered a moment ago, serves nothing.
func TestNewNodesAreUnavailable(t *testing.T) {
	t.Parallel()
	host := &agent.Host{Node: "web1", MachineID: "m", At: t0}
	status := func(st agent.Status) *agent.Status {
		st.Node, st.Machine, st.SeenAt, st.Settings = "web1", "m", t0, agent.DefaultSettings()
		return &st
	}
	freeze := agent.Desired{Host: host, Default: oldT, Holds: []agent.Hold{{Mode: agent.Freeze}}}
	for _, c := range []struct {
		name string
		st   *agent.Status
		d    agent.Desired
		want bool
	}{
		{"it has not reported", nil, agent.Desired{Host: host, Default: oldT}, true},
		{"it waits for its first run", status(agent.Status{}), agent.Desired{Host: host, Default: oldT}, true},
		{"its first run is in progress", status(agent.Status{Phase: agent.Running, Enforcing: oldT}), agent.Desired{Host: host, Default: oldT}, true},
		{"it is frozen before its first run", status(agent.Status{}), freeze, true},
		{"Puppet's own daemon enforces", status(agent.Status{Cause: agent.Cause{Reason: agent.ReasonDaemon}}), agent.Desired{Host: host, Default: oldT}, false},
		{"nothing is desired", status(agent.Status{}), agent.Desired{Host: host}, false},
		{"it is not registered", nil, agent.Desired{Default: oldT}, false},
		{"it takes its second target", status(agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: newT}), agent.Desired{Host: host, Default: oldT}, false},
	} {
		v := agent.Look(c.st, c.d, t0.Add(time.Minute))
		if got := Unavailable(v); got != c.want {
			t.Errorf("%s (%s, %s): unavailable %v", c.name, v.State, v.Reason, got)
		}
		if cause := CannotBegin(v); cause != "" && v.State != agent.Held {
			t.Errorf("%s: it cannot begin: %s", c.name, cause) // a policy that skips failed nodes would leave out new ones
		}
	}
}

// TestFailedNodesCountUntilTheyConverge: without it, the second node of a pair begins while the first one is down, because that one repeats
// its run, restarts or is frozen at this moment.
func TestFailedNodesCountUntilTheyConverge(t *testing.T) {
	t.Parallel()
	attempt := func(of agent.Target, started, finished int) *agent.Attempt {
		return &agent.Attempt{Target: of, Started: started, Finished: finished, Open: started > finished}
	}
	freeze, stop := &agent.Hold{Mode: agent.Freeze}, &agent.Hold{Mode: agent.Stop}
	for _, c := range []struct {
		name string
		st   agent.Status // of a node that wants oldT; newT is another target
		hold *agent.Hold
		want bool
	}{
		{"its run failed", agent.Status{Enforcing: oldT, LastGood: oldT, Outcome: agent.Failed, Attempt: attempt(oldT, 1, 1)}, nil, true},
		{"it repeats the run", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: oldT, Outcome: agent.Failed, Attempt: attempt(oldT, 2, 1)}, nil, true},
		{"it repeats the run after its attempts were forgiven", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: oldT, Outcome: agent.Failed, Attempt: attempt(oldT, 1, 0)}, nil, true},
		{"it repeats the run after too many failed", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: newT, Attempt: attempt(oldT, 9, 8)}, nil, true},
		{"it returns from a target that failed", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: oldT, Outcome: agent.Failed, Attempt: attempt(oldT, 1, 0)}, nil, true},
		{"it waits to return from a target that failed", agent.Status{Enforcing: newT, LastGood: newT, Outcome: agent.Failed}, nil, true},
		{"it lost power in its run", agent.Status{Enforcing: oldT, LastGood: newT, Outcome: agent.Changed, Attempt: attempt(oldT, 1, 0)}, nil, true},
		{"it repeats the run after it lost power", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: newT, Outcome: agent.Changed, Attempt: attempt(oldT, 2, 0)}, nil, true},
		{"it refuses its target", agent.Status{Enforcing: newT, LastGood: newT, Refusal: &agent.Refusal{Target: oldT}}, nil, true},
		{"it refuses its target, and enforces the former one", agent.Status{Phase: agent.Running, Enforcing: newT, LastGood: newT, Refusal: &agent.Refusal{Target: oldT}}, nil, true},
		{"it failed and is frozen", agent.Status{Enforcing: oldT, LastGood: oldT, Outcome: agent.Failed, Attempt: attempt(oldT, 1, 1)}, freeze, true},
		{"it failed and is stopped", agent.Status{Enforcing: oldT, LastGood: oldT, Outcome: agent.Failed, Attempt: attempt(oldT, 1, 1)}, stop, true},
		{"it failed, and another Puppet runs", agent.Status{Enforcing: oldT, LastGood: oldT, Outcome: agent.Failed, Attempt: attempt(oldT, 1, 1),
			Cause: agent.Cause{Reason: agent.ReasonPuppetBlocked, Params: agent.Params{Blocked: &agent.Blocked{Code: agent.PuppetBusy}}}}, nil, true},
		{"another machine of its name runs", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: oldT, Machine: "other"}, nil, true},
		{"it converged", agent.Status{Enforcing: oldT, LastGood: oldT, Outcome: agent.Changed}, nil, false},
		{"it converged, and is frozen", agent.Status{Enforcing: oldT, LastGood: oldT, Outcome: agent.Unchanged}, freeze, false},
		{"it enforces its target again", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: oldT, Outcome: agent.Unchanged, Attempt: attempt(oldT, 1, 0)}, nil, false},
		{"it takes a target for the first time", agent.Status{Phase: agent.Running, Enforcing: oldT, LastGood: newT, Outcome: agent.Changed, Attempt: attempt(oldT, 1, 0)}, nil, false},
		{"it has not begun to take its target", agent.Status{Enforcing: newT, LastGood: newT, Outcome: agent.Changed}, nil, false},
	} {
		d := agent.Desired{Host: &agent.Host{Node: "web1", MachineID: "m"}, Default: oldT}
		if c.hold != nil {
			d.Holds = []agent.Hold{*c.hold}
		}
		c.st.Node, c.st.SeenAt, c.st.Settings = "web1", t0, agent.DefaultSettings()
		if c.st.Machine == "" {
			c.st.Machine = "m"
		}
		for state, at := range map[string]time.Time{"reports": t0.Add(time.Minute), "is silent": t0.Add(24 * time.Hour)} {
			v := agent.Look(&c.st, d, at)
			if got := Unavailable(v); got != (c.want || state == "is silent") {
				t.Errorf("%s, and it %s (%s, %s): unavailable %v", c.name, state, v.State, v.Reason, got)
			}
			if failed := CannotBegin(v) != ""; c.want && !failed {
				t.Errorf("%s, and it %s (%s, %s): a policy for failed nodes does not meet it", c.name, state, v.State, v.Reason)
			}
		}
	}
}
