package rollout

import (
	"testing"

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
