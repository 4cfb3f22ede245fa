package agent

import "time"

// NodeState is where a node stands, in one word, for `pulley status`.
type NodeState string

// The states, each with what it says.
const (
	Converged    NodeState = "converged"    // on its target, applied and verified
	Pending      NodeState = "pending"      // its target is newer than what it has; it will look
	InRun        NodeState = "running"      // Puppet is at work
	FailedState  NodeState = "failed"       // its last attempt failed, its target is refused, or its name is another machine's; it will try again
	Stuck        NodeState = "stuck"        // it failed too often; it tries on, rarely
	Held         NodeState = "held"         // a hold, or its own machine, says to leave it alone
	Silent       NodeState = "silent"       // it has not been heard of for too long
	Unregistered NodeState = "unregistered" // it speaks, but is not on the list of hosts that should be alive
)

// NodeStates lists all states, the good one first, in the order of an operator's interest.
func NodeStates() []NodeState {
	return []NodeState{Converged, Pending, InRun, FailedState, Stuck, Held, Silent, Unregistered}
}

// View is one node as an operator sees it.
type View struct {
	State      NodeState
	Cause                    // why
	ClockAhead time.Duration // of the node; 0 when its clock may be right
	Wanted     Target
}

// silentAfter is how many heartbeats a node may miss, with at least minSilence.
const (
	silentAfter = 3
	minSilence  = 20 * time.Minute
	clockAhead  = 5 * time.Minute // beyond this a node's clock is wrong, and its silence would go unnoticed
)

// Look judges one node from what it last said (nil: nothing yet) and what etcd wants of it now.
func Look(s *Status, d Desired, now time.Time) View {
	v := judge(s, d, now)
	if s == nil {
		return v
	}
	if ahead := s.SeenAt.Sub(now); ahead > clockAhead {
		v.ClockAhead = ahead
	}
	return v
}

func judge(s *Status, d Desired, now time.Time) View {
	v := View{Wanted: d.Wanted()}
	switch {
	case s == nil:
		return v.unheard(d, now)
	case d.Host == nil:
		v.State, v.Cause = Unregistered, Cause{ReasonUnregistered, Params{Node: s.Node}}
		return v
	}
	attempt := attemptAt(s, v.Wanted)
	hold := strictest(d.Holds)
	switch {
	case now.After(s.SilentFrom()):
		v.State, v.Cause = Silent, Cause{ReasonSilent, Params{At: s.SeenAt}}
	case retires(d.Host, s.Machine) && !s.declined(d.Host.Request):
		v.State, v.Cause = Held, s.retirement(d.Host.Request)
	case s.Phase == Running:
		v.State, v.Cause = InRun, s.why()
	case hold != nil && hold.Mode == Stop:
		v.State, v.Cause = Held, Cause{ReasonStopped, Params{Hold: hold}}
	case hold != nil:
		v.State, v.Cause = Held, Cause{ReasonFrozen, Params{Hold: hold}}
	case s.Disabled != "":
		v.State, v.Cause = Held, Cause{ReasonDisabled, Params{Text: s.Disabled}}
	case s.Reason == ReasonPuppetBlocked:
		v.State, v.Cause = Held, s.why()
	case anotherMachine(d.Host, s.Machine):
		v.State, v.Cause = FailedState, Cause{ReasonOtherMachine, Params{Machine: s.Machine, Listed: d.Host.MachineID}}
	case s.Refusal != nil && s.Refusal.Target == v.Wanted:
		v.State, v.Cause = FailedState, Cause{ReasonRefused, Params{Refusal: s.Refusal}}
	case attempt != nil && attempt.Started >= max(s.Settings.MaxAttempts, 1):
		v.State, v.Cause = Stuck, Cause{ReasonStuck, Params{Attempt: attempt}}
	case attempt != nil && attempt.Finished > 0:
		v.State, v.Cause = FailedState, Cause{ReasonBackoff, Params{Attempt: attempt}}
	case v.Wanted.IsZero():
		v.State, v.Cause = Pending, Cause{Reason: ReasonNoTarget}
	case s.LastGood == v.Wanted && s.Enforcing == v.Wanted:
		v.State, v.Cause = Converged, Cause{Reason: ReasonUpToDate}
	default:
		v.State, v.Cause = Pending, Cause{ReasonNotTaken, Params{Target: &v.Wanted, LastGood: &s.LastGood}}
	}
	return v
}

// retires reports whether the machine that reports is requested to retire.
func retires(h *Host, machine string) bool {
	return h.Request != nil && h.Request.Do == RequestRetire && !anotherMachine(h, machine)
}

// declined reports whether the node answered that it cannot retire: runs were disabled, and it goes on as before.
func (s *Status) declined(r *Request) bool {
	return s.Answer != nil && s.Answer.ID == r.ID && s.Reason != ReasonRetired
}

// retirement is how far a node is that is requested to retire.
func (s *Status) retirement(r *Request) Cause {
	if s.Answer == nil || s.Answer.ID != r.ID {
		return Cause{ReasonRetire, Params{Request: r}}
	}
	return Cause{ReasonRetired, Params{Problem: s.Answer.Failure()}}
}

// runningSilence is how long a run may take until its node counts as silent: Puppet's default deadline and some.
const runningSilence = 75 * time.Minute

// SilentFrom is until when a node is believed to be there although it says nothing more.
func (s *Status) SilentFrom() time.Time {
	quiet := max(silentAfter*s.Settings.Heartbeat, minSilence)
	if s.Phase == Running {
		quiet = max(quiet, runningSilence)
	}
	return s.SeenAt.Add(quiet)
}

func (v View) unheard(d Desired, now time.Time) View {
	v.State, v.Cause = Pending, Cause{Reason: ReasonNotReported}
	if d.Host == nil {
		v.State, v.Cause = Unregistered, Cause{Reason: ReasonUnknownNode}
	} else if age := now.Sub(d.Host.At); age > minSilence {
		v.State, v.Cause = Silent, Cause{ReasonNeverReported, Params{At: d.Host.At}}
	}
	return v
}

// attemptAt is the node's count of attempts, when it is about its target or about what it enforces now.
func attemptAt(s *Status, wanted Target) *Attempt {
	if s.Attempt == nil || s.Attempt.Target != wanted && s.Attempt.Target != s.Enforcing {
		return nil
	}
	return s.Attempt
}

// Observed is what a node knows of itself, as far as its status tells: enough for Decide to give the node's own answer.
func (s *Status) Observed(id Identity) Observed {
	o := Observed{Identity: id, Settings: s.Settings, Machine: s.Machine, Disabled: s.Disabled, State: State{
		LastGood: s.LastGood, Enforcing: s.Enforcing, RanAt: s.RanAt, Outcome: s.Outcome, LastRun: s.LastRun,
		Refusal: s.Refusal, Answer: s.Answer,
	}}
	if s.Attempt != nil {
		o.State.Attempts = []Attempt{*s.Attempt}
	}
	if s.Reason == ReasonPuppetBlocked {
		o.PuppetBlocked = s.Params.Blocked
	}
	if s.Reason == ReasonRetired { // by which request counts only for this node itself
		o.State.Retire = "unknown"
	}
	return o
}
